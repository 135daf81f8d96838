"""What is rendered, in every combination: valid by Kubernetes' schemas and the CRDs, with all that production needs."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from deploy_cases import COMBINATIONS, Combination, crds_folder, one, rendered, server_pod
from fastapi.testclient import TestClient
from unit.server_fakes import FakeClient, FakeTokenizer, fake_config

from paceline.deploy.check import builtin
from paceline.deploy.check.crds import CrdSchemas
from paceline.deploy.check.documents import load_objects
from paceline.deploy.check.run import check_files
from paceline.deploy.folder import write_files
from paceline.deploy.quantity import to_bytes
from paceline.deploy.render import render
from paceline.deploy.values_file import load_values
from paceline.deploy.write import as_stream
from paceline.engine.statistics import EngineStats
from paceline.server.app import create_app
from paceline.server.metrics import Snapshot, render_metrics
from paceline.server.telemetry.telemetry import Telemetry

every_combination = pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: "-".join(map(str, c)))
GPU = "nvidia.com/gpu"


@cache
def builtin_faults(text: str) -> list[Any]:
    """Most objects are the same in several combinations."""
    return builtin.builtin_findings(json.loads(text), "1.36")


@cache
def crds() -> CrdSchemas:
    folder = crds_folder()
    if folder is None:
        pytest.skip("the CRDs are not beside the repository")
    return CrdSchemas.read(folder)


@cache
def crd_faults(text: str) -> list[Any]:
    return crds().findings(json.loads(text))


@every_combination
def test_kubernetes_takes_the_built_in_kinds(combination: Combination) -> None:
    pytest.importorskip("kubernetes_validate")
    for manifest in rendered(*combination).manifests:
        if builtin.is_builtin(manifest):
            assert not builtin_faults(json.dumps(manifest)), manifest["kind"]


@every_combination
def test_the_crds_take_the_custom_resources(combination: Combination) -> None:
    pytest.importorskip("cel")
    custom = [manifest for manifest in rendered(*combination).manifests if not builtin.is_builtin(manifest)]
    assert custom
    for manifest in custom:
        assert not crd_faults(json.dumps(manifest)), manifest["kind"]


@every_combination
def test_our_own_rules_find_nothing(combination: Combination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """volumeMounts, GPU request = limit, webhooks, quoting, probes, grace: the rules of check/, each tested there."""
    monkeypatch.setattr(builtin, "is_available", lambda: False)  # the schemas have a test of their own
    write_files(rendered(*combination), tmp_path / "out")
    report = check_files([tmp_path / "out"])
    assert not report.findings
    assert report.num_documents == len(rendered(*combination).manifests)


@every_combination
def test_probes_grace_and_security(combination: Combination) -> None:
    pod, server = server_pod(combination)
    startup, liveness, readiness = (server[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))
    assert 30 * 60 <= startup["failureThreshold"] * startup["periodSeconds"] <= 60 * 60
    assert liveness["timeoutSeconds"] >= 5
    assert liveness["periodSeconds"] > readiness["periodSeconds"]
    if combination[1:3] != ("kserve-llm", "vllm"):  # there the handlers are merged in from KServe's template
        paths = [probe["httpGet"]["path"] for probe in (startup, readiness, liveness)]
        live = ["/health/ready", "/health/ready", "/health/live"]  # live while it loads: startup must ask for ready
        assert paths == (live if combination[2] == "paceline" else ["/health"] * 3)
    sleep = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > sleep + (120 if "smoke" in combination[0] else 600)
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert server["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert server["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("probe", ["startup", "readiness", "liveness"])
def test_the_probes_ask_what_the_server_answers(probe: str) -> None:
    _, container = server_pod(("smoke-cpu", "kserve", "paceline", False))
    path = container[f"{probe}Probe"]["httpGet"]["path"]
    client = TestClient(create_app(FakeClient(), ["fake"], FakeTokenizer(), fake_config()))
    assert client.get(path).status_code == 200
    monitor = one(rendered("smoke-cpu", "kserve", "paceline").manifests, "ServiceMonitor")
    assert client.get(monitor["spec"]["endpoints"][0]["path"]).status_code == 200


@every_combination
def test_volumes_and_resources(combination: Combination) -> None:
    pod, server = server_pod(combination)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"
    assert "persistentVolumeClaim" in volumes[mounts["/cache"]["name"]]
    environment = {variable["name"]: variable.get("value") for variable in server["env"]}
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert environment["HOME"] in writable
    assert environment["TRITON_CACHE_DIR"].startswith("/cache/")
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert not [name for name, value in environment.items() if value and name.endswith(("TOKEN", "KEY"))]
    gpus = {"llama-70b-4xh100": "4", "llama-70b-1xh200": "1", "smoke-cpu": None}[combination[0]]
    requests, limits = server["resources"]["requests"], server["resources"]["limits"]
    assert requests.get(GPU) == limits.get(GPU) == gpus
    assert requests["memory"] == limits["memory"]
    assert to_bytes(limits["memory"]) > 2 * to_bytes(volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["sizeLimit"]) - 1


@every_combination
def test_rollout_never_needs_a_spare_gpu(combination: Combination) -> None:
    manifests = rendered(*combination).manifests
    match combination[1]:
        case "kubernetes":
            strategy = one(manifests, "Deployment")["spec"]["strategy"]["rollingUpdate"]
        case "kserve":
            predictor = one(manifests, "InferenceService")["spec"]["predictor"]
            strategy = predictor["deploymentStrategy"]["rollingUpdate"]
        case "kserve-llm":
            strategy = one(manifests, "LLMInferenceService")["spec"]["rolloutStrategy"]
    assert strategy == {"maxSurge": 0, "maxUnavailable": 1}


@every_combination
def test_every_selector_selects_the_server(combination: Combination) -> None:
    """Of Service, budget and policy: the labels that the platform's pods have; the monitor's: our Service."""
    manifests = rendered(*combination).manifests
    name = {"smoke-cpu": "smoke"}.get(combination[0], "llama-70b")
    expected = {
        "kubernetes": {"app.kubernetes.io/component": "server", "app.kubernetes.io/instance": name},
        "kserve": {"serving.kserve.io/inferenceservice": name},
        "kserve-llm": {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "llminferenceservice"},
    }[combination[1]]
    selectors = [
        one(manifests, "Service")["spec"]["selector"],
        one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(expected.items() <= selector.items() for selector in selectors)
    assert len({json.dumps(selector) for selector in selectors}) == 1
    if combination[1] == "kubernetes":
        deployment = one(manifests, "Deployment")["spec"]
        assert selectors[0] == deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
        assert selectors[0] != one(manifests, "Job")["spec"]["template"]["metadata"]["labels"]
    monitor = one(manifests, "ServiceMonitor")["spec"]
    service = one(manifests, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


@every_combination
def test_the_policy_admits_prometheus_and_the_gateway(combination: Combination) -> None:
    policy = one(rendered(*combination).manifests, "NetworkPolicy")["spec"]
    namespaces = {
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for peer in policy["ingress"][0]["from"]
        if "namespaceSelector" in peer
    }
    assert namespaces == ({"monitoring", "gateways", "clients"} if combination[3] else {"monitoring"})
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


@every_combination
def test_scaling_follows_users_and_not_gpus(combination: Combination) -> None:
    manifests, platform, runtime = rendered(*combination).manifests, combination[1], combination[2]
    text = as_stream(rendered(*combination))
    assert "DCGM" not in text
    assert "utilization" not in text.lower().replace("gpu-memory-utilization", "")
    queries = set(re.findall(rf"sum\({runtime}:(\w+)\{{", text))
    wanted = {"num_requests_waiting", "kv_cache_usage_perc"}
    if not combination[3]:
        assert not [manifest for manifest in manifests if manifest["kind"] == "ScaledObject"]
        return
    assert wanted <= queries
    if platform == "kubernetes":
        scaled = one(manifests, "ScaledObject")["spec"]
        assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 3)
        assert scaled["scaleTargetRef"]["name"] == one(manifests, "Deployment")["metadata"]["name"]
        assert "replicas" not in one(manifests, "Deployment")["spec"]
    elif platform == "kserve":
        service = one(manifests, "InferenceService")
        assert service["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] == "keda"
        assert len(service["spec"]["predictor"]["autoScaling"]["metrics"]) == 2
    else:
        spec = one(manifests, "LLMInferenceService")["spec"]
        assert len(spec["scaling"]["keda"]["triggers"]) == 2
        assert "replicas" not in spec


def test_every_metric_that_is_asked_for_exists() -> None:
    """Of Paceline's: an alert on a metric that nobody exports never fires."""
    snapshot = Snapshot(EngineStats(), Telemetry(), fake_config(), "m", engine_up=True)
    exported = set(re.findall(rb"^(paceline:\w+)", render_metrics(snapshot), re.MULTILINE))
    text = as_stream(rendered("llama-70b-4xh100", "kubernetes", "paceline", True))
    asked = {name.encode() for name in re.findall(r"paceline:\w+", text)} - {b"paceline:0"}
    asked -= {word for word in asked if re.fullmatch(rb"paceline:\d.*", word)}
    assert len(asked) >= 7
    assert asked <= exported


@every_combination
def test_alerts(combination: Combination) -> None:
    rule = one(rendered(*combination).manifests, "PrometheusRule")["spec"]["groups"][0]["rules"]
    names = {alert["alert"].removeprefix("Paceline") for alert in rule}
    assert names >= {"EngineDead", "EngineStuck", "AcceptanceCollapsed", "QueueGrowing", "KvCacheFull"}
    service = one(rendered(*combination).manifests, "Service")["metadata"]["name"]
    assert all(f'service="{service}"' in alert["expr"] and alert["for"] for alert in rule)
    other = {"paceline": "vllm:", "vllm": "paceline:"}[combination[2]]
    assert not [alert for alert in rule if other in alert["expr"]]


@pytest.mark.parametrize("combination", [c for c in COMBINATIONS if c[0] == "smoke-cpu" and c[3]], ids=str)
def test_the_same_values_give_the_same_bytes(combination: Combination, tmp_path: Path) -> None:
    first = as_stream(rendered(*combination))
    assert as_stream(rendered.__wrapped__(*combination)) == first
    assert "&id" not in first
    files = write_files(rendered(*combination), tmp_path / "out").files
    documents = [content for file in files for content in load_objects(file) if file.name != "kustomization.yaml"]
    assert documents == list(rendered(*combination).manifests)


def test_a_changed_option_is_one_changed_line() -> None:
    values = {"image": "registry.example.com/paceline:0.1.0"}
    texts = [
        as_stream(
            render(
                load_values(None, "paceline", "llama-70b-1xh200", {**values, "engine": {"max_model_len": length}}),
                "kserve",
                "paceline",
            )
        ).splitlines()
        for length in (8192, 4096)
    ]
    assert len(texts[0]) == len(texts[1])
    assert sum(one != other for one, other in zip(*texts, strict=True)) == 1


def test_what_must_be_there_first_is_said() -> None:
    notes = " ".join(rendered("llama-70b-4xh100", "kserve", "paceline").notes)
    assert "Secret 'hub-token' with the key 'token'" in notes
    assert "No route" in notes
    assert "No route" not in " ".join(rendered("llama-70b-4xh100", "kserve", "paceline", True).notes)


def test_kserve_mounts_both_models_and_llm_mounts_the_draft_beside() -> None:
    predictor = one(rendered("llama-70b-4xh100", "kserve", "vllm").manifests, "InferenceService")["spec"]["predictor"]
    assert predictor["storageUris"] == [
        {"uri": "pvc://llama-70b-models/meta-llama-3.1-70b-instruct-fp8-dynamic", "mountPath": "/mnt/models"},
        {"uri": "pvc://llama-70b-models/llama-3.2-1b-instruct", "mountPath": "/mnt/draft"},
    ]
    assert "storageUri" not in predictor["model"]
    pod, server = server_pod(("llama-70b-4xh100", "kserve-llm", "vllm", False))
    draft = next(mount for mount in server["volumeMounts"] if mount["mountPath"] == "/mnt/draft")
    assert draft == {
        "name": "models", "mountPath": "/mnt/draft", "subPath": "llama-3.2-1b-instruct", "readOnly": True,
    }  # fmt: skip
    assert "models" in {volume["name"] for volume in pod["volumes"]}
