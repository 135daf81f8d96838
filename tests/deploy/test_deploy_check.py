"""paceline deploy check: each rule, shown on a manifest that breaks it and nothing else."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_cases import crds_folder, one, rendered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.deploy.check import builtin, check_files
from paceline.deploy.check.crds import CrdSchemas, unknown_fields, with_defaults
from paceline.deploy.check.server import server_dry_run
from paceline.errors import ConfigurationError
from paceline.runtimes.vllm.gone import GONE
from paceline.runtimes.vllm.speculation import FLAT

Json = dict[str, Any]
Change = Callable[[Json], Any]


@pytest.fixture(autouse=True)
def _own_rules_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemas of Kubernetes' own kinds take a while, and have tests of their own."""
    if "schemas" not in request.keywords:
        monkeypatch.setattr(builtin, "is_available", lambda: False)


def found(tmp_path: Path, *contents: Json, **options: Any) -> list[str]:
    """'level path: message' of everything that is found."""
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(contents))
    report = check_files([file], **options)
    return [f"{finding.level} {finding.path}: {finding.message}" for _, finding in report.findings]


def manifest(kind: str, platform: Any = "kubernetes", runtime: Any = "paceline", full: bool = False) -> Json:
    return copy.deepcopy(one(rendered("llama-70b-4xh100", platform, runtime, full).manifests, kind))


def deployment() -> tuple[Json, Json, Json]:
    whole = manifest("Deployment")
    pod = whole["spec"]["template"]["spec"]
    return whole, pod, pod["containers"][0]


POD_RULES: list[tuple[Callable[[Json, Json], Any], str]] = [
    (lambda pod, c: pod["volumes"].pop(0), "'shm' is mounted at /dev/shm, and the pod has no such volume"),
    (lambda pod, c: c["volumeMounts"].append({"name": "tmp", "mountPath": "/cache"}), "two volumes are mounted at"),
    (lambda pod, c: c["resources"]["requests"].update({"nvidia.com/gpu": "3"}), "the request (3) must equal"),
    (lambda pod, c: c["resources"]["limits"].pop("nvidia.com/gpu"), "the request (4) must equal the limit (None)"),
    (lambda pod, c: c["resources"]["limits"].update(memory="16Gi"), "count towards it"),
    (lambda pod, c: pod["volumes"][0]["emptyDir"].pop("medium"), "needs medium: Memory"),
    (lambda pod, c: c["volumeMounts"].pop(-4), "no /dev/shm of its own"),
    (lambda pod, c: c.pop("startupProbe"), "has no startupProbe"),
    (lambda pod, c: c["startupProbe"].update(failureThreshold=60), "less than 30 minutes"),
    (lambda pod, c: c["livenessProbe"].update(timeoutSeconds=1), "waits less than 5 s"),
    (lambda pod, c: c["livenessProbe"].pop("httpGet"), "says when to ask and not what"),
    (lambda pod, c: pod.update(terminationGracePeriodSeconds=15), "nothing is left to finish requests"),
    (lambda pod, c: pod.update(terminationGracePeriodSeconds=30), "longer answers are cut"),
    (lambda pod, c: c.pop("lifecycle"), "has no preStop sleep"),
    (lambda pod, c: pod.pop("enableServiceLinks"), "would set VLLM_PORT"),
    (lambda pod, c: (pod.pop("securityContext"), c.pop("securityContext")), "may run as root"),
    (lambda pod, c: c.update(image="paceline"), "names no version"),
    (lambda pod, c: c.update(image="registry:5000/paceline:latest"), "names no version"),
]


@pytest.mark.parametrize(("change", "message"), POD_RULES, ids=[message[:25] for _, message in POD_RULES])
def test_rules_over_pods(change: Callable[[Json, Json], Any], message: str, tmp_path: Path) -> None:
    whole, pod, container = deployment()
    assert not found(tmp_path, whole)
    change(pod, container)
    assert any(message in line for line in found(tmp_path, whole))


@pytest.mark.parametrize(
    ("args", "used"),
    [
        (["--tensor-parallel-size", "4"], None),
        (["--tensor-parallel-size", "2"], 2),
        (["--tensor-parallel-size=8"], 8),
        (["-tp", "4", "-pp", "2"], 8),
        (["--tensor_parallel_size", "2", "--pipeline-parallel-size", "2"], None),
        (["--tensor-parallel-size", "8", "--distributed-executor-backend", "ray"], None),
        (["--tensor-parallel-size", "8", "--nnodes", "2"], None),
        (["--runtime", "vllm", "--tensor-parallel-size", "8", "--nodes", "2"], None),
        (["--tensor-parallel-size", "$(TP)"], None),
        ([], None),
    ],
)
def test_gpus_that_a_command_uses(args: list[str], used: int | None, tmp_path: Path) -> None:
    whole, _, container = deployment()
    container.update(command=["vllm", "serve", "/mnt/models"], args=args)
    lines = [line for line in found(tmp_path, whole) if "the command makes" in line]
    assert len(lines) == (used is not None)
    assert all(line.startswith("error") and f"the server use {used}." in line for line in lines)


@pytest.mark.parametrize("spec", [None, {}, {"template": None}, {"template": {"spec": {"containers": []}}}])
def test_a_deployment_of_nothing(spec: Any, tmp_path: Path) -> None:
    whole, _, _ = deployment()
    assert "error $.spec.template.spec: has no containers." in found(tmp_path, {**whole, "spec": spec})


def test_a_digest_is_a_version(tmp_path: Path) -> None:
    whole, _, container = deployment()
    container["image"] = "registry:5000/paceline@sha256:" + "a" * 64
    assert not found(tmp_path, whole)


def test_a_mount_of_the_runtimes_volumes(tmp_path: Path) -> None:
    """An InferenceService has its volumes in the ServingRuntime that it names."""
    runtime, service = manifest("ServingRuntime", "kserve"), manifest("InferenceService", "kserve")
    assert not found(tmp_path, runtime, service)
    del runtime["spec"]["volumes"][-1]
    assert any("'models' is mounted at" in line for line in found(tmp_path, runtime, service))
    assert not found(tmp_path, service)  # the runtime may be in the cluster


def predictor(change: Change) -> Json:
    service = manifest("InferenceService", "kserve")
    change(service["spec"]["predictor"])
    return service


def llm(change: Change, runtime: str = "vllm") -> Json:
    service = manifest("LLMInferenceService", "kserve-llm", runtime)
    change(service["spec"])
    return service


def env(spec: Json, name: str) -> Json:
    container = spec["template"]["containers"][0]
    return next(variable for variable in container["env"] if variable["name"] == name)


def gpus(spec: Json, count: str) -> None:
    for kind in spec["template"]["containers"][0]["resources"].values():
        kind["nvidia.com/gpu"] = count


def draft_ranks(spec: Json, size: int) -> None:
    variable = env(spec, "VLLM_ADDITIONAL_ARGS")
    variable["value"] = variable["value"].replace(
        '"num_speculative_tokens":5', f'"num_speculative_tokens":5,"draft_tensor_parallel_size":{size}'
    )


S3 = [{"uri": "s3://b/target", "mountPath": "/mnt/models/a"}, {"uri": "s3://b/draft", "mountPath": "/mnt/models/b"}]
WEBHOOKS: list[tuple[Json, str | None]] = [
    (predictor(lambda p: p["model"].update(storageUri="pvc://a/b")), "exclude each other"),
    (predictor(lambda p: p["storageUris"][0].update(path="/mnt/models")), "called mountPath, not path"),
    (predictor(lambda p: p["storageUris"][0].update(mountPath="models")), "must be an absolute folder"),
    (predictor(lambda p: p["storageUris"][0].update(mountPath="/")), "must be an absolute folder"),
    (predictor(lambda p: p["storageUris"][0].update(mountPath="/mnt/draft")), "two models would be mounted"),
    (predictor(lambda p: p.update(storageUris=S3)), None),
    (predictor(lambda p: p.update(storageUris=[S3[0], {**S3[1], "mountPath": "/mnt/x/b"}])), "share one parent"),
    (predictor(lambda p: p.update(storageUris=[S3[0], {"uri": "pvc://c/d", "mountPath": "/d"}])), None),
    (predictor(lambda p: (p.update(workerSpec={}), p.pop("storageUris"))), "need a storageUri of pvc:// or oci://"),
    (
        predictor(
            lambda p: (p.update(workerSpec={}), p.pop("storageUris"), p["model"].update(storageUri="oci://r/m:1"))
        ),
        None,
    ),
    (llm(lambda s: s["parallelism"].update(data=2)), "data and dataLocal come together"),
    (llm(lambda s: s["parallelism"].update(data=2, dataLocal=1)), None),
    (llm(lambda s: s["parallelism"].update(data=2, dataLocal=1, pipeline=2)), "pipeline and data exclude"),
    (llm(lambda s: s["parallelism"].update(tensor=0)), "must be at least 1"),
    (llm(lambda s: s["model"].update(name="{{ .x }}")), "Go template"),
    (
        llm(lambda s: env(s, "VLLM_ADDITIONAL_ARGS").update(value='--speculative-config {"method": "ngram"}')),
        "no JSON: put it in single quotes",
    ),
    (
        llm(lambda s: env(s, "VLLM_ADDITIONAL_ARGS").update(value='--speculative-config \'{"method": "ngram"}\'')),
        None,
    ),
    (llm(lambda s: env(s, "VLLM_ADDITIONAL_ARGS").update(value="--x 'y")), "cannot be read by a shell"),
    (
        llm(lambda s: s["template"]["containers"][0].update(args=["--speculative-config", '{"method": "ngram"}'])),
        "takes the quotes off",
    ),
    (
        llm(lambda s: env(s, "VLLM_ADDITIONAL_ARGS").update(value="--speculative-model x --num-speculative-tokens 5")),
        "was removed from vLLM",
    ),
    (llm(lambda s: s["model"].update(name="a b")), "through a shell"),
    (llm(lambda s: s["model"].update(name="$(touch F)")), "through a shell"),
    (llm(lambda s: s["model"].update(name="-x")), "through a shell"),
    (llm(lambda s: s["model"].update(name="org/a-b.1:8b@v+1_c")), None),
    (llm(lambda s: s["model"].update(name="a b"), "paceline"), None),
    (llm(lambda s: None, "paceline"), None),
    (llm(lambda s: None), None),
    (llm(lambda s: gpus(s, "2")), "nvidia.com/gpu is 2, and parallelism makes vLLM use 4"),
    (llm(lambda s: s["parallelism"].update(tensor=2)), "nvidia.com/gpu is 4, and parallelism makes vLLM use 2"),
    (
        llm(lambda s: (draft_ranks(s, 4), s["parallelism"].update(tensor=2, data=4, dataLocal=2))),
        "draft_tensor_parallel_size is 4",
    ),
    (llm(lambda s: draft_ranks(s, 1)), "draft_tensor_parallel_size is 1 and parallelism.tensor 4"),
    (llm(lambda s: (draft_ranks(s, 2), gpus(s, "2"), s["parallelism"].update(tensor=2))), None),
]


@pytest.mark.parametrize(("service", "message"), WEBHOOKS, ids=[str(i) for i in range(len(WEBHOOKS))])
def test_what_kserves_webhooks_refuse_and_what_it_breaks(service: Json, message: str | None, tmp_path: Path) -> None:
    lines = [line for line in found(tmp_path, service) if line.startswith("error")]
    assert not lines if message is None else any(message in line for line in lines)


@pytest.mark.parametrize("name", [*GONE, *FLAT])
def test_every_removed_flag_is_known(name: str, tmp_path: Path) -> None:
    for flag in (f"--{name}", f"--{name.replace('_', '-')}=x"):
        service = llm(lambda s, flag=flag: env(s, "VLLM_ADDITIONAL_ARGS").update(value=f"--seed 1 '{flag}'"))
        assert any(f"{flag.partition('=')[0]} was removed from vLLM" in line for line in found(tmp_path, service))


@pytest.mark.parametrize(
    ("annotations", "level"),
    [({"serving.kserve.io/deploymentMode": "RawDeployment"}, "warning"),
     ({"serving.kserve.io/deploymentMode": "Raw"}, "error")],
)  # fmt: skip
def test_deployment_modes(annotations: Json, level: str, tmp_path: Path) -> None:
    service = manifest("InferenceService", "kserve")
    service["metadata"]["annotations"] |= annotations
    assert [line.split()[0] for line in found(tmp_path, service)] == [level]


def test_an_object_given_twice(tmp_path: Path) -> None:
    service = manifest("Service")
    lines = found(tmp_path, service, service)
    assert len(lines) == 1
    assert "the same object is in" in lines[0]
    other = copy.deepcopy(service)
    other["metadata"]["namespace"] = "elsewhere"
    assert not found(tmp_path, service, other)


def test_several_nodes_need_autoscaler_class_none(tmp_path: Path) -> None:
    service = manifest("InferenceService", "kserve", full=True)
    spec = service["spec"]["predictor"]
    spec |= {"workerSpec": {}}
    del spec["storageUris"]
    spec["model"]["storageUri"] = "pvc://a/b"
    assert any("autoscalerClass: none" in line for line in found(tmp_path, service))


def test_a_service_named_after_the_runtime(tmp_path: Path) -> None:
    service = manifest("Service")
    service["metadata"]["name"] = "vllm"
    assert any("VLLM_PORT" in line for line in found(tmp_path, service))


def test_a_monitor_that_finds_no_port_or_no_service(tmp_path: Path) -> None:
    service, monitor = manifest("Service"), manifest("ServiceMonitor")
    assert not found(tmp_path, service, monitor)
    service["spec"]["ports"][0]["name"] = "web"
    assert any("no port of the Service" in line for line in found(tmp_path, service, monitor))
    service["metadata"]["labels"] = {}
    assert any("selects none" in line for line in found(tmp_path, service, monitor))


@pytest.mark.parametrize(
    ("kind", "platform", "change", "message"),
    [
        ("LLMInferenceService", "kserve-llm", lambda s: s["parallelism"].update(tensor=8), "goes from 4 to 8"),
        ("Deployment", "kubernetes", lambda s: s["selector"]["matchLabels"].update(a="b"), "cannot be changed"),
        ("Job", "kubernetes", lambda s: s["template"]["spec"].update(restartPolicy="Never"), "delete the finished Job"),
    ],
)
def test_what_cannot_be_changed_in_place(
    kind: str, platform: str, change: Change, message: str, tmp_path: Path
) -> None:
    before = manifest(kind, platform, "vllm")
    after = copy.deepcopy(before)
    previous = tmp_path / "previous.yaml"
    previous.write_text(yaml.safe_dump(before))
    assert not [line for line in found(tmp_path, after, previous=previous) if line.startswith("error")]
    change(after["spec"])
    assert any(message in line for line in found(tmp_path, after, previous=previous))


def test_an_object_of_another_shape_is_a_finding(tmp_path: Path) -> None:
    whole, pod, _ = deployment()
    pod["containers"] = [{"name": "x", "image": "a:1", "volumeMounts": ["no mapping"]}]
    assert any("is not shaped as a Deployment" in line for line in found(tmp_path, whole))


@pytest.mark.parametrize("key", ["containers", "volumes", "initContainers"])
def test_an_object_of_another_shape_says_nothing_about_others(key: str, tmp_path: Path) -> None:
    whole, pod, _ = deployment()
    pod[key] = 5
    others = [manifest(kind) for kind in ("Service", "PodDisruptionBudget", "ServiceMonitor", "NetworkPolicy")]
    lines = found(tmp_path, whole, *others)
    assert [line for line in lines if "is not shaped" in line] == [
        "error $: is not shaped as a Deployment is: somewhere a list, a mapping or a text is another."
    ]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
KINDS = [("Deployment", "kubernetes"), ("Service", "kubernetes"), ("ServiceMonitor", "kubernetes"),
         ("InferenceService", "kserve"), ("LLMInferenceService", "kserve-llm"), ("Job", "kserve")]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(KINDS), value=ANYTHING)
def test_no_shape_ends_in_a_traceback(data: st.DataObject, kind: tuple[str, Any], value: Any, tmp_path: Path) -> None:
    """Any part of a manifest replaced by anything: findings, or a message that it is no manifest."""
    content = manifest(*kind, runtime="vllm")
    place: Any = content
    for _ in range(data.draw(st.integers(0, 7))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key]:
            break
        place = place[key]
    place[data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))] = value
    with contextlib.suppress(ConfigurationError):
        found(tmp_path, content, manifest("Service"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No manifests"),
        ("a: [", "cannot be read"),
        ("a: 1", "no apiVersion and kind"),
        ("- 1", "no apiVersion and kind"),
        ("kind: A\nkind: B\napiVersion: v1\n", "'kind' is there twice"),
    ],
)
def test_files_that_are_no_manifests(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        check_files([tmp_path / "x.yaml"])


def test_lists_json_and_folders(tmp_path: Path) -> None:
    service = manifest("Service")
    (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, service]}))
    (tmp_path / "kustomization.yaml").write_text("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
    assert check_files([tmp_path]).num_documents == 2


def test_what_was_not_checked_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(manifest("InferenceService", "kserve")))
    notes = check_files([tmp_path / "x.yaml"]).notes
    assert any("InferenceService" in note and "--crds" in note for note in notes)


@pytest.mark.schemas
def test_kubernetes_own_schemas_are_strict(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate")
    service = manifest("Service")
    assert not found(tmp_path, service)
    service["spec"]["prots"] = []
    assert any("prots" in line for line in found(tmp_path, service))
    service["apiVersion"] = "v9"
    assert any("has no Service in v9" in line for line in found(tmp_path, service))
    with pytest.raises(ConfigurationError, match="not known here"):
        found(tmp_path, manifest("Service"), kubernetes_version="9.99")


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "x-kubernetes-validations": [
                                    {"rule": "self.size <= self.most", "message": "too large"},
                                    {"rule": "self.size == oldSelf.size"},
                                    {"rule": "!has(self.note) || self.note.text != ''"},
                                ],
                                "properties": {
                                    "size": {"type": "integer"},
                                    "most": {"type": "integer", "default": 3},
                                    "maybe": {"type": "string", "nullable": True},
                                    "either": {
                                        "x-kubernetes-int-or-string": True,
                                        "anyOf": [{"type": "integer"}, {"type": "string"}],
                                    },
                                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "note": {"type": "object", "properties": {"text": {"type": "string"}}},
                                    "items": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["name"],
                                        "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"size": 1, "maybe": None, "either": "5%", "free": {"a": {"b": 1}}, "labels": {"x": "y"}}, None),
        ({"size": 1, "sise": 1}, "unknown field 'sise'"),
        ({"size": 1, "items": [{"name": "a", "nmae": "b"}]}, "unknown field 'nmae'"),
        ({}, "'size' is a required property"),
        ({"size": "1"}, "not of type 'integer'"),
        ({"size": 1, "labels": {"x": 1}}, "not of type 'string'"),
        ({"size": 1, "items": [{"name": "a"}, {"name": "a"}]}, "'a' is there twice"),
        ({"size": 4}, "too large"),  # against the default of 3
        ({"size": 4, "most": 5}, None),
        ({"size": 1, "note": {}}, "reads the field 'text'"),
    ],
)
def test_custom_resources(spec: Json, message: str | None, tmp_path: Path) -> None:
    pytest.importorskip("cel")
    crds = tmp_path / "crds.yaml"
    crds.write_text(yaml.safe_dump(CRD))
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x", "labels": {}}, "spec": spec}
    lines = found(tmp_path, thing, crds=crds)
    assert not lines if message is None else len(lines) == 1 and message in lines[0]


def test_a_kind_that_the_crds_do_not_have(tmp_path: Path) -> None:
    (tmp_path / "crds.yaml").write_text(yaml.safe_dump(CRD))
    version = CRD["spec"]["group"] + "/" + CRD["spec"]["versions"][0]["name"]
    kind = CRD["spec"]["names"]["kind"]
    content = {"apiVersion": version, "kind": f"{kind}s", "metadata": {"name": "a"}, "spec": {}}
    lines = found(tmp_path, content, crds=tmp_path / "crds.yaml")
    assert any(f"has no {kind}s in these CRDs. Did you mean '{kind}'?" in line for line in lines), lines


def test_crds_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        CrdSchemas.read(tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no CustomResourceDefinition"):
        CrdSchemas.read(tmp_path)


def test_defaults_fill_only_what_is_absent() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {"properties": {"c": {"default": 2}}}}}
    assert with_defaults(schema, {"a": None, "b": {}}) == {"a": None, "b": {"c": 2}}
    assert with_defaults(schema, {}) == {"a": 1}
    assert list(unknown_fields(schema, {"d": 1})) == [("d", "d")]


@pytest.mark.parametrize("change", [
    lambda s: None,
    lambda s: s["template"].update(volumez=[]),
    lambda s: s["template"]["containers"][0].update(args="text"),
    lambda s: s.update(replicas=2, scaling={"maxReplicas": 2, "keda": {"triggers": []}}),
    lambda s: s["model"].pop("uri"),
])  # fmt: skip
def test_agrees_with_the_reference_validator(change: Change) -> None:
    """Where the CRDs lie beside the repository, so does a validator of somebody else's making."""
    folder = crds_folder()
    if folder is None or not (folder.parent / "crd_schema.py").is_file():
        pytest.skip("the reference validator is not beside the repository")
    pytest.importorskip("cel")
    specification = importlib.util.spec_from_file_location("crd_schema", folder.parent / "crd_schema.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    service = llm(change)
    file = folder / "llminferenceservices.serving.kserve.io.json"
    assert bool(CrdSchemas.read(file).findings(service)) == bool(module.Crds(folder).errors(service))


def test_the_clusters_dry_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess

    commands: list[Any] = []

    def run(command: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "Error: strict decoding error\n\n")

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    (tmp_path / "kustomization.yaml").write_text("")
    assert server_dry_run([tmp_path, tmp_path / "x.yaml"], "prod", run) == ["Error: strict decoding error"]
    assert commands[0] == [
        "kubectl", "apply", "--dry-run=server", "--validate=strict", "--context", "prod",
        "-k", str(tmp_path), "-f", str(tmp_path / "x.yaml"),
    ]  # fmt: skip

    def unreachable(command: Any) -> subprocess.CompletedProcess[str]:
        text = "error: failed to download openapi: dial tcp 127.0.0.1:8080: connect: connection refused\n"
        return subprocess.CompletedProcess(command, 1, "", text)

    with pytest.raises(ConfigurationError, match="could not be asked"):  # exit status 2, not 1
        server_dry_run([tmp_path], None, unreachable)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigurationError, match="needs kubectl"):
        server_dry_run([tmp_path])
