"""Values that the API server refuses although their type is right: numbers out of range, words that are no choice.

Kubernetes' published schemas hold neither; the limits are those of its own validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.deploy.check.findings import Finding, Json, error, warning
from paceline.deploy.check.walk import Field, fields
from paceline.errors import did_you_mean

_INT32 = 2**31 - 1
_FROM_0 = (0, _INT32)
_FROM_1 = (1, _INT32)
_PORT = (1, 65535)

# By name, wherever the field stands; only whole numbers are looked at.
RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("replicas", "minReplicas", "maxReplicas", "minReplicaCount", "maxReplicaCount"), _FROM_0),
    **dict.fromkeys(
        ("idleReplicaCount", "revisionHistoryLimit", "progressDeadlineSeconds", "minReadySeconds"), _FROM_0
    ),
    **dict.fromkeys(("backoffLimit", "completions", "parallelism", "activeDeadlineSeconds"), _FROM_0),
    **dict.fromkeys(("ttlSecondsAfterFinished", "terminationGracePeriodSeconds", "initialDelaySeconds"), _FROM_0),
    **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _FROM_0),
    **dict.fromkeys(("failureThreshold", "successThreshold", "periodSeconds", "timeoutSeconds"), _FROM_1),
    **dict.fromkeys(("containerPort", "hostPort", "port", "targetPort", "endPort"), _PORT),
    **dict.fromkeys(("maxSurge", "maxUnavailable", "minAvailable"), _FROM_0),
    "nodePort": (1, 65535),
    "defaultMode": (0, 0o777),
    "stabilizationWindowSeconds": (0, 3600),
    "weight": (0, 1_000_000),
}

_PROTOCOLS = ("TCP", "UDP", "SCTP")
# (the field that holds it, its name) -> what it may be; "*" is any.
CHOICES: dict[tuple[str, str], tuple[str, ...]] = {
    ("*", "imagePullPolicy"): ("Always", "IfNotPresent", "Never"),
    ("*", "restartPolicy"): ("Always", "OnFailure", "Never"),
    ("*", "dnsPolicy"): ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    ("*", "terminationMessagePolicy"): ("File", "FallbackToLogsOnError"),
    ("*", "fsGroupChangePolicy"): ("OnRootMismatch", "Always"),
    ("*", "preemptionPolicy"): ("PreemptLowerPriority", "Never"),
    ("*", "accessModes"): ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"),
    ("*", "volumeMode"): ("Filesystem", "Block"),
    ("*", "policyTypes"): ("Ingress", "Egress"),
    ("*", "concurrencyPolicy"): ("Allow", "Forbid", "Replace"),
    ("*", "completionMode"): ("NonIndexed", "Indexed"),
    ("*", "whenUnsatisfiable"): ("DoNotSchedule", "ScheduleAnyway"),
    ("*", "sessionAffinity"): ("None", "ClientIP"),
    ("*", "externalTrafficPolicy"): ("Cluster", "Local"),
    ("*", "unhealthyPodEvictionPolicy"): ("IfHealthyBudget", "AlwaysAllow"),
    ("*", "medium"): ("", "Memory", "HugePages", "HugePages-2Mi", "HugePages-1Gi"),
    ("ports", "protocol"): _PROTOCOLS,
    ("httpGet", "scheme"): ("HTTP", "HTTPS"),
    ("tolerations", "operator"): ("Exists", "Equal", "Lt", "Gt"),
    ("tolerations", "effect"): ("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("matchExpressions", "operator"): ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    ("seccompProfile", "type"): ("RuntimeDefault", "Unconfined", "Localhost"),
    ("strategy", "type"): ("RollingUpdate", "Recreate"),
    ("deploymentStrategy", "type"): ("RollingUpdate", "Recreate"),
    ("updateStrategy", "type"): ("RollingUpdate", "OnDelete"),
}
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")


def value_findings(content: Json) -> Iterator[Finding]:
    for field in fields(content):
        yield from _number(field)
        yield from _choice(field)
        if isinstance(field.value, dict):
            yield from _rollout(field.path, field.value)
            yield from _bounds(field.path, field.value)
    if content.get("kind") == "Service":
        chosen = content.get("spec", {}).get("type")
        yield from _choose("$.spec.type", chosen, _SERVICE_TYPES)
    if content.get("kind") == "PodDisruptionBudget":
        yield from _disruptions(content.get("spec") or {})


def _number(field: Field) -> Iterator[Finding]:
    limits = RANGES.get(field.name)
    if limits is None or not isinstance(field.value, int) or isinstance(field.value, bool):
        return
    least, most = limits
    if not least <= field.value <= most:
        yield error(field.path, f"{field.value} must be between {least} and {most}.")


def _choice(field: Field) -> Iterator[Finding]:
    choices = CHOICES.get(("*", field.name)) or CHOICES.get((field.within, field.name))
    if choices is not None:
        for value in field.value if isinstance(field.value, list) else [field.value]:
            yield from _choose(field.path, value, choices)


def _choose(path: str, value: Any, choices: tuple[str, ...]) -> Iterator[Finding]:
    if isinstance(value, str) and value not in choices:
        there = ", ".join(choice for choice in choices if choice)
        yield error(path, f"'{value}' does not exist.{did_you_mean(value, choices)} There are: {there}.")


def _rollout(path: str, part: Json) -> Iterator[Finding]:
    surge, unavailable = part.get("maxSurge"), part.get("maxUnavailable")
    if _is_zero(surge) and _is_zero(unavailable):
        yield error(path, "maxSurge and maxUnavailable are both 0: a rollout could never replace a pod. Allow one.")
    if part.get("type") == "Recreate" and part.get("rollingUpdate"):
        yield error(path, "type Recreate takes no rollingUpdate: leave it out.")


def _bounds(path: str, part: Json) -> Iterator[Finding]:
    for low, high in (("minReplicas", "maxReplicas"), ("minReplicaCount", "maxReplicaCount")):
        least, most = part.get(low), part.get(high)
        if isinstance(least, int) and isinstance(most, int) and least > most > 0:  # KServe: 0 is no limit
            yield error(f"{path}.{low}", f"{least} is more than {high}, {most}.")


def _disruptions(spec: Json) -> Iterator[Finding]:
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield error("$.spec", "minAvailable and maxUnavailable exclude each other.")
    if _is_zero(spec.get("maxUnavailable")) or spec.get("minAvailable") == "100%":
        yield warning("$.spec", "no pod may ever be evicted: a drain of its node waits for ever. Allow one.")


def _is_zero(value: Any) -> bool:
    return value in (0, "0", "0%") and value is not False
