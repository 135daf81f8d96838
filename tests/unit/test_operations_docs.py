"""The pages for whoever runs a server say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import yaml
from test_server_telemetry import Server

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_the_configuration_page_is_current() -> None:
    path = ROOT / "docs" / "make_configuration.py"
    spec = importlib.util.spec_from_file_location("make_configuration", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.render(), "options have changed: run python docs/make_configuration.py"


def test_every_metric_is_explained_and_every_one_explained_exists() -> None:
    table = OPERATIONS.split("## Metrics")[1].split("## Alerts")[0]
    explained = set(re.findall(r"`([a-z][a-z0-9_]+)(?:\{[a-z_,]+\})?`", table.split("| metric |")[1]))
    help_lines = [line for line in metrics_text().splitlines() if line.startswith("# TYPE paceline:")]
    families = {line.split()[2].removeprefix("paceline:") for line in help_lines}
    assert families <= explained
    assert {name for name in explained if name not in families} <= {"process_", "authorization", "kind"} | {
        *("stop", "length", "abort", "error")
    }


def metrics_text() -> str:
    from paceline.engine.statistics import SpeculationChoices

    server = Server()
    server.engine.engine.counts.choices = SpeculationChoices()
    return server.request("GET", "/metrics").text


def test_every_alert_has_its_row() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        assert f"| {rule['alert']} |" in OPERATIONS
