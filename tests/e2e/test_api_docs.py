"""The examples of docs/api.md run as they stand, against the server of tiny weights."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.api_server import KEY, MODEL, Api

from paceline.server.access.options import AccessOptions
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.responses_api.fields import ResponsesRequest
from paceline.server.tokenize import DetokenizeRequest, TokenizeRequest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(BLOCKS)])
def test_example(api: Api, language: str, code: str) -> None:
    if language == "sh" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = ["sh", "-ec", code.replace("curl ", "curl -sS --fail-with-body ")]
    done = subprocess.run(
        command if language == "sh" else [sys.executable, "-c", code],
        env=os.environ | {"URL": api.url, "KEY": KEY, "MODEL": MODEL},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if language == "python":
        assert done.stdout.strip()
    elif "stream" in code:
        assert done.stdout.rstrip().endswith("data: [DONE]")
    else:
        assert "error" not in json.loads(done.stdout)


def test_the_page_names_every_field_and_option() -> None:
    for body in (ChatRequest, CompletionRequest, ResponsesRequest, TokenizeRequest, DetokenizeRequest):
        for name in body.model_fields:
            assert f"`{name}`" in PAGE or f"`{name}." in PAGE, name
    unmentioned = {"length_penalty", "early_stopping", "use_beam_search", "spaces_between_special_tokens", "echo"}
    for name in (ChatRequest.unsupported.keys() | CompletionRequest.unsupported.keys()) - unmentioned:
        assert f"`{name}`" in PAGE or name.startswith("guided_"), name
    for option in AccessOptions.__dataclass_fields__:
        flag = {"api_keys": "api-key-file", "allowed_origins": "allowed-origin"}.get(option, option.replace("_", "-"))
        assert f"--{flag}" in PAGE, flag
