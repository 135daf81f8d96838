"""paceline deploy check: what an API server refuses, and what it takes and then does not work, of every kind of rule.

Each case changes one thing of a rendered set of manifests that has no findings; the message is looked for.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_cases import PLATFORMS, RUNTIMES, rendered
from hypothesis import given
from hypothesis import strategies as st

from paceline.deploy.check import builtin, check_files, kustomize, promql
from paceline.deploy.check.field_values import CHOICES, RANGES, value_findings
from paceline.deploy.check.shell_words import acts_in_shell
from paceline.deploy.folder import write_files
from paceline.deploy.names import wrong_key, wrong_label, wrong_port_name, wrong_value
from paceline.deploy.quantity import amount, to_bytes
from paceline.errors import ConfigurationError

Json = dict[str, Any]
TOKEN = "hf_" + "a1B2" * 8  # of the form alone


@pytest.fixture(autouse=True)
def _own_rules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schemas of Kubernetes' own kinds take a while; promtool is asked in tests of its own."""
    monkeypatch.setattr(builtin, "is_available", lambda: False)
    monkeypatch.setattr(promql, "has_promtool", lambda: False)


class Manifests:
    """Those of one deployment, by kind, with short ways to the parts that tests change."""

    def __init__(self, platform: Any = "kubernetes", runtime: Any = "paceline") -> None:
        self.all = copy.deepcopy(rendered("llama-70b-4xh100", platform, runtime, True).manifests)

    def __getitem__(self, kind: str) -> Json:
        return next(manifest for manifest in self.all if manifest["kind"] == kind)

    @property
    def pod(self) -> Json:
        spec: Json = self["Deployment"]["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Json:
        container: Json = self.pod["containers"][0]
        return container

    @property
    def main(self) -> Json:
        container: Json = self["LLMInferenceService"]["spec"]["template"]["containers"][0]
        return container

    def lines(self, tmp_path: Path) -> list[str]:
        (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*self.all]}))
        report = check_files([tmp_path / "all.json"])
        return [f"{finding.level} {finding.path}: {finding.message}" for _, finding in report.findings]


Change = Callable[[Manifests], Any]


def env(*variables: Json) -> Change:
    return lambda m: m.container["env"].extend(variables)


def service_port(**port: Any) -> Change:
    return lambda m: m["Service"]["spec"]["ports"][0].update(port)


def limits(name: str, value: Any) -> Change:
    return lambda m: m.container["resources"]["limits"].update({name: value})


CASES: dict[str, list[tuple[Change, str]]] = {
    "numbers": [
        (lambda m: m["Deployment"]["spec"].update(replicas=-1), "-1 must be between 0"),
        (lambda m: m["Deployment"]["spec"].update(replicas=2**31), "must be between 0"),
        (lambda m: m.pod["securityContext"].update(runAsUser=2**31), "must be between 0"),
        (lambda m: m.container["ports"][0].update(containerPort=70000), "must be between 1 and 65535"),
        (lambda m: m.container["livenessProbe"].update(periodSeconds=0), "must be between 1"),
        (lambda m: m.container["livenessProbe"].update(successThreshold=2), "must be 1"),
        (lambda m: m["ScaledObject"]["spec"].update(minReplicaCount=9), "is more than maxReplicaCount, 3"),
        (lambda m: m["Deployment"]["spec"]["strategy"]["rollingUpdate"].update(maxUnavailable=0), "are both 0"),
        (lambda m: m["Deployment"]["spec"]["strategy"]["rollingUpdate"].update(maxUnavailable="0%"), "are both 0"),
        (lambda m: m["Deployment"]["spec"]["strategy"].update(type="Recreate"), "takes no rollingUpdate"),
        (lambda m: m["PodDisruptionBudget"]["spec"].update(minAvailable=1), "exclude each other"),
        (lambda m: m["PodDisruptionBudget"]["spec"].update(maxUnavailable=0), "waits for ever"),
    ],
    "choices": [
        (lambda m: m.container.update(imagePullPolicy="Allways"), "Did you mean 'Always'?"),
        (lambda m: m.container["ports"][0].update(protocol="tcp"), "'tcp' does not exist"),
        (lambda m: m["Service"]["spec"].update(type="Loadbalancer"), "Did you mean 'LoadBalancer'?"),
        (lambda m: m["PersistentVolumeClaim"]["spec"].update(accessModes=["ReadWriteMny"]), "'ReadWriteMny' does not"),
        (lambda m: m["Job"]["spec"]["template"]["spec"].update(restartPolicy="Always"), "OnFailure or Never"),
        (lambda m: m["Job"]["spec"]["template"]["spec"].pop("restartPolicy"), "is missing, which means Always"),
        (lambda m: m.pod.update(restartPolicy="Never"), "'Never' is not possible here: Always"),
    ],
    "quantities": [
        (limits("memory", "12Gx"), "'12Gx' is no quantity"),
        (limits("memory", "-1Gi"), "must not be negative"),
        (limits("memory", "9999999999Ti"), "more than any machine has"),
        (limits("memory", "128m"), "is 'Mi' meant"),
        (limits("memory", "100Gi"), "memory: the request (192Gi) is more than the limit (100Gi)"),
        (limits("cpu", 1), "cpu: the request (32) is more than the limit (1)"),
        (limits("gpu", "1"), "there is no resource 'gpu'"),
        (lambda m: m.pod["volumes"][2]["emptyDir"].update(sizeLimit="1 Gi"), "'1 Gi' is no quantity"),
        (
            lambda m: m["PersistentVolumeClaim"]["spec"]["resources"]["requests"].update(storage="150GB"),
            "'150GB' is no quantity",
        ),
    ],
    "names": [
        (lambda m: m["Service"]["metadata"].update(name="a" * 64), "has 64 characters; at most 63"),
        (lambda m: m["Service"]["metadata"].update(name="9lives"), "beginning with a letter"),
        (lambda m: m["Deployment"]["metadata"].update(name="My_Model"), "the name of a Deployment must be"),
        (lambda m: m["Job"]["metadata"].update(name="j" * 64), "at most 63"),
        (lambda m: m["Deployment"]["metadata"].update(namespace="a.b"), "'a.b' must be"),
        (lambda m: m["Deployment"]["metadata"]["labels"].update(a="a b"), "'a b' must be at most 63 letters"),
        (lambda m: m["Deployment"]["metadata"]["labels"].update({"a b": "c"}), "the key 'a b'"),
        (lambda m: m["ServiceMonitor"]["metadata"]["labels"].update(a=True), 'write it in quotes, such as "true"'),
        (lambda m: m.pod["nodeSelector"].update(zone="a/b"), "'a/b' must be at most 63 letters"),
        (lambda m: m["Service"]["spec"]["selector"].update(a="-"), "'-' must be at most"),
        (lambda m: m["Deployment"]["metadata"].update(annotations={"a": 1}), "is no text"),
        (lambda m: m.container.update(name="The_Server"), "'The_Server' must be"),
        (lambda m: m.container.update(name="wait-for-models"), "two containers are called 'wait-for-models'"),
        (lambda m: m.pod["volumes"].append(m.pod["volumes"][0]), "two volumes are called 'shm'"),
    ],
    "ports": [
        (lambda m: m.container["ports"].append(m.container["ports"][0]), "port 8000 (TCP) is there twice"),
        (lambda m: m.container["ports"].append({"name": "http", "containerPort": 1}), "two ports are called 'http'"),
        (lambda m: m.container["ports"][0].update(name="a-name-of-sixteen"), "at most 15"),
        (lambda m: m.container["readinessProbe"]["httpGet"].update(port="htpt"), "Did you mean 'http'?"),
        (lambda m: m.container["lifecycle"].update(postStart={"httpGet": {"port": "x"}}), "'x' is no port"),
        (lambda m: m.container["readinessProbe"].update(tcpSocket={"port": 1}), "asks in several ways"),
        (lambda m: m.pod["containers"].append({**m.container, "name": "b"}), "two containers have port 8000"),
        (service_port(targetPort="htpt"), "'htpt' is no port of the pods it selects. Did you mean 'http'?"),
        (service_port(targetPort=8001), "no container of the pods it selects has port 8001"),
        (lambda m: m["Service"]["spec"]["ports"].append({"port": 80}), "needs a name"),
        (lambda m: m["Service"]["spec"]["ports"].append({"port": 80, "name": "b"}), "port 80 (TCP) is there twice"),
        (lambda m: m["Service"]["spec"]["ports"].append({"port": 81, "name": "http"}), "two ports are called 'http'"),
        (lambda m: m["Service"]["spec"].update(ports=[]), "$.spec.ports: is missing"),
    ],
    "selection": [
        (lambda m: m["Service"]["spec"]["selector"].update(a="b"), "the Service would reach nothing"),
        (lambda m: m["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].update(a="b"), "selects none"),
        (lambda m: m["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].update(a="b"), "selects none"),
        (lambda m: m["Deployment"]["spec"]["selector"]["matchLabels"].update(a="b"), "the pods of its own template"),
        (lambda m: m["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0].update(port=81), "has no port 81"),
        (lambda m: m["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0].update(name="x"), "no Service 'x' is among"),
        (lambda m: m["ScaledObject"]["spec"]["scaleTargetRef"].update(name="x"), "no Deployment 'x' is among"),
    ],
    "environment and mounts": [
        (env({"name": "A", "value": "1"}, {"name": "A", "value": "2"}), "'A' is there twice"),
        (env({"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}), "give one"),
        (env({"name": "A=B", "value": "1"}), "no name of a variable"),
        (lambda m: m.container["volumeMounts"].append({"name": "nope", "mountPath": "/x"}), "no such volume"),
        (lambda m: m.container["volumeMounts"][0].update(subPath="a/../.."), "must stay inside the volume"),
        (lambda m: m.container["volumeMounts"][0].update(mountPath="models"), "must be an absolute folder"),
        (lambda m: m.pod["volumes"][0].update(configMap={"name": "a"}), "has several sources"),
        (lambda m: m.container.update(image="a b:1"), "no name of an image"),
    ],
    "security": [
        (lambda m: m.container["securityContext"].update(privileged=True), "is root on the node"),
        (lambda m: m.container["securityContext"].update(privileged=True), "exclude each other"),
        (lambda m: m.pod["securityContext"].update(runAsUser=0), "would never start"),
        (lambda m: m.pod.update(hostNetwork=True), "reaches into its node"),
        (lambda m: m.pod["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "hostPath (h)"),
    ],
    "secrets": [
        (env({"name": "X", "value": TOKEN}), "holds a token of Hugging Face"),
        (lambda m: m.container["args"].append(f"--x={TOKEN}"), "holds a token of Hugging Face"),
        (lambda m: m["Deployment"]["metadata"].update(annotations={"a": TOKEN}), "holds a token of Hugging Face"),
        (env({"name": "MY_API_KEY", "value": "abc"}), "'MY_API_KEY' stands here for all to read"),
        (lambda m: m.container["args"].extend(["--api-key", "abc"]), "--api-key stands here"),
    ],
    "queries": [
        (lambda m: m["ScaledObject"]["spec"]["triggers"][0]["metadata"].update(query="sum("), "'(' is not closed"),
        (lambda m: m["PrometheusRule"]["spec"]["groups"][0]["rules"][0].update(expr="up >"), "is no PromQL"),
        (lambda m: m["PrometheusRule"]["spec"]["groups"][0]["rules"][0].update(expr=""), "is no PromQL"),
        (lambda m: m["PrometheusRule"]["spec"]["groups"][0]["rules"][0].update({"for": "5 min"}), "no duration"),
    ],
}  # fmt: skip
CASES["server"] = [
    (lambda m: m.container.pop("image"), "image: is missing"),
    (lambda m: m.container["livenessProbe"]["httpGet"].update(port=9000), "asks port 9000, and the server listens on"),
    (lambda m: m.container.update(args=["--port=9000"]), "asks port 8000, and the server listens on 9000"),
    (lambda m: m.container.update(args=["--port=9000"]), "none is 9000, on which the server listens"),
    (lambda m: m.container.update(args=["--speculative-config", "{method: ngram}"]), "no JSON object"),
    (lambda m: m.container["command"].__setitem__(2, "/mnt/model"), "is on none of the mounts"),
    (lambda m: m.pod["initContainers"][0].update(lifecycle=m.container["lifecycle"]), "an init container ends"),
    (lambda m: m.pod["initContainers"][0].update(readinessProbe={"httpGet": {"port": 1}}), "an init container ends"),
    (lambda m: m.pod["volumes"][0]["emptyDir"].update(sizeLimit="64Mi"), "NCCL needs 1Gi"),
    (lambda m: m.container["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]), "adds SYS_ADMIN"),
]
CASES["placement"] = [
    (lambda m: m.pod.update(serviceAccountName="A b"), "'A b' must be"),
    (lambda m: m.pod.update(priorityClassName="A b"), "'A b' must be"),
    (lambda m: m.pod["tolerations"].append({"key": "a", "operator": "Exists", "value": "b"}), "takes no value"),
    (lambda m: m.pod["tolerations"].append({"value": "b"}), "needs a key"),
]
CASES["claims and scaling"] = [
    (lambda m: m.pod["volumes"][-1]["persistentVolumeClaim"].update(claimName="llama-70b-model"), "Did you mean"),
    (lambda m: m["PersistentVolumeClaim"]["spec"].update(accessModes=["ReadWriteOnce"]), "there may be 3 pods"),
    (lambda m: m["Deployment"]["spec"].update(replicas=2), "a ScaledObject owns the number"),
    (lambda m: m["NetworkPolicy"]["spec"]["ingress"][0]["ports"][0].update(port=9), "admits [9], and the pods"),
    (lambda m: m["ServiceMonitor"]["spec"]["endpoints"][0].update(scrapeTimeout="1m"), "longer than the interval"),
    (lambda m: m["ScaledObject"]["spec"]["triggers"][0]["metadata"].update(threshold="four"), "'four' is no number"),
    (lambda m: m["ScaledObject"]["spec"]["triggers"][0]["metadata"].pop("serverAddress"), "serverAddress: is missing"),
]


def speculative(m: Manifests, model: str) -> None:
    args = m.container["args"]
    at = args.index("--speculative-config") + 1
    args[at] = json.dumps({**json.loads(args[at]), "model": model})


def mount(m: Manifests, at: int, **changes: Any) -> None:
    mounts = [each for each in m.container["volumeMounts"] if each["name"] == "models"]
    mounts[at].update(changes)


def listen(host: str) -> Change:
    return lambda m: m.container["args"].__setitem__(m.container["args"].index("0.0.0.0"), host)


def ingress(**port: Any) -> Json:
    backend = {"service": {"name": "llama-70b-api", "port": port}}
    rule = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    metadata = {"name": "i", "namespace": "llm"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": {"rules": [rule]}}


def hpa() -> Json:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-70b"}
    metadata = {"name": "h", "namespace": "llm"}
    spec = {"scaleTargetRef": target, "maxReplicas": 3}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}


def add(manifest: Json) -> Change:
    return lambda m: setattr(m, "all", (*m.all, manifest))


CASES["places and addresses"] = [
    (lambda m: m.container["livenessProbe"]["httpGet"].update(path="/healthz"), "the server has no /healthz"),
    (
        lambda m: m.container["args"].__setitem__(m.container["args"].index("0.0.0.0"), "127.0.0.1"),
        "on 127.0.0.1 alone",
    ),
    (
        lambda m: m.container["args"].__setitem__(m.container["args"].index("0.0.0.0"), "localhost"),
        "on localhost alone",
    ),
    (lambda m: speculative(m, "/mnt/drafts"), "the draft /mnt/drafts is on none of the mounts"),
    (lambda m: mount(m, 1, mountPath="/mnt/other"), "the draft /mnt/draft is on none of the mounts"),
    (lambda m: mount(m, 1, subPath="llama-3.2-1b"), "puts no 'llama-3.2-1b' on the claim 'llama-70b-models'. Did you"),
    (lambda m: mount(m, 0, subPath="zzz"), "It downloads llama-3.2-1b-instruct, "),
    (lambda m: m.pod["initContainers"][0]["args"].__setitem__(-1, "/mnt/models/x"), "puts no 'x' on the claim"),
    (lambda m: speculative(m, "org/draft"), "HF_HUB_OFFLINE is on, and the draft org/draft"),
    (lambda m: m.container["command"].__setitem__(2, "org/model"), "HF_HUB_OFFLINE is on, and the model org/model"),
    (add(ingress(number=8000)), "has no port 8000; it has [80]"),
    (add(ingress(name="htp")), "has no port htp; it has ['http']"),
    (add(hpa()), "the two undo each other"),
]

ALL = [(kind, change, message) for kind, cases in CASES.items() for change, message in cases]


@pytest.mark.parametrize(("kind", "change", "message"), ALL, ids=[f"{kind}: {m[:30]}" for kind, _, m in ALL])
def test_one_change_is_found(kind: str, change: Change, message: str, tmp_path: Path) -> None:
    manifests = Manifests()
    change(manifests)
    lines = manifests.lines(tmp_path)
    assert any(message in line for line in lines), lines
    assert not any(TOKEN in line for line in lines)


def predictor(m: Manifests) -> Json:
    part: Json = m["InferenceService"]["spec"]["predictor"]
    return part


def annotate(m: Manifests, name: str, value: str) -> None:
    m["InferenceService"]["metadata"]["annotations"][f"serving.kserve.io/{name}"] = value


def llm(m: Manifests) -> Json:
    spec: Json = m["LLMInferenceService"]["spec"]
    return spec


KSERVE: list[tuple[str, Change, str]] = [
    ("kserve", lambda m: predictor(m)["model"].update(runtime="llama-70b-runtme"), "Did you mean 'llama-70b-runtime'"),
    ("kserve", lambda m: predictor(m)["model"]["modelFormat"].update(name="x"), "none of the runtime's formats"),
    ("kserve", lambda m: predictor(m)["storageUris"][0].update(uri="pvc://llama-70b-model/x"), "no claim"),
    ("kserve", lambda m: predictor(m).update(minReplicas=5), "5 is more than maxReplicas, 3"),
    ("kserve", lambda m: annotate(m, "autoscalerClass", "kede"), "Did you mean 'keda'?"),
    (
        "kserve",
        lambda m: m["ServingRuntime"]["spec"]["containers"][0]["args"].append("--max_model_lenght=5"),
        "has no option --max_model_lenght. Did you mean 'max-model-len'?",
    ),
    ("kserve", lambda m: predictor(m)["storageUris"][0].update(uri="pvcs://a/x"), "no 'pvcs://'. Did you mean 'pvc'?"),
    ("kserve", lambda m: predictor(m)["storageUris"][1].update(mountPath="/mnt/x"), "draft /mnt/draft is on none of"),
    ("kserve", lambda m: predictor(m)["storageUris"][1].update(uri="pvc://llama-70b-models/x"), "puts no 'x' on"),
    ("kserve", lambda m: m["ServingRuntime"]["spec"]["containers"][0].update(name="server"), "'kserve-container'"),
    (
        "kserve",
        lambda m: m["ServingRuntime"]["spec"]["containers"][0]["livenessProbe"]["httpGet"].update(path="/health/live"),
        "the server has no /health/live",
    ),
    ("kserve-llm", lambda m: m.main["volumeMounts"].pop(), "the draft /mnt/draft is on none of the mounts"),
    ("kserve-llm", lambda m: llm(m)["model"].update(uri="pvc://llama-70b-models/x"), "puts no 'x' on the claim"),
    ("kserve-llm", lambda m: llm(m)["model"].update(uri="pvcs://a/x"), "no 'pvcs://'"),
    ("kserve-llm", lambda m: llm(m)["model"].update(uri="llama"), "does not say where"),
    ("kserve-llm", lambda m: m.main.update(name="man"), "none is called 'main'"),
    ("kserve-llm", lambda m: llm(m)["rolloutStrategy"].update(maxUnavailable=0), "are both 0"),
    ("kserve-llm", lambda m: llm(m)["scaling"]["keda"]["triggers"][0]["metadata"].pop("query"), "query: is missing"),
]


@pytest.mark.parametrize(("platform", "change", "message"), KSERVE, ids=[message[:30] for _, _, message in KSERVE])
def test_one_change_of_kserves_kinds_is_found(platform: str, change: Change, message: str, tmp_path: Path) -> None:
    manifests = Manifests(platform, "vllm")
    change(manifests)
    lines = manifests.lines(tmp_path)
    assert any(message in line for line in lines), lines


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_is_rendered_has_no_findings(platform: Any, runtime: Any, tmp_path: Path) -> None:
    assert not Manifests(platform, runtime).lines(tmp_path)


ARGS: list[tuple[str, str | None]] = [
    ("--seed 1", None),
    ("--seed 1\n", None),
    ("--seed '$(id)' '`id`' 'a;b'", None),
    (r"--seed \$A", None),
    ("--seed $(id)", "'$' is replaced or run"),
    ("--seed $$(id)", "'$' is replaced or run"),
    ('--seed "$(id)"', "'$' is replaced or run"),
    ("--chat-template $(HOME)", None),  # Kubernetes puts in the variable of the container
    ("--seed $HOME", "'$' is replaced or run"),
    ("--seed `id`", "'`' is run"),
    ("--seed 1; id", "';' ends the command"),
    ("--seed 1 | id", "'|' pipes it"),
    ("--seed 1\n--y 2", "a line's end ends the command"),
    ("--tensor-parallel-size 4", None),
    ("--tensor-parallel-size 2", "contradicts parallelism.tensor, 4"),
    ("-tp=8", "contradicts parallelism.tensor, 4"),
    ("--pipeline_parallel_size 2", "contradicts parallelism.pipeline, 1"),
    ("--data-parallel-size 2", "contradicts parallelism.data, 1"),
]


@pytest.mark.parametrize("field", ["VLLM_ADDITIONAL_ARGS", "args"])
@pytest.mark.parametrize(("text", "message"), ARGS)
def test_what_kserves_shell_does_with_arguments(text: str, message: str | None, field: str, tmp_path: Path) -> None:
    manifests = Manifests("kserve-llm", "vllm")
    if field == "args":
        manifests.main["args"] = [text]
    else:
        next(variable for variable in manifests.main["env"] if variable["name"] == field)["value"] = text
    lines = [line for line in manifests.lines(tmp_path) if "takes the quotes off" not in line]
    assert not lines if message is None else any(message in line for line in lines), lines


@given(st.text(st.characters(codec="ascii", exclude_characters="'\x00"), max_size=12))
def test_single_quotes_keep_everything_from_the_shell(text: str) -> None:
    assert acts_in_shell(f"--x '{text}'") is None


@given(st.integers(0, 10**9), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3"]))
def test_quantities(number: int, unit: str) -> None:
    factor = {"": 1, "m": Fraction(1, 1000), "e3": 1000, "k": 1000, "Ki": 1024}.get(unit)
    if factor is None:
        factor = (1024 if unit.endswith("i") else 1000) ** (" kMGT".index(unit[0]))
    assert amount(f"{number}{unit}") == number * factor
    assert to_bytes(f"{number}{unit}") == -(-number * factor // 1)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1GB", "1gi", "1K", "0x10", "1e", "1.2.3", "--1", "nan", "\u0661Gi", True]
)
def test_what_is_no_quantity(text: Any) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        amount(text)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (wrong_label, ["a", "0a", "a-b", "a" * 63], ["", "A", "a_b", "a.b", "-a", "a-", "a" * 64, "a\n", 1, None]),
        (wrong_key, ["a", "A.b_c-d", "x.io/a"], ["", "a b", "/a", "a/", "X.io/a", "a/b/c", "a\n"]),
        (wrong_value, ["", "a", "A.b_c-d", "1"], ["a b", "-a", "a-", "a" * 64, "größe", "a\n", 1, True, None]),
        (wrong_port_name, ["http", "a-1", "8a"], ["", "80", "a--b", "-a", "a_b", "A", "a" * 16, None]),
    ],
)
def test_names(rule: Callable[[Any], str | None], good: list[Any], bad: list[Any]) -> None:
    assert [name for name in good if rule(name) is not None] == []
    assert [name for name in bad if rule(name) is None] == []


@pytest.mark.parametrize("name", RANGES)
def test_every_range_is_kept_to(name: str) -> None:
    least, most = RANGES[name]
    for value, wrong in ((least - 1, True), (least, False), (most, False), (most + 1, True)):
        found = [finding for finding in value_findings({"spec": {"a": [{name: value}]}}) if name in finding.path]
        assert bool(found) == wrong, value


@pytest.mark.parametrize(("within", "name"), CHOICES)
def test_every_choice_is_one(within: str, name: str) -> None:
    for value in CHOICES[within, name]:
        assert not list(value_findings({within: [{name: value}]}))
    assert list(value_findings({within: [{name: "Nothing"}]}))
    assert not list(value_findings({"data": {within: {name: "Nothing"}}}))  # a user's own texts


def test_fields_of_other_peoples_kinds_mean_what_they_mean_there(tmp_path: Path) -> None:
    entry = {"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": "a"}}
    manifests = Manifests()
    manifests.all = (*manifests.all, {**entry, "spec": {"ports": [{"number": 1, "protocol": "HTTP"}]}})
    assert not manifests.lines(tmp_path)


def test_claims_of_a_stateful_set_are_volumes(tmp_path: Path) -> None:
    manifests = Manifests()
    spec = manifests["Deployment"]["spec"]
    manifests.container["volumeMounts"].append({"name": "own", "mountPath": "/own"})
    manifests["Deployment"].update(kind="StatefulSet", spec={**spec, "strategy": None, "serviceName": "s"})
    manifests.all = tuple(m for m in manifests.all if m["kind"] != "ScaledObject")
    assert any("'own' is mounted" in line for line in manifests.lines(tmp_path))
    claim = {"metadata": {"name": "own"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    manifests["StatefulSet"]["spec"]["volumeClaimTemplates"] = [claim]
    assert not manifests.lines(tmp_path)


def secret(**data: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "api-key", "namespace": "llm"}, "data": data}


def test_secrets_that_are_named(tmp_path: Path) -> None:
    manifests = Manifests()
    assert not manifests.lines(tmp_path)
    notes = check_files([tmp_path / "all.json"]).notes
    assert any("must be in the cluster: Secrets api-key (key), hub (token)" in note for note in notes)
    manifests.all = (*manifests.all, secret(key="YQ=="))
    assert not manifests.lines(tmp_path)
    manifests.all = (*manifests.all[:-1], secret(kee="YQ=="))
    assert any("has no key 'key'. Did you mean 'kee'?" in line for line in manifests.lines(tmp_path))
    manifests.container["env"][-1]["valueFrom"]["secretKeyRef"]["name"] = "api-kye"
    assert any("warning" in line and "Did you mean 'api-key'?" in line for line in manifests.lines(tmp_path))


def test_a_reference_to_a_variable_is_no_secret(tmp_path: Path) -> None:
    manifests = Manifests(runtime="vllm")
    env({"name": "MY_TOKEN", "value": "$(OTHER)"}, {"name": "MAX_TOKENS", "value": "5"})(manifests)
    manifests.container["args"].extend(["--api-key", "$(MY_TOKEN)"])
    assert not manifests.lines(tmp_path)


QUERIES = ["sum(x", "x >", "", "x{a='b}", "rate(x[5m]", "a and"]


@pytest.mark.parametrize("text", QUERIES)
def test_a_light_look_at_promql(text: str) -> None:
    assert promql.wrong_query(text) is not None


@pytest.mark.parametrize("text", ['x{a="("}', "sum by (a) (x)", "x # a (", "x{a='\"'}", "1", 'x{a=~"a\\"("} > 0'])
def test_promql_that_is_some(text: str) -> None:
    assert promql.wrong_query(text) is None


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_reads_queries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    told = promql.promtool(["rate(x[5m])", *QUERIES, "rate(x)", "nope(x)"])
    assert told is not None
    assert [problem is None for problem in told] == [True] + [False] * (len(QUERIES) + 2)
    manifests = [m for platform in PLATFORMS for m in Manifests(platform, "vllm").all]
    for manifest in manifests:
        assert not list(promql.promql_findings(manifest))


def rendered_folder(tmp_path: Path) -> Path:
    write_files(rendered("smoke-cpu", "kserve", "paceline"), tmp_path / "smoke")
    return tmp_path / "smoke"


def messages(folder: Path) -> list[str]:
    return [finding.message for _, finding in check_files([folder]).findings]


def test_a_kustomization_names_what_is_there(tmp_path: Path) -> None:
    folder = rendered_folder(tmp_path)
    assert not messages(folder)
    (folder / "service.yaml").rename(folder / "srv.yaml")
    assert messages(folder) == ["'service.yaml' is not there."]
    (folder / "kustomization.yaml").write_text((folder / "kustomization.yaml").read_text().replace("service", "srv", 1))


def test_a_file_that_a_kustomization_leaves_out(tmp_path: Path) -> None:
    folder = rendered_folder(tmp_path)
    text = (folder / "kustomization.yaml").read_text()
    (folder / "kustomization.yaml").write_text(text.replace("- service.yaml\n", ""))
    assert messages(folder) == ["'service.yaml' is not named: kubectl apply -k leaves it out."]


def overlay(tmp_path: Path, **more: Any) -> Path:
    rendered_folder(tmp_path)
    folder = tmp_path / "production"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["../smoke"], **more}))
    return folder


@pytest.mark.skipif(not (shutil.which("kubectl") or shutil.which("kustomize")), reason="no kubectl or kustomize")
def test_an_overlay_is_built_and_what_it_makes_is_checked(tmp_path: Path) -> None:
    folder = overlay(tmp_path, patches=[{"path": "patch.yaml", "target": {"kind": "Service"}}])
    assert messages(folder) == ["'patch.yaml' is not there."]
    patch = [{"op": "replace", "path": "/spec/ports/0/port", "value": 70000}]
    (folder / "patch.yaml").write_text(yaml.safe_dump(patch))
    assert any("70000 must be between 1 and 65535" in message for message in messages(folder))
    assert messages(folder / "kustomization.yaml") == messages(folder)
    both = check_files([tmp_path / "smoke", folder])  # its objects are those of the folder below, changed
    assert not [finding for _, finding in both.findings if "same object" in finding.message]


def test_an_overlay_where_nothing_builds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = overlay(tmp_path)
    monkeypatch.setattr(kustomize.shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match="neither kubectl nor kustomize is on the PATH"):
        check_files([folder])


@pytest.mark.skipif(not (shutil.which("kubectl") or shutil.which("kustomize")), reason="no kubectl or kustomize")
@pytest.mark.parametrize("content", [{"resorces": ["a.yaml"]}, {"resources": 5}, {"patches": [5]}])
def test_a_kustomization_of_another_shape(content: Json, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigurationError, match=r"cannot be built|No manifests"):
        check_files([tmp_path])
