"""The default target over HTTP: the first request of a new user."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import openai
import pytest

pytestmark = pytest.mark.models


def test_the_first_request_of_a_new_user() -> None:
    command = ["serve", "smollm2-135m-instruct", "--speculative-model", "ngram", "--port", "0"]
    small = ["--max-model-len", "512", "--kv-cache-memory-bytes", "100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", *command, *small],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )
    try:
        assert process.stderr is not None
        shown = ""
        while "Try:" not in shown:
            line = process.stderr.readline()
            assert line, shown
            shown += line
        url = re.findall(r"http://127\.0\.0\.1:\d+", shown)[0]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        stream = client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_completion_tokens=16,
            stream=True,
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."
        assert chunks[-1].choices[0].finish_reason == "stop"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
