"""paceline serve."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from paceline.arguments import resolve_arguments
from paceline.cli.console import console, say, show_configuration, show_notes
from paceline.cli.options import model_or_default_pair
from paceline.server.options import ServerOptions
from paceline.server.serve import open_port, serve


def run_server(model: str | None, engine: dict[str, Any], host: str, port: int, options: ServerOptions) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with open_port(host, port) as listener:
        resolved = resolve_arguments(model_or_default_pair(model, engine), progress=say)
        show_notes(resolved.notes)
        say(f"Loading {resolved.config.model.name} …")
        served = options.served_model_names or (resolved.config.model.name,)
        return serve(resolved, listener, lambda table, url: _announce(table, url, served), options)


def _announce(description: dict[str, str], url: str, names: Sequence[str]) -> None:
    show_configuration(description)
    example = f'{{"model": "{names[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    console.print(f"Serving [bold]{', '.join(names)}[/] on [bold]{url}[/] (Ctrl-C ends it). Try:", soft_wrap=True)
    console.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{example}'",
        soft_wrap=True,
        markup=False,
    )
