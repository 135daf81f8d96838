"""Schemathesis on our own OpenAPI document: whatever it sends, no 500, and every refusal is OpenAI's error body."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from e2e.api_server import KEY, Api
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
HEADERS = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = {"POST": 40, "GET": 5}


def check(case: Any, url: str) -> int:
    response = case.call(base_url=url, headers=HEADERS, timeout=60)
    assert response.status_code < 500, (case.as_curl_command(), response.text)
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    return int(response.status_code)


def fuzz(operation: Any, url: str) -> set[int]:
    """The statuses that came."""
    statuses = set()

    @settings(
        max_examples=EXAMPLES[operation.method.upper()], deadline=None, derandomize=True, database=None,
        phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        statuses.add(check(case, url))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ask()
    return statuses


def test_no_request_is_a_fault_of_the_server(api: Api) -> None:
    document = schemathesis.openapi.from_url(f"{api.url}/openapi.json", headers=HEADERS)
    operations = [found.ok() for found in document.get_all_operations()]
    seen = {operation.label: fuzz(operation, api.url) for operation in operations}
    assert {"POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize", "GET /metrics"} <= seen.keys()
    assert 200 in seen["GET /health"]
