"""Every combination that `paceline deploy render` offers, and where the CRDs are, for the tests in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from paceline.deploy.presets import preset_names
from paceline.deploy.render import Rendered, render
from paceline.deploy.values import Platform, Runtime
from paceline.deploy.values_file import load_values, merge

PLATFORMS: tuple[Platform, ...] = ("kubernetes", "kserve", "kserve-llm")
RUNTIMES: tuple[Runtime, ...] = ("paceline", "vllm")
IMAGE = "registry.example.com/paceline:0.1.0"

# Everything that can be switched on, over any preset.
FULL: dict[str, Any] = {
    "secrets": {"api_key": {"name": "api-key", "key": "key"}, "hub_token": {"name": "hub", "key": "token"}},
    "route": {"gateway": {"name": "public", "namespace": "gateways"}, "hostname": "llm.example.com"},
    "scaling": {"max_replicas": 3, "prometheus_url": "http://prometheus.monitoring.svc:9090"},
    "storage": {
        "models": {"access_mode": "ReadWriteMany", "storage_class": "shared"},
        "compile_cache": {"access_mode": "ReadWriteMany", "storage_class": "shared"},
    },
    "scheduling": {"priority_class": "serving", "service_account": "server"},
    "network": {"allow_namespaces": ["clients"]},
}
COMBINATIONS = [
    (preset, platform, runtime, full)
    for preset in preset_names()
    for platform in PLATFORMS
    for runtime in RUNTIMES
    for full in (False, True)
]
Combination = tuple[str, Platform, Runtime, bool]


@cache
def rendered(preset: str, platform: Platform, runtime: Runtime, full: bool = False) -> Rendered:
    overrides = merge(FULL if full else {}, {"image": IMAGE})
    return render(load_values(None, runtime, preset, overrides), platform, runtime)


def one(manifests: Any, kind: str) -> Any:
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of kind {kind}"
    return found[0]


def server_pod(combination: Combination) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's settings and the server's container, as the platform puts them together (KServe: both objects)."""
    manifests = rendered(*combination).manifests
    match combination[1]:
        case "kubernetes":
            spec = one(manifests, "Deployment")["spec"]["template"]["spec"]
            return spec, spec["containers"][0]
        case "kserve":
            runtime = one(manifests, "ServingRuntime")["spec"]
            predictor = one(manifests, "InferenceService")["spec"]["predictor"]
            return {**predictor, "volumes": runtime["volumes"]}, runtime["containers"][0]
        case "kserve-llm":
            spec = one(manifests, "LLMInferenceService")["spec"]["template"]
            return spec, spec["containers"][0]


def crds_folder() -> Path | None:
    """The CRDs of KServe, KEDA, Prometheus and the Gateway API, where they lie beside the repository."""
    for parent in Path(__file__).resolve().parents:
        folder = parent / "shared" / "kubernetes" / "crds"
        if folder.is_dir():
            return folder
    return None
