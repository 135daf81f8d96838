"""Servers behind TLS, keys and proxies: what a user is told, and that a key goes nowhere but to the server."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from bench_serve_fakes import Json, Reply, bench_says, canned_server, plain, speculating
from typer.testing import CliRunner

from paceline.bench.serve.tls import failure_in_words, tls_context
from paceline.cli.app import app

KEY = "sk-very-secret-1"
SHORT = ("--concurrency", "1", "--num-prompts", "2", "--seeds", "0", "--warmup", "0", "--max-tokens", "9")


@pytest.fixture(autouse=True)
def no_report_and_no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and pictures take seconds, and are not what these tests are about."""
    monkeypatch.setattr("paceline.bench.page.renderers.write_report", lambda results, folder: ([], []))
    for name in ("OPENAI_API_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def measured(*arguments: str) -> str:
    run = CliRunner().invoke(app, ["bench", "serve", *SHORT, *arguments])
    assert run.exit_code == 0, (run.output, run.exception)
    return " ".join(run.output.split())


# TLS


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate, and what a server does with it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


def test_a_certificate_that_is_not_trusted(signed: tuple[Path, ssl.SSLContext], tmp_path: Path) -> None:
    with canned_server(speculating, signed[1]) as (address, seen):
        said = bench_says("serve", "--url", address, "--out", str(tmp_path / "out"))
    assert f"The certificate of {address} is not trusted: self" in said
    assert "--ca-file" in said
    assert "--insecure" in said
    assert seen == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["--ca-file", "--insecure", "SSL_CERT_FILE"])
def test_a_certificate_of_ones_own(
    signed: tuple[Path, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    certificate, context = signed
    more = {"--ca-file": (way, str(certificate)), "--insecure": (way,)}.get(way, ())
    if not more:
        monkeypatch.setenv(way, str(certificate))
    with canned_server(speculating, context) as (address, seen):
        said = measured("--url", address, *more, "--out", str(tmp_path / "out"))
    assert ("no certificate was checked" in said) is (way == "--insecure")
    assert {path for path, _, _ in seen} >= {"/v1/models", "/v1/chat/completions"}
    assert str(certificate.parent) not in (tmp_path / "out" / "bench.json").read_text().partition('"options"')[2]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), ("junk", "holds no certificate in PEM form")]
)
def test_a_certificate_of_the_environment_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, message: str
) -> None:
    """It is named for https; for http it is of no account."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    for url, said in (("https://127.0.0.1:9", message), ("http://127.0.0.1:9", "does not answer")):
        words = bench_says("serve", "--url", url, "--out", str(tmp_path / "out"))
        assert said in words
        assert ("SSL_CERT_FILE" in words) is url.startswith("https")


def test_a_certificate_of_the_environment_stands_beside_certifis(
    signed: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {str(found) for found in tls_context().get_ca_certs()}
    monkeypatch.setenv("SSL_CERT_FILE", str(signed[0]))
    monkeypatch.setenv("SSL_CERT_DIR", str(signed[0].parent))
    beside = {str(found) for found in tls_context().get_ca_certs()}
    assert usual < beside


def test_https_to_a_server_without_tls(tmp_path: Path) -> None:
    with canned_server(speculating) as (address, _):
        url = address.replace("http:", "https:")
        said = bench_says("serve", "--url", url, "--out", str(tmp_path / "out"))
    assert url in said
    assert "()" not in said


def test_http_to_a_server_with_tls(signed: tuple[Path, ssl.SSLContext], tmp_path: Path) -> None:
    with canned_server(speculating, signed[1]) as (address, _):
        url = address.replace("https:", "http:")
        said = bench_says("serve", "--url", url, "--out", str(tmp_path / "out"))
    assert url in said
    assert "Is its address https://…?" in said


def test_words_of_tls_alone_are_about_tls() -> None:
    assert failure_in_words("h", OSError("All connection attempts failed")) is None
    assert "http://" in str(failure_in_words("h", OSError("[SSL: WRONG_VERSION_NUMBER] wrong version number")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:9", "--insecure"), "no --url begins with https://"),
        (("--url", "http://127.0.0.1:9", "--ca-file", "ca.pem"), "no --url begins with https://"),
        (("--url", "https://127.0.0.1:9", "--ca-file", "ca.pem", "--insecure"), "give one"),
        (("--url", "https://127.0.0.1:9", "--ca-file", "/nowhere/ca.pem"), "cannot be read"),
        (("--url", "https://127.0.0.1:9", "--ca-file", __file__), "no certificate in PEM form"),
    ],
)
def test_options_of_tls_that_say_nothing(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in bench_says("serve", *arguments, "--out", str(tmp_path / "out"))


# Keys


def guarded(seen: list[tuple[str, Json, str]]) -> Reply:
    """`seen` has the request's head, in small letters, before it is answered."""

    def reply(path: str, asked: Json) -> list[bytes] | None:
        if f"authorization: bearer {KEY}" not in seen[-1][2]:
            return [plain("401 Unauthorized", {"error": {"message": "no"}})]
        return speculating(path, asked)

    return reply


def test_a_key_reaches_the_server_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_MINE", f"{KEY}\r\n")  # as a file of another system has it
    held: list[Reply] = []
    with canned_server(lambda path, asked: held[0](path, asked)) as (address, seen):
        held.append(guarded(seen))
        said = measured("--url", address, "--api-key-env", "OF_MINE", "--out", str(tmp_path / "out"))
    assert all(f"authorization: bearer {KEY}" in top for _, _, top in seen)
    assert KEY not in said
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) >= 2
    assert not any(KEY.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("model", [(), ("--model", "small")])
@pytest.mark.parametrize(("key", "message"), [(None, "it wants a key"), ("sk-wrong-2", "it does not take this key")])
def test_a_key_that_is_wrong_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, message: str, model: tuple[str, ...]
) -> None:
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    held: list[Reply] = []
    with canned_server(lambda path, asked: held[0](path, asked)) as (address, seen):
        held.append(guarded(seen))
        said = bench_says("serve", "--url", address, *model, "--out", str(tmp_path / "out"))
    assert message in said
    assert "--api-key-env" in said
    assert "sk-wrong" not in said


def test_a_list_of_models_for_all_and_answers_for_few(tmp_path: Path) -> None:
    def reply(path: str, asked: Json) -> list[bytes] | None:
        return speculating(path, asked) if path == "/v1/models" else [plain("401 Unauthorized", {})]

    with canned_server(reply) as (address, _):
        said = bench_says("serve", "--url", address, "--out", str(tmp_path / "out"))
    assert "answered 401: it wants a key" in said


@pytest.mark.parametrize("key", ["sk two-words", "sk-schlüssel", "sk-a\nx-more: 1"])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OF_MINE", key)
    said = bench_says("serve", "--url", "http://127.0.0.1:9", "--api-key-env", "OF_MINE", "--out", str(tmp_path / "o"))
    assert "--api-key-env OF_MINE: what it holds is no key" in said
    assert "sk" not in said


def test_each_server_has_its_own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server's key is not for another to read."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    monkeypatch.setenv("OF_MINE", KEY)
    held: list[Reply] = []
    with (
        canned_server(lambda path, asked: held[0](path, asked)) as (mine, seen),
        canned_server(speculating) as (other, at),
    ):
        held.append(guarded(seen))
        urls = ("--url", f"mine={mine}", "--url", f"other={other}")
        measured(*urls, "--api-key-env", "mine=OF_MINE", "--out", str(tmp_path / "out"))
        assert not any("authorization" in top for _, _, top in at)
        said = bench_says("serve", *urls, "--api-key-env", "theirs=OF_MINE", "--out", str(tmp_path / "no"))
    assert at
    assert "--api-key-env: there is no server 'theirs' (there are: mine, other)." in said


# Proxies


def test_no_proxy_stands_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed never went through one; the list of models and the counters did."""
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with canned_server(speculating) as (address, seen):
        measured("--url", address, "--out", str(tmp_path / "out"))
    assert "/v1/models" in {path for path, _, _ in seen}
