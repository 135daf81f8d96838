"""HTTPS and API keys on a real socket: the server process with a fake engine, certificates made by openssl."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

FAKES = Path(__file__).resolve().parents[1] / "unit"
KEY = "a-key-for-the-test"
SCRIPT = """
import sys
from server_fakes import FakeTokenizer, fake_config
from paceline.arguments import Resolved
from paceline.server.access.options import read_access_options
from paceline.server.options import ServerOptions
from paceline.server.serve import open_port, serve
certificate, key, authority, problems = *sys.argv[1:], []
given = {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_ca_certs": authority}
options = ServerOptions(access=read_access_options(given, problems))
assert not problems, problems
announce = lambda table, url: print(url, flush=True)
resolved = Resolved(fake_config(), FakeTokenizer())
sys.exit(serve(resolved, open_port("127.0.0.1", 0), announce, options, factory="server_fakes:make_fake"))
"""


def make_certificate(folder: Path) -> tuple[str, str]:
    certificate, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_https_with_client_certificates_and_keys(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, certificate, key, certificate],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"PACELINE_API_KEYS": KEY, "PYTHONPATH": os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("https://127.0.0.1:")
        stranger = ssl.create_default_context(cafile=certificate)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{url}/health", verify=stranger)
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/health")
        known = ssl.create_default_context(cafile=certificate)
        known.load_cert_chain(certificate, key)
        assert httpx.get(f"{url}/health", verify=known).status_code == 200
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=httpx.Client(verify=known))
        assert client.completions.create(model="fake", prompt="a", max_tokens=3).choices[0].text == " w2 w3 w4"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="another").models.list()
    finally:
        process.terminate()
        assert process.wait(60) == 0
