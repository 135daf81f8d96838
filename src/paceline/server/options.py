"""ServerOptions: what `paceline serve` takes beside the engine's arguments."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.arguments.served_names import wrong_served_name
from paceline.logs import LogOptions
from paceline.server.access.options import MAX_SECONDS, AccessOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Seconds where a name ends so."""

    served_model_names: tuple[str, ...] = ()  # the first labels the metrics; none: the model's own name
    shutdown_grace_seconds: float = 10.0  # for running requests after SIGTERM; then they get an error
    access: AccessOptions = field(default_factory=AccessOptions)
    stall_seconds: float = 60.0  # without progress of the engine, until /health is 503; longer than any step
    logs: LogOptions = field(default_factory=LogOptions)
    otlp_traces_endpoint: str | None = None  # where OpenTelemetry spans go; None: nowhere


def check_server_options(options: ServerOptions, problems: list[str]) -> None:
    """What is wrong with them goes to `problems`, in words of the command line."""
    for flag, seconds, least in (
        ("--shutdown-grace", options.shutdown_grace_seconds, 0),
        ("--stall-after", options.stall_seconds, 1),
    ):
        if not least <= seconds <= MAX_SECONDS:
            problems.append(f"{flag} must be from {least} to {MAX_SECONDS} seconds, not {seconds:g}.")
    names = options.served_model_names
    problems += [
        f"--served-model-name {wrong}." for wrong in dict.fromkeys(map(wrong_served_name, names)) if wrong is not None
    ]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"--served-model-name '{name}' is given more than once; give each name once.")
