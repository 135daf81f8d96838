"""No finding and no message of paceline deploy holds a secret, wherever it stood and however wrong that place is."""

from __future__ import annotations

import base64
import copy
import json
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy_cases import IMAGE, PLATFORMS, RUNTIMES, one, rendered
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paceline.deploy.check import builtin, check_files, promql
from paceline.deploy.check.findings import Document, Report, error
from paceline.deploy.check.server import server_dry_run
from paceline.deploy.render import render
from paceline.deploy.secrecy import HIDDEN, is_secret_name, masked, redacted, secrets_of
from paceline.deploy.values_file import load_values
from paceline.errors import ConfigurationError

Json = dict[str, Any]
LETTERS = string.ascii_letters + string.digits
TOKENS = st.one_of(
    st.text(LETTERS, min_size=20, max_size=40).map(lambda text: f"hf_{text}"),
    st.text(LETTERS, min_size=36, max_size=36).map(lambda text: f"ghp_{text}"),
    st.text(LETTERS + "-_", min_size=20, max_size=60).map(lambda text: f"sk-{text}"),
    st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16).map(lambda text: f"AKIA{text}"),
)
# No token by its form: known by its place or its name alone.
PASSWORDS = st.text(LETTERS + "!#%&+-_.,:;^~@", min_size=8, max_size=30).map(lambda text: f"Qz9{text}Zq7")
SLOW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def _no_promtool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promql, "has_promtool", lambda: False)


def printed(tmp_path: Path, *contents: Any, suffix: str = "json") -> str:
    file = tmp_path / f"a.{suffix}"
    file.write_text(json.dumps(contents[0]) if suffix == "json" else yaml.safe_dump_all(contents))
    try:
        report = check_files([file])
    except ConfigurationError as fault:
        return str(fault)
    lines = [f"{document.label} {finding.path} {finding.message}" for document, finding in report.findings]
    return "\n".join([*lines, *report.notes])


def deployment(change: Callable[[Json], Any]) -> Json:
    whole = copy.deepcopy(one(rendered("smoke-cpu", "kubernetes", "vllm").manifests, "Deployment"))
    change(whole["spec"]["template"]["spec"]["containers"][0])
    return whole


def secret(**more: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "llm"}, **more}


def config_map(**data: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "llm"}, "data": data}


# Of a secret that has no form of its own.
PLACES: dict[str, Callable[[str], Json]] = {
    "env, a mapping": lambda s: deployment(lambda c: c.update(env={"HF_TOKEN": s})),
    "env, of texts": lambda s: deployment(lambda c: c.update(env=[f"HF_TOKEN={s}"])),
    "env, a text": lambda s: deployment(lambda c: c.update(env=f"MY_PASSWORD={s}")),
    "env": lambda s: deployment(lambda c: c["env"].append({"name": "DB_PASSWORD", "value": s})),
    "env, of another shape": lambda s: deployment(lambda c: c["env"].append({"name": "API_KEY", "value": [s, {s: s}]})),
    "args, a text": lambda s: deployment(lambda c: c.update(args=f"--hf-token {s} --api-key {s}")),
    "args": lambda s: deployment(lambda c: c["args"].extend(["--api-key", s, f"--hf-token={s}"])),
    "a setting": lambda s: deployment(lambda c: c["args"].extend(["--hf-overrides", f'{{"api_key": "{s}"'])),
    "a field": lambda s: deployment(lambda c: c.update(password=s, apiKey=[s])),
    "an address": lambda s: config_map(a=f"http://user:{s.replace('@', '')}@prom:9090/").copy(),
    "a Secret's text": lambda s: secret(stringData={"token": s}),
    "a Secret, a text": lambda s: secret(stringData=s),
    "a Secret, a list": lambda s: secret(stringData=[s]),
    "a Secret, deeper": lambda s: secret(stringData={"a": {"b": [s]}}),
    "a Secret, encoded": lambda s: secret(data={"token": base64.b64encode(s.encode()).decode()}),
    "a Secret, not encoded": lambda s: secret(data={"token": s}),
    "a Secret, misspelt": lambda s: {**secret(stringdata={"token": s}), "kind": "Secrets"},
    "a Secret, by its field": lambda s: {**secret(stringData={"token": s}), "kind": "Thing"},
    "a Secret, as applied": lambda s: {
        **secret(),
        "metadata": {"name": "s", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": s}, "labels": 5},
    },
    "a ConfigMap": lambda s: config_map(AWS_SECRET_ACCESS_KEY=s, password=[s]),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=list(PLACES))
@settings(parent=SLOW, max_examples=6)
@given(text=PASSWORDS)
@example(text="hunter2secretpw")
@example(text="hf_" + "a1B2" * 8)
def test_what_is_secret_by_its_place_is_not_printed(place: Callable[[str], Json], text: str, tmp_path: Path) -> None:
    said = printed(tmp_path, place(text))
    assert text not in said
    assert base64.b64encode(text.encode()).decode() not in said
    assert text[:-3] not in said


def test_arguments_as_one_text_are_not_taken_to_pieces(tmp_path: Path) -> None:
    said = printed(tmp_path, deployment(lambda c: c.update(args="--hf-token hunter2secretpw")))
    assert "'h'" not in said


def test_numbers_of_a_secret_are_not_printed(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate")
    said = printed(tmp_path, secret(stringData={"token": 123456789012, "pin": 4711.25}))
    assert "1234567" not in said
    assert "4711" not in said
    assert "is not of type 'string'" in said


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from paths(each, (*path, key))


OBJECTS = [m for p in PLATFORMS for r in RUNTIMES for m in rendered("llama-70b-4xh100", p, r, True).manifests]
SHAPES: dict[str, Callable[[Any, str], Any]] = {
    "instead": lambda old, token: token,
    "in a text": lambda old, token: f"{old} {token} x",
    "in a list": lambda old, token: [token, {"a": token}],
    "as a key": lambda old, token: {**(old if isinstance(old, dict) else {}), token: old},
    "as the key of itself": lambda old, token: {token: {token: token}},
    "in JSON": lambda old, token: json.dumps({"a": token})[:-1],
    "in a long text": lambda old, token: "x" * 289 + f" {token} " + "y" * 90,  # where messages are cut
    "cut at the front": lambda old, token: token + " y" * 300,
}


@SLOW
@given(data=st.data(), token=TOKENS, shape=st.sampled_from(list(SHAPES)), has_schemas=st.booleans())
def test_a_token_is_printed_nowhere(
    data: st.DataObject, token: str, shape: str, has_schemas: bool, tmp_path: Path
) -> None:
    whole = copy.deepcopy(data.draw(st.sampled_from(OBJECTS)))
    *above, last = data.draw(st.sampled_from(list(paths(whole))))
    parent = whole
    for key in above:
        parent = parent[key]
    parent[last] = SHAPES[shape](parent[last], token)
    with pytest.MonkeyPatch.context() as patch:
        if not has_schemas:
            patch.setattr(builtin, "is_available", lambda: False)
        said = printed(tmp_path, whole)
    assert token not in said
    assert token[:12] not in said


VALUES: dict[str, Callable[[str], Json]] = {
    "a key": lambda s: {s: 1},
    "a key of the engine": lambda s: {"engine": {s: 1}},
    "a key of a section": lambda s: {"resources": {s: 1}},
    "a label's key": lambda s: {"monitoring": {"labels": {s: "a"}}},
    "a selector's key": lambda s: {"scheduling": {"node_selector": {s: "a"}}},
    "an image": lambda s: {"image": s},
    "a name": lambda s: {"name": s},
    "a served name": lambda s: {"model": {"served_name": f"{{{{{s}"}},
    "a source": lambda s: {"model": {"source": f"{s} "}},
    "a config": lambda s: {"engine": {"speculative_config": s}},
    "a method": lambda s: {"engine": {"speculative_config": {"method": s}}},
    "vllm's arguments": lambda s: {"vllm": {"args": ["--hf-token", s, f"--foo={s}"]}},
    "a number's place": lambda s: {"resources": {"gpus": s, "memory": s}},
    "a secret itself": lambda s: {"secrets": {"hub_token": s, "api_key": {"name": s, "key": s}}},
    "a long text": lambda s: {"model": "x" * 49 + f" {s} " + "y" * 60},
    "a list": lambda s: {"scheduling": {"tolerations": [s, {"key": s, "value": s}]}},
    "an address": lambda s: {"scaling": {"max_replicas": 2, "prometheus_url": f"http://a:{s}@b"}},
}


@pytest.mark.parametrize("place", VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("runtime", RUNTIMES)
@settings(parent=SLOW, max_examples=3)
@given(token=TOKENS)
def test_values_with_a_token_are_refused_and_the_token_is_not_printed(
    place: Callable[[str], Json], runtime: Any, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": IMAGE, **place(token)}))
    with pytest.raises(ConfigurationError) as raised:
        render(load_values(file, runtime, "smoke-cpu"), "kubernetes", runtime)
    assert token not in str(raised.value)
    assert token[:12] not in str(raised.value)


def test_a_token_given_twice_as_a_key(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 8
    file = tmp_path / "values.yaml"
    file.write_text(f"{token}: 1\n{token}: 1\n")
    with pytest.raises(ConfigurationError, match="is there twice") as raised:
        load_values(file, "paceline")
    assert token not in str(raised.value)


@given(text=PASSWORDS)
def test_every_finding_and_note_passes_through_one_place(text: str) -> None:
    """The second net: what no mask knows of."""
    report = Report(hidden=frozenset({text}))
    content: Json = {"kind": "A", "metadata": {"name": "x"}}
    report.add(Document("file", content, content), [error("$", f"a {text} b")])
    report.note(f"a {text} b")
    assert text not in repr(report.findings[0][1])
    assert text not in report.notes[0]


def test_what_other_programs_say_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from subprocess import CompletedProcess

    monkeypatch.setattr("shutil.which", lambda name: name)
    said = "error: invalid value hunter2secretpw\nerror: hf_" + "a1B2" * 8
    lines = server_dry_run(
        [Path("a")], run=lambda command: CompletedProcess(command, 1, "", said), hidden=["hunter2secretpw"]
    )
    assert lines == [f"error: invalid value {HIDDEN}", f"error: {HIDDEN}"]


@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda m: m["kind"])
def test_what_holds_no_secret_is_read_as_it_is(manifest: Json) -> None:
    assert masked(manifest) == manifest
    assert not secrets_of(manifest)


@pytest.mark.parametrize(
    "text",
    [
        "kubectl -n llm create secret generic api-key --from-literal=key=…",
        "--api-key stands here for all to read: put it into a Secret",
        "engine.max_model_len=5: give more",
        'sum(vllm:num_requests_waiting{namespace="llm",service="a"})',
        "tokens=5 and max_num_batched_tokens=5",
        "HF_TOKEN=$(OTHER) and TOKEN=${OTHER}",
        "oci://registry:5000/a@sha256:00",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "password", "dbPassword", "apiKey", "API_KEYS", "AWS_SECRET_ACCESS_KEY", "client-secret"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["MAX_TOKENS", "secretName", "key", "tokenizer", "imagePullSecrets", 5])
def test_names_of_others(name: Any) -> None:
    assert not is_secret_name(name)


def kustomization(**more: Any) -> Json:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [], **more}


SILENT: list[tuple[Json, str]] = [
    (config_map(AWS_SECRET_ACCESS_KEY="x"), "stands in a ConfigMap"),
    (config_map(a="hf_" + "a1B2" * 8), "holds a token of Hugging Face"),
    (config_map(**{"hf_" + "a1B2" * 8: "a"}), "holds a token of Hugging Face"),
    (config_map(a="http://user:pw@prom:9090"), "holds a password in an address"),
    (secret(stringData={"a": "hf_" + "a1B2" * 8}), "base64 hides nothing"),
    (secret(data={"a": base64.b64encode(b"hf_" + b"a1B2" * 8).decode()}), "base64 hides nothing"),
    (secret(data={"a": "hf_" + "a1B2" * 8}), "is no base64"),
    (kustomization(secretGenerator=[{"name": "a", "literals": ["token=x"]}]), "holds 'token'"),
    (kustomization(secretGenerator=[{"name": "a", "literals": ["a=hf_" + "a1B2" * 8]}]), "holds a token"),
]


@pytest.mark.parametrize(("content", "message"), SILENT, ids=[message for _, message in SILENT])
def test_secrets_that_stand_in_files_are_found(content: Json, message: str, tmp_path: Path) -> None:
    if content["kind"] == "Kustomization":
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({**content, "resources": ["a.yaml"]}))
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(config_map()))
        from paceline.deploy.check import kustomize

        file = tmp_path / "kustomization.yaml"
        said = " ".join(each.message for each in kustomize.kustomization_findings(file, content))
    else:
        said = printed(tmp_path, content)
    assert message in said
    assert "a1B2" not in said
