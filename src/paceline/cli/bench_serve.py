"""paceline bench serve and paceline bench report: what they take, and in which order they speak."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.lists import numbers, parts, refuse_twice, short
from paceline.cli.writing import OutFolder, refusal
from paceline.errors import ConfigurationError, InvalidRequestError, PacelineError

if TYPE_CHECKING:
    from paceline.bench.serve.records import Load
    from paceline.bench.serve.results import Results

_SERVERS, _LOAD, _PROMPTS, _REPORT = "Servers and arms", "Load", "Prompts and answers", "What is reported"
_DEFAULT_URL = "http://127.0.0.1:8000"


def _option(text: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


def serve(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    url: Annotated[
        list[str] | None,
        _option(f"[NAME=]ADDRESS. Repeated: the servers are compared. Default {_DEFAULT_URL}.", _SERVERS),
    ] = None,
    speculation: Annotated[
        str | None,
        _option(
            "Arms of one server: on, off or numbers of drafts, such as on,off or 0,3,5. Default: on,off where one "
            "server lets requests choose, else as it is.",
            _SERVERS,
        ),
    ] = None,
    baseline: Annotated[
        str | None, _option("The arm that others are measured against. Default: off, else the last.", _SERVERS)
    ] = None,
    model: Annotated[str | None, _option("Name in the API. Default: the first one served.", _SERVERS)] = None,
    api_key_env: Annotated[
        list[str] | None,
        _option("[NAME=]variable that holds the API key. Default: OPENAI_API_KEY, if it is set, for all.", _SERVERS),
    ] = None,
    ca_file: Annotated[
        Path | None, _option("PEM file of the authority that signed an https server's certificate.", _SERVERS)
    ] = None,
    insecure: Annotated[bool, _option("Take any certificate of an https server.", _SERVERS, "--insecure")] = False,
    endpoint: Annotated[str, _option("chat (default), or completions for a model without a template.", _SERVERS)] = (
        "chat"
    ),
    concurrency: Annotated[str | None, _option("Numbers of users, such as 1,2,4. Default 1,2,4,8.", _LOAD)] = None,
    rate: Annotated[str | None, _option("Requests a second, arriving as a Poisson process.", _LOAD)] = None,
    num_prompts: Annotated[
        int | None, _option("Of a case. Default 3 a user or 30 seconds' arrivals, at least 16.", _LOAD)
    ] = None,
    seeds: Annotated[
        str, _option("One round each, in an order of prompts of its own; arms take turns. Default 0,1.", _LOAD)
    ] = "0,1",
    warmup: Annotated[int, _option("Requests before each load and arm. Default 4.", _LOAD)] = 4,
    timeout: Annotated[float, _option("Seconds for an answer. Default 600.", _LOAD)] = 600.0,
    prompts: Annotated[
        Path | None,
        _option(
            "JSONL (category and turns, messages, or prompt), ShareGPT's JSON, or text, one prompt a line.", _PROMPTS
        ),
    ] = None,
    all_turns: Annotated[
        bool, _option("Ask every turn of a prompt, not the first alone.", _PROMPTS, "--all-turns")
    ] = False,
    input_len: Annotated[
        int | None, _option("Made-up prompts of so many tokens. They flatter; ends are ignored.", _PROMPTS)
    ] = None,
    max_tokens: Annotated[int, _option("Longest answer. Default 256.", _PROMPTS)] = 256,
    temperature: Annotated[float, _option("Default 0.", _PROMPTS)] = 0.0,
    ignore_eos: Annotated[
        bool, _option("Answer to the full length. Flatters drafts.", _PROMPTS, "--ignore-eos")
    ] = False,
    extra_body: Annotated[str | None, _option("JSON object: more fields of every request.", _PROMPTS)] = None,
    shared_prefixes: Annotated[
        bool,
        _option("Leave prompts as they are, so that they may hit the prefix cache.", _PROMPTS, "--shared-prefixes"),
    ] = False,
    count: Annotated[
        str, _option("How tokens are counted: auto, usage, logprobs, tokenizer or share.", _REPORT)
    ] = "auto",
    tokenizer: Annotated[
        str | None, _option("Known name or directory; used where the server does not count.", _REPORT)
    ] = None,
    goodput: Annotated[
        list[str] | None, _option("Objectives in ms, such as ttft:500 tpot:50 (also itl, e2e).", _REPORT)
    ] = None,
    hardware: Annotated[
        list[str] | None, _option("[NAME=]what the server runs on. Default: this machine, if it is local.", _REPORT)
    ] = None,
    gpus: Annotated[list[str] | None, _option("[NAME=]number of GPUs behind the server.", _REPORT)] = None,
    price_per_hour: Annotated[
        list[str] | None, _option("[NAME=]US dollars an hour for the server's hardware.", _REPORT)
    ] = None,
    out: Annotated[
        Path | None, _option("New folder for requests, figures and report. Default paceline-bench-DATE.", _REPORT)
    ] = None,
) -> None:
    """What users of a running server get, with and without speculation: latency, throughput, break-even.

    Works against any OpenAI-compatible server. Without options: the server on port 8000, speculation on and off in
    turns. Writes every token's time (requests.jsonl), the figures (bench.json) and a report (html, png, md).

    [bold]Examples[/bold]

      paceline bench serve --prompts prompts.jsonl --concurrency 1,2,4,8,16,32 --goodput ttft:500 tpot:50

      paceline bench serve --url paceline=http://127.0.0.1:8000 --url vllm=http://127.0.0.1:8001 --rate 1,2,4

      paceline bench serve --speculation 0,3,5 --concurrency 1,8,64 --gpus 4 --price-per-hour 11.60
    """
    from paceline.bench.serve.objectives import parse_objectives
    from paceline.bench.serve.options import ServeOptions

    servers = _servers(url or [_DEFAULT_URL])
    options = ServeOptions(
        servers=servers,
        speculation=[] if speculation is None else _arms(speculation),
        baseline=baseline,
        model=model,
        loads=_loads(concurrency, rate),
        prompts=prompts,
        input_len=input_len,
        all_turns=all_turns,
        num_prompts=num_prompts,
        seeds=[int(seed) for seed in numbers("--seeds", seeds, example="0,1,2")],
        warmup=warmup,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        endpoint=endpoint,
        counting=count,
        tokenizer=tokenizer,
        fresh_prompts=not shared_prefixes,
        extra_body=_object("--extra-body", extra_body),
        goodput=parse_objectives([*(goodput or []), *_objectives_only(words or [], goodput)]),
        hardware=_named_once("--hardware", hardware or []),
        gpus=_named_numbers("--gpus", gpus or [], int),
        prices=_named_numbers("--price-per-hour", price_per_hour or [], float),
        timeout=timeout,
        ca_file=ca_file,
        insecure=insecure,
    )
    _run(options, out, _api_keys(api_key_env or [], servers))


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Folder, bench.json or requests.jsonl of paceline bench serve; GuideLLM's JSON, vllm bench serve's.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.png and report.md.")] = Path(),
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The arm that all others are measured against. Default: in each run its own (speculation off, else "
            "its last arm); for runs of one arm, the last run's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Reports of results of any day, side by side: one HTML page, a PNG and a Markdown table.

    [bold]Examples[/bold]

      paceline bench report paceline-bench-1/bench.json paceline-bench-2/bench.json

      paceline bench report guidellm.json bench.json --out compared
    """
    from paceline.bench.serve.across import combine, refuse_one_run_twice
    from paceline.bench.serve.reading import read_results
    from paceline.cli.termination import signals_as_ctrl_c

    resolved = [path.resolve() for path in files]
    if twice := [path for path in files if resolved.count(path.resolve()) > 1]:
        raise ConfigurationError(f"'{twice[0]}' is given twice: a run tells nothing beside itself.")
    parts = [read_results(path) for path in files]
    refuse_one_run_twice([str(path) for path in files], parts)
    results = combine(parts, baseline)
    with signals_as_ctrl_c(), OutFolder(out, is_new=False):
        _show(results, results.notes)
        _write_report(results, out)


def _run(options: Any, out: Path | None, api_keys: Mapping[str, str]) -> None:
    from paceline.bench.page.renderers import missing_packages
    from paceline.cli.console import show_notes
    from paceline.cli.termination import signals_as_ctrl_c

    folder = out or Path(f"paceline-bench-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    with signals_as_ctrl_c(), OutFolder(folder):
        show_notes(missing_packages())
        broken = _measure(options, folder / "requests.jsonl", api_keys)
        _conclude(folder, broken)


def _measure(options: Any, raw: Path, api_keys: Mapping[str, str]) -> BaseException | None:
    """What cut the run short, if anything did; `raw` holds the cases before it."""
    from paceline.bench.serve import session
    from paceline.cli.bench_progress import BenchProgress

    try:
        with BenchProgress(len(options.loads) * len(options.seeds)) as progress:
            session.run(options, raw, progress, api_keys)
    except (PacelineError, KeyboardInterrupt) as error:
        return error
    return None


def _conclude(folder: Path, broken: BaseException | None) -> None:
    """Figures and report of what was measured. Raises `broken`, whatever was kept."""
    from paceline.bench.serve.records import read_raw
    from paceline.bench.serve.results import CUT_SHORT, write_results
    from paceline.bench.serve.summary import summarize
    from paceline.cli.console import say

    raw = folder / "requests.jsonl"
    recorded = read_raw(raw) if raw.exists() else None
    results = summarize(recorded) if recorded else None
    if recorded is None or results is None or not results.cases:
        raw.unlink(missing_ok=True)
        if isinstance(broken, KeyboardInterrupt):
            say("Interrupted before the first case was over: there is nothing to keep, and no file was left.")
        raise broken or PacelineError("Nothing was measured.")
    if broken is not None:
        reason = str(broken).rstrip(".") or "interrupted"
        results.notes.append(f"{CUT_SHORT}{reason}. These are the cases before that.")
    write_results(folder / "bench.json", results)
    _show(results, [note for note in results.notes if note not in recorded.header.notes])  # those were said before
    say(f"Wrote {raw} (when how many tokens came) and {folder / 'bench.json'}.")
    _write_report(results, folder)
    if broken is not None:
        raise broken


def _show(results: Results, notes: Sequence[str]) -> None:
    from paceline.bench.page.terminal import tables
    from paceline.bench.report import make_console
    from paceline.cli.console import show_notes

    console = make_console()
    for table in tables(results):
        console.print(table)
    for line in results.warnings:
        console.print(line, markup=False, style="bold yellow")
    for found in results.break_even:
        console.print(found.words, markup=False)
    show_notes(notes)


def _write_report(results: Results, folder: Path) -> None:
    from paceline.bench.page.renderers import write_report
    from paceline.cli.console import say, show_notes

    try:
        written, notes = write_report(results, folder)
    except OSError as error:
        raise refusal("--out", Path(error.filename or folder), error) from None
    show_notes(notes)
    say(f"Wrote {', '.join(map(str, written))}.")


def _api_keys(given: Sequence[str], servers: Mapping[str, str]) -> dict[str, str]:
    """Name of a server -> its key; '' stands for all others. One server's key is not for another to read, so where
    some are named the rest get none, unless a variable is given for all."""
    variables = _named_once("--api-key-env", given)
    if strangers := [name for name in variables if name and name not in servers]:
        raise ConfigurationError(
            f"--api-key-env: there is no server '{short(strangers[0])}' (there are: {', '.join(servers)})."
        )
    if not variables and "OPENAI_API_KEY" in os.environ:
        return {"": key} if (key := _api_key("OPENAI_API_KEY", "OPENAI_API_KEY")) else {}
    keys = {name: _api_key(variable, f"--api-key-env {short(variable)}") for name, variable in variables.items()}
    for name, key in keys.items():
        if not key:
            raise ConfigurationError(
                f"--api-key-env {short(variables[name])}: there is no such variable, or it is empty."
            )
    return keys


def _api_key(variable: str, source: str) -> str:
    """Blanks and ends of lines around it, as a file leaves them, are no part of it. It is never repeated."""
    key = os.environ.get(variable, "").strip()
    if any(not "!" <= letter <= "~" for letter in key):
        raise ConfigurationError(f"{source}: what it holds is no key: blanks or letters that no header can carry.")
    return key


def _arms(speculation: str) -> list[str]:
    words = [{"off": "0"}.get(word, word) for word in parts("--speculation", speculation)]
    refuse_twice("--speculation", speculation, words)  # off is 0
    return words


def _loads(concurrency: str | None, rate: str | None) -> list[Load]:
    from paceline.bench.serve.records import Load

    if concurrency is None and rate is None:
        concurrency = "1,2,4,8"
    users = [] if concurrency is None else numbers("--concurrency", concurrency)
    rates = [] if rate is None else numbers("--rate", rate, float)
    return [*(Load("users", value) for value in users), *(Load("rate", value) for value in rates)]


def _servers(given: Sequence[str]) -> dict[str, str]:
    """name -> address; without a name, host and port are one."""
    from paceline.bench.serve.http_stream import same_server, server_url

    found: dict[str, str] = {}
    for text in given:
        name, address = _named(text) if "://" not in text.partition("=")[0] else ("", text)
        if name == "" and text.startswith("="):
            raise ConfigurationError(f"--url {short(text)}: the name in front of '=' is empty.")
        if not name and (
            same := [other for other in found.values() if same_server(server_url(other), server_url(address))]
        ):
            raise ConfigurationError(
                f"--url {short(address)}: this is the server of --url {short(same[0])}; beside itself it tells "
                "nothing. If that is what you want to see, give each a name: --url a=… --url b=…"
            )
        name = name or address.partition("://")[2].rstrip("/")
        if name in found:
            raise ConfigurationError(
                f"--url: two servers are named '{name}'. Give each a name of its own: --url NAME={address}"
            )
        found[name] = address
    return found


def _named(text: str) -> tuple[str, str]:
    """'NAME=VALUE', or a value for all (an empty name)."""
    name, equals, value = text.partition("=")
    return (name.strip(), value.strip()) if equals else ("", text.strip())


def _named_once(option: str, given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_named, given):
        if name in found:
            raise ConfigurationError(f"{option} is given twice for {f'{short(name)!r}' if name else 'all servers'}.")
        found[name] = value
    return found


def _named_numbers(option: str, given: Iterable[str], kind: type[int] | type[float]) -> dict[str, Any]:
    found = {}
    for name, value in _named_once(option, given).items():
        text = f"{name}={value}" if name else value
        try:
            found[name] = kind(value)
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise ConfigurationError(f"{option} {short(text)}: '{short(value)}' is not {words}.") from None
    return found


def _object(option: str, text: str | None) -> dict[str, Any]:
    import json

    from paceline.json_text import loads

    if text is None:
        return {}
    where = f"{option} {short(text)}"
    try:
        found = loads(text)
    except InvalidRequestError as error:  # a name twice, too deep
        raise ConfigurationError(f"{where}: {error}") from None
    except ValueError as error:
        raise ConfigurationError(f"{where}: this is not JSON ({error}); give an object.") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f'{where}: give a JSON object, such as {{"top_p": 0.9}}.')
    try:
        json.dumps(found, allow_nan=False)
    except ValueError:
        raise ConfigurationError(f"{where}: NaN and infinity are no numbers of JSON.") from None
    return found


def _objectives_only(words: Sequence[str], goodput: Sequence[str] | None) -> Sequence[str]:
    """`--goodput ttft:500 tpot:50`: what follows an option's first word comes as arguments."""
    if words and not goodput:
        raise ConfigurationError(f"'{words[0]}' is not expected here. Servers are given as --url ADDRESS.")
    return words
