"""A real Prometheus over a real server: it scrapes, the rules evaluate, and dashboard and alerts ask for what exists.

Needs the programs prometheus and promtool (Debian: apt install prometheus).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from e2e.test_server_process import RunningServer, chat, start

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "paceline.json"
_NAME = re.compile(r"\bpaceline:\w+")

pytestmark = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="prometheus and promtool are not installed"
)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """With Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for variable, value in {"$__rate_interval": "1m", "$model_name": ".*", "$instance": ".*"}.items():
        found = [query.replace(variable, value) for query in found]
    return found


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_valid() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yaml"))
    assert len({panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]}) > 20
    for rule in rules():
        assert {"summary", "action"} <= rule["annotations"].keys()


# What must be seen for an alert: series and their values, a minute apart.
M = 'model_name="m",instance="a"'
SIGNS = {
    "PacelineDown": {'up{job="paceline",instance="a"}': "1x5 0x30"},
    "PacelineEngineDead": {f"paceline:engine_up{{{M}}}": "1x20 0x15"},
    "PacelineStuck": {
        f"paceline:num_requests_running{{{M}}}": "3x35",
        f"paceline:generation_tokens_total{{{M}}}": "1000x35",
    },
    "PacelineAcceptanceCollapsed": {
        f"paceline:spec_decode_num_draft_tokens_total{{{M}}}": "0+600x35",
        f"paceline:spec_decode_num_accepted_tokens_total{{{M}}}": "0+60x35",
    },
    "PacelineSpeculationOff": {f"paceline:spec_decode_off{{{M}}}": "1x35"},
    "PacelineQueueGrowing": {f"paceline:num_requests_waiting{{{M}}}": "0+5x35"},
    "PacelineKVCacheFull": {f"paceline:kv_cache_usage_perc{{{M}}}": "0.99x35"},
    "PacelineErrors": {
        f'paceline:http_requests_total{{{M},handler="/v1/completions",status="500"}}': "0+10x35",
        f'paceline:http_requests_total{{{M},handler="/v1/completions",status="200"}}': "0+100x35",
    },
    "PacelineSlowFirstToken": {
        f'paceline:time_to_first_token_seconds_bucket{{{M},le="10.0"}}': "0+1x35",
        f'paceline:time_to_first_token_seconds_bucket{{{M},le="40.0"}}': "0+100x35",
        f'paceline:time_to_first_token_seconds_bucket{{{M},le="+Inf"}}': "0+100x35",
    },
    "PacelineLogLost": {f"paceline:log_lines_dropped_total{{{M}}}": "0x25 5x10"},
}
HEALTHY = {
    'up{job="paceline",instance="a"}': "1x35",
    f"paceline:engine_up{{{M}}}": "1x35",
    f"paceline:num_requests_running{{{M}}}": "3x35",
    f"paceline:generation_tokens_total{{{M}}}": "0+9000x35",
    f"paceline:spec_decode_num_draft_tokens_total{{{M}}}": "0+600x35",
    f"paceline:spec_decode_num_accepted_tokens_total{{{M}}}": "0+400x35",
    f"paceline:spec_decode_off{{{M}}}": "0x35",
    f"paceline:num_requests_waiting{{{M}}}": "3 0 3 0 0 1 0x30",
    f"paceline:kv_cache_usage_perc{{{M}}}": "0.7x35",
    f'paceline:http_requests_total{{{M},handler="/v1/completions",status="200"}}': "0+100x35",
    f'paceline:http_requests_total{{{M},handler="/v1/completions",status="400"}}': "0+50x35",
    f"paceline:log_lines_dropped_total{{{M}}}": "0x35",
}


def test_each_alert_fires_at_its_sign_and_none_without(tmp_path: Path) -> None:
    assert set(SIGNS) == {rule["alert"] for rule in rules()}

    def case(series: dict[str, str], query: str, count: int) -> dict[str, Any]:
        samples = [{"labels": "{}", "value": count}] if count else []
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": "30m", "exp_samples": samples}],
        }

    firing = 'count(ALERTS{{alertname=~"{}",alertstate="firing"}})'
    cases = [case(HEALTHY | signs, firing.format(name), 1) for name, signs in SIGNS.items()]
    cases.append(case(HEALTHY, firing.format(".*"), 0))
    tests = tmp_path / "tests.yaml"
    tests.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", str(tests))


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **params: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, query: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return result

    def wait_for(self, query: str, seconds: float = 30) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while not (found := self.query(query)):
            assert time.monotonic() < deadline, f"{query} stayed empty"
            time.sleep(0.2)
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with start() as process:
        yield RunningServer(process)


@pytest.fixture(scope="module")
def prometheus(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "paceline", "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}
        ],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    for _ in range(3):  # it takes no port 0: try a free one, and another if somebody was quicker
        with (folder / "log").open("w") as log:
            port = free_port()
            process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log,
            )  # fmt: skip
        if is_ready(f"http://127.0.0.1:{port}", process):
            break
    yield Prometheus(f"http://127.0.0.1:{port}")
    process.terminate()
    process.wait(20)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    return False


def test_every_metric_of_dashboard_and_alerts_is_scraped(server: RunningServer, prometheus: Prometheus) -> None:
    chat(server, max_tokens=20)
    with pytest.raises(Exception, match="temperature"):
        chat(server, temperature=-1)
    prometheus.wait_for('paceline:request_errors_total{kind="invalid_request_error"} > 0')
    scraped = set(prometheus.get("label/__name__/values"))
    queries = [*dashboard_queries(), *(rule["expr"] for rule in rules())]
    asked = {name for query in queries for name in _NAME.findall(query)}
    assert len(asked) > 25
    assert not asked - scraped
    for query in queries:
        prometheus.query(query)  # a wrong one would be no 200
    assert prometheus.query('up{job="paceline"}')[0]["value"][1] == "1"
    assert prometheus.query("paceline:generation_tokens_total")[0]["value"][1] == "20"


def test_the_rules_evaluate_and_the_engines_death_is_an_alert(server: RunningServer, prometheus: Prometheus) -> None:
    deadline = time.monotonic() + 30
    health: set[str] = set()
    while health != {"ok"}:
        assert time.monotonic() < deadline, health
        health = {rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
        time.sleep(0.2)
    assert prometheus.query("ALERTS") == []
    server.engines[0].kill()
    (alert,) = prometheus.wait_for('ALERTS{alertname="PacelineEngineDead",alertstate="firing"}')
    assert alert["metric"]["severity"] == "critical"
    server.ended(status=1, within=20)
    prometheus.wait_for('ALERTS{alertname="PacelineDown",alertstate="pending"}')
