"""What the API server refuses in a pod's containers and volumes, and what it takes and kubelet then stumbles over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.pod_specs import PodSpec, containers
from paceline.deploy.names import wrong_label, wrong_port_name, wrong_subdomain
from paceline.errors import did_you_mean

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc", "sleep")


def container_findings(pod: PodSpec) -> Iterator[Finding]:
    yield from _names(pod)
    yield from _volumes(pod)
    yield from _restart(pod)
    yield from _placement(pod)
    for path, container in containers(pod.spec):
        place = f"{pod.path}{path}"
        yield from _image(place, container, is_whole=pod.is_whole)
        yield from _ports(place, container)
        yield from _asked_ports(place, container)
        yield from _probes(place, container)
        yield from _env(place, container)
        yield from _mounts(place, container)
        if path.startswith(".initContainers"):
            yield from _before_others(place, container)
    yield from _shared_ports(pod)


def _names(pod: PodSpec) -> Iterator[Finding]:
    named = [(path, container.get("name")) for path, container in containers(pod.spec)]
    for path, name in named:
        if name is None:
            if pod.is_whole:
                yield error(f"{pod.path}{path}", "has no name.")
            continue
        wrong = wrong_label(name)
        if wrong is not None:
            yield error(f"{pod.path}{path}.name", f"{name!r} {wrong}.")
    for name in _twice(name for _, name in named):
        yield error(pod.path, f"two containers are called '{name}'.")


def _volumes(pod: PodSpec) -> Iterator[Finding]:
    volumes = pod.spec.get("volumes") or []
    for index, volume in enumerate(volumes):
        place = f"{pod.path}.volumes[{index}]"
        wrong = wrong_label(volume.get("name"))
        if wrong is not None:
            yield error(f"{place}.name", f"{volume.get('name')!r} {wrong}.")
        sources = [name for name in volume if name != "name"]
        if len(sources) > 1:
            yield error(place, f"'{volume.get('name')}' has several sources: {', '.join(sources)}. Give one.")
    for name in _twice(volume.get("name") for volume in volumes):
        yield error(f"{pod.path}.volumes", f"two volumes are called '{name}'.")


def _placement(pod: PodSpec) -> Iterator[Finding]:
    for name in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        wrong = None if pod.spec.get(name) is None else wrong_subdomain(pod.spec[name])
        if wrong is not None:
            yield error(f"{pod.path}.{name}", f"{pod.spec[name]!r} {wrong}.")
    for index, toleration in enumerate(pod.spec.get("tolerations") or []):
        place, operator = f"{pod.path}.tolerations[{index}]", toleration.get("operator", "Equal")
        if operator == "Exists" and toleration.get("value"):
            yield error(place, "operator Exists takes no value: use Equal, or leave the value out.")
        if operator == "Equal" and not toleration.get("key"):
            yield error(place, "operator Equal needs a key.")


def _restart(pod: PodSpec) -> Iterator[Finding]:
    policy = pod.spec.get("restartPolicy")
    if pod.is_whole and pod.restarts is not None and policy not in (pod.restarts if policy else (*pod.restarts, None)):
        yield error(f"{pod.path}.restartPolicy", f"'{policy}' is not possible here: {' or '.join(pod.restarts)}.")
    elif policy is None and pod.restarts is not None and "Always" not in pod.restarts:
        yield error(f"{pod.path}.restartPolicy", f"is missing, which means Always: give {' or '.join(pod.restarts)}.")


def _image(place: str, container: Json, *, is_whole: bool) -> Iterator[Finding]:
    image = container.get("image")
    if not image and is_whole:
        yield error(f"{place}.image", "is missing.")
        return
    if isinstance(image, str) and (not image or image != image.strip() or " " in image):
        yield error(f"{place}.image", f"{image!r} is no name of an image.")


def _ports(place: str, container: Json) -> Iterator[Finding]:
    ports = container.get("ports") or []
    for index, port in enumerate(ports):
        wrong = None if port.get("name") is None else wrong_port_name(port["name"])
        if wrong is not None:
            yield error(f"{place}.ports[{index}].name", f"{port['name']!r} {wrong}.")
    for name in _twice(port.get("name") for port in ports):
        yield error(f"{place}.ports", f"two ports are called '{name}'.")
    for number, protocol in _twice((port.get("containerPort"), port.get("protocol", "TCP")) for port in ports):
        yield error(f"{place}.ports", f"port {number} ({protocol}) is there twice.")


def _shared_ports(pod: PodSpec) -> Iterator[Finding]:
    """Containers of a pod share its addresses; those that run before the others do not hold theirs any more."""
    wanted = Counter(
        number
        for path, container in containers(pod.spec)
        if path.startswith(".containers")
        for number in {port.get("containerPort") for port in container.get("ports") or []}
    )
    for number in (number for number, count in wanted.items() if count > 1 and number is not None):
        yield warning(pod.path, f"two containers have port {number}, and one of them alone can listen on it.")


def _asked_ports(place: str, container: Json) -> Iterator[Finding]:
    """Probes and hooks ask by number, or by the name of a port of the same container."""
    names = [port.get("name") for port in container.get("ports") or [] if port.get("name")]
    hooks = container.get("lifecycle") or {}
    asking = {name: container.get(name) for name in _PROBES}
    asking |= {f"lifecycle.{name}": hooks.get(name) for name in ("postStart", "preStop")}
    for field, action in asking.items():
        for handler in ("httpGet", "tcpSocket"):
            port = ((action or {}).get(handler) or {}).get("port")
            if isinstance(port, str) and port not in names:
                there = f" There are: {', '.join(names)}." if names else " It names none."
                yield error(
                    f"{place}.{field}.{handler}.port",
                    f"'{port}' is no port of the container.{did_you_mean(port, names) or there}",
                )


def _probes(place: str, container: Json) -> Iterator[Finding]:
    for name in _PROBES:
        probe = container.get(name) or {}
        handlers = [handler for handler in _HANDLERS if handler in probe]
        if len(handlers) > 1:
            yield error(f"{place}.{name}", f"asks in several ways: {', '.join(handlers)}. Give one.")
        if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield error(f"{place}.{name}.successThreshold", "must be 1.")
        path = (probe.get("httpGet") or {}).get("path", "/")
        if not str(path).startswith("/"):
            yield warning(f"{place}.{name}.httpGet.path", f"'{path}' does not begin with '/'.")


def _before_others(place: str, container: Json) -> Iterator[Finding]:
    if container.get("restartPolicy") == "Always":  # a sidecar, which stays
        return
    for name in (*_PROBES, "lifecycle"):
        if container.get(name):
            yield error(f"{place}.{name}", "is for containers that stay: an init container ends. Leave it out.")


def _env(place: str, container: Json) -> Iterator[Finding]:
    env = container.get("env") or []
    for index, variable in enumerate(env):
        name = variable.get("name")
        if not name or not isinstance(name, str) or "=" in name or not name.isprintable():
            yield error(f"{place}.env[{index}].name", f"{name!r} is no name of a variable.")
        if variable.get("value") and variable.get("valueFrom"):
            yield error(f"{place}.env[{index}]", f"'{name}' has a value and a valueFrom: give one.")
    for name in _twice(variable.get("name") for variable in env):
        yield warning(f"{place}.env", f"'{name}' is there twice: the last one wins.")


def _mounts(place: str, container: Json) -> Iterator[Finding]:
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where, path, sub_path = f"{place}.volumeMounts[{index}]", mount.get("mountPath"), mount.get("subPath")
        if not isinstance(path, str) or not path.startswith("/") or ":" in path:
            yield error(f"{where}.mountPath", f"{path!r} must be an absolute folder, without ':'.")
        if isinstance(sub_path, str) and (sub_path.startswith("/") or ".." in sub_path.split("/")):
            yield error(f"{where}.subPath", f"{sub_path!r} must stay inside the volume: no '..', and not from /.")
        if sub_path and mount.get("subPathExpr"):
            yield error(where, "subPath and subPathExpr exclude each other.")


def _twice(values: Any) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1 and value is not None]
