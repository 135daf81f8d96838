"""Quantities and what is asked for with them: CPU, memory, GPUs, sizes of volumes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import PodSpec, containers
from paceline.deploy.check.walk import fields
from paceline.deploy.quantity import MOST, amount

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_IN_BYTES = ("memory", "ephemeral-storage", "storage", "sizeLimit")
_EXAMPLE = "a number with nothing, m, k, M, G, T, Ki, Mi, Gi or Ti behind it, such as 16Gi"


def quantity_findings(content: Json) -> Iterator[Finding]:
    """Of any object: what stands in `requests` and `limits`, and sizes of volumes."""
    for field in fields(content):
        if field.name == "sizeLimit":
            yield from _quantity(field.path, field.name, field.value)
        elif field.within == "resources" and field.name in ("requests", "limits") and isinstance(field.value, dict):
            for name, value in field.value.items():
                yield from _quantity(f"{field.path}.{name}", str(name), value)


def _quantity(path: str, name: str, value: Any) -> Iterator[Finding]:
    size = read(value)
    if size is None:
        yield error(path, f"{value!r} is no quantity: give {_EXAMPLE}.")
    elif size < 0:
        yield error(path, f"{value!r} must not be negative.")
    elif size > MOST:
        yield error(path, f"{str(value)[:40]!r} is more than any machine has.")
    elif name in _IN_BYTES and size.denominator != 1:
        yield warning(path, f"{value!r} is {float(size):g} bytes, and not a whole number: is 'Mi' meant, not 'm'?")


def resource_findings(pod: PodSpec) -> Iterator[Finding]:
    """Requests against limits. GPUs cannot be overcommitted: a request without the same limit is refused."""
    for path, container in containers(pod.spec):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        place = f"{pod.path}{path}.resources"
        for name in sorted({*requests, *limits}):
            requested, limit = requests.get(name), limits.get(name)
            if name in _PLAIN or name.startswith("hugepages-"):
                yield from _within(place, name, requested, limit)
            else:
                yield from _extended(place, name, requested, limit)
    yield from _memory(pod)


def _within(path: str, name: str, requested: Any, limit: Any) -> Iterator[Finding]:
    asked, most = read(requested), read(limit)
    if asked is not None and most is not None and asked > most:
        yield error(path, f"{name}: the request ({requested}) is more than the limit ({limit}).")


def _extended(path: str, name: str, requested: Any, limit: Any) -> Iterator[Finding]:
    if "/" not in name:
        yield error(path, f"there is no resource '{name}': cpu, memory, or one with a domain, such as nvidia.com/gpu.")
    if limit is None or (requested is not None and str(requested) != str(limit)):
        yield error(path, f"{name}: the request ({requested}) must equal the limit ({limit}).")
    size = read(limit)
    if size is not None and size.denominator != 1:
        yield error(path, f"{name}: {limit} is no whole number.")


def _memory(pod: PodSpec) -> Iterator[Finding]:
    for path, container in containers(pod.spec):
        memory = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        mounts = {mount.get("name") for mount in container.get("volumeMounts") or []}
        in_memory = [
            volume["emptyDir"]["sizeLimit"]
            for volume in pod.spec.get("volumes") or []
            if volume.get("name") in mounts
            and (volume.get("emptyDir") or {}).get("medium") == "Memory"
            and "sizeLimit" in volume["emptyDir"]
        ]
        most, sizes = read(memory), [size for size in map(read, in_memory) if size is not None]
        if most is not None and sizes and sum(sizes) >= most:
            yield error(
                f"{pod.path}{path}.resources.limits.memory",
                f"{memory} is no more than its volumes in memory ({', '.join(map(str, in_memory))}), which count "
                "towards it.",
            )


def read(value: Any) -> Fraction | None:
    try:
        return amount(value)
    except (ValueError, TypeError):
        return None
