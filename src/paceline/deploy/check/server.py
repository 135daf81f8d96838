"""The cluster's own dry run, with its webhooks and quotas: nothing is stored."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from paceline.deploy.secrecy import redacted
from paceline.errors import ConfigurationError

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

# What kubectl says when no API server has looked at the files.
_NO_ANSWER = (
    "failed to download openapi", "connection refused", "no such host", "Unable to connect", "i/o timeout",
    "must be logged in", "no configuration has been provided", 'error: context "',
)  # fmt: skip


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def server_dry_run(
    paths: Sequence[Path], context: str | None = None, run: Run = _run, hidden: Collection[str] = ()
) -> list[str]:
    """What the cluster says against the files, a line each, without what is `hidden`; empty when it would take them.

    Raises ConfigurationError where there is no kubectl or no answer.
    """
    if shutil.which("kubectl") is None:
        raise ConfigurationError("--server needs kubectl on the PATH, set up for the cluster.")
    command = ["kubectl", "apply", "--dry-run=server", "--validate=strict"]
    command += ["--context", context] if context else []
    for path in paths:
        # A folder that was rendered has a kustomization; one that was not is taken as it is.
        command += ["-k" if (path / "kustomization.yaml").is_file() else "-f", str(path)]
    try:
        done = run(command)
    except subprocess.TimeoutExpired:
        raise ConfigurationError("The cluster did not answer within 5 minutes.") from None
    lines = [line for line in redacted(done.stderr, hidden).splitlines() if line.strip()]
    if done.returncode == 0:
        return []
    if any(sign in done.stderr for sign in _NO_ANSWER):
        raise ConfigurationError(
            f"The cluster could not be asked: {' '.join(lines[-1].split())} (kubectl cluster-info)"
        )
    return lines or [f"kubectl ended with status {done.returncode}."]
