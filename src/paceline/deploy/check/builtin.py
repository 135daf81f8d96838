"""Kubernetes' own kinds, against its schemas: unknown fields are errors."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from paceline.deploy.check.findings import Finding, Json, error
from paceline.errors import ConfigurationError

DEFAULT_VERSION = "1.36"


def is_builtin(content: Json) -> bool:
    """Groups of Kubernetes itself have no dot, or end in k8s.io and are known; custom resources have a domain."""
    group = str(content.get("apiVersion", "")).partition("/")[0] if "/" in str(content.get("apiVersion")) else ""
    return "." not in group or group in _GROUPS


_GROUPS = {
    "networking.k8s.io", "rbac.authorization.k8s.io", "storage.k8s.io", "scheduling.k8s.io", "coordination.k8s.io",
    "apiextensions.k8s.io", "admissionregistration.k8s.io", "apiregistration.k8s.io", "certificates.k8s.io",
    "discovery.k8s.io", "events.k8s.io", "node.k8s.io", "flowcontrol.apiserver.k8s.io", "resource.k8s.io",
    "authentication.k8s.io", "authorization.k8s.io",
}  # fmt: skip


@cache
def _library() -> ModuleType | None:
    try:
        import kubernetes_validate
        import kubernetes_validate.utils
    except ImportError:
        return None
    return kubernetes_validate  # type: ignore[no-any-return]


def is_available() -> bool:
    return _library() is not None


def builtin_findings(content: Json, version: str) -> list[Finding]:
    """Raises ConfigurationError for a version of Kubernetes whose schemas are not installed."""
    library = _library()
    assert library is not None
    known = list(dict.fromkeys(library.utils.major_minor(each) for each in library.utils.all_versions()))
    if version.removeprefix("v") not in known:
        raise ConfigurationError(f"--kubernetes-version {version} is not known here; known are {', '.join(known)}.")
    try:
        library.validate(content, version, strict=True)
    except library.ValidationError as fault:
        return [error(fault.json_path, str(fault.message)[:300])]
    except library.SchemaNotFoundError:
        return [error("$", f"Kubernetes {version} has no {content['kind']} in {content['apiVersion']}.")]
    return []
