"""Tables of costs on disk: whatever the file holds, it is read as it was written or measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine.speculation_simulator import cpu_costs, gpu_costs

from paceline.engine.cost_cache import _read, _write
from paceline.engine.step_costs import StepCosts

OWNER: dict[str, object] = {"hardware": "h"}


@pytest.mark.parametrize("costs", [cpu_costs(), gpu_costs()], ids=["cpu", "gpu"])
def test_what_was_written_is_read(tmp_path: Path, costs: StepCosts) -> None:
    path = tmp_path / "costs" / "a.json"
    _write(path, OWNER, costs)
    assert _read(path, OWNER) == costs
    assert _read(path, {"hardware": "another"}) is None


def damaged(text: str) -> dict[str, bytes]:
    """A damaged number is still a number, a shortened list still a list: their shape says nothing."""
    whole = json.loads(text)
    verify = whole["costs"]["verify"]
    old = {name: value for name, value in whole.items() if name != "checksum"}

    def with_verify(values: list[float]) -> bytes:
        return json.dumps({**whole, "costs": {**whole["costs"], "verify": {**verify, "values": values}}}).encode()

    return {
        "empty": b"",
        "half": text[: len(text) // 2].encode(),
        "bytes": text.encode().replace(b"verify", b"ver\xffy"),
        "nested": b'{"belongs_to": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        "no points": with_verify([]),
        "a point less": with_verify(verify["values"][:-1]),
        "below nothing": with_verify([-1.0, *verify["values"][1:]]),
        "a thousand times": with_verify([value * 1e3 for value in verify["values"]]),
        "an older format": json.dumps(old).encode(),
    }


def test_a_damaged_file_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    _write(path, OWNER, cpu_costs())
    assert _read(path, OWNER) is not None
    for name, content in damaged(path.read_text()).items():
        path.write_bytes(content)
        assert _read(path, OWNER) is None, name


def test_a_file_that_cannot_be_replaced_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()
    (path / "in the way").touch()
    _write(path, OWNER, cpu_costs())
    assert _read(path, OWNER) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
