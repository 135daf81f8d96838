"""paceline plan: what it takes, and in which order it speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.given import refuse_unused
from paceline.cli.lists import whole_numbers
from paceline.cli.writing import write_whole
from paceline.errors import ConfigurationError

_DOCUMENT = frozenset({"out", "as_json"})  # every answer can be printed and written as JSON
_OF_DRAFT_MODEL = frozenset({"draft_quantization", "draft_tp"})
_OF_DRAFTS = _OF_DRAFT_MODEL | {"acceptance", "acceptance_length", "k"}
NOT_MET = 3  # exit status: a plan was made, and says that the objective cannot be met
_MODELS, _LOAD, _GPUS, _MONEY, _OUTPUT = "Models", "Load and objective", "GPUs", "Money", "Output"


def _option(text: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


def plan(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A shape (llama-3.1-70b), a config.json, a directory or a known model.", show_default=False
        ),
    ] = None,
    draft: Annotated[str | None, _option("The draft, likewise; or 'ngram'. Without it: no drafts.", _MODELS)] = None,
    acceptance: Annotated[
        float | None, _option("P(a draft is kept | those before it were). Default 0.7.", _MODELS)
    ] = None,
    acceptance_length: Annotated[
        float | None, _option("Instead: tokens emitted a pass, the extra one included, whatever K is.", _MODELS)
    ] = None,
    k: Annotated[
        str | None, _option("Numbers of drafts a step to consider. Default 0,1,2,3,4,5,7.", _MODELS, "-k")
    ] = None,
    quantization: Annotated[str, _option("fp8 (default) or none.", _MODELS)] = "fp8",
    draft_quantization: Annotated[str | None, _option("fp8 or none, if it is not the target's.", _MODELS)] = None,
    quantize_lm_head: Annotated[bool, _option("The target's head in FP8 too.", _MODELS, "--quantize-lm-head")] = False,
    kv_cache_dtype: Annotated[str, _option("auto or fp8.", _MODELS)] = "auto",
    users: Annotated[int | None, _option("Requests in flight, over all replicas. Default 32.", _LOAD)] = None,
    requests_per_second: Annotated[float | None, _option("Instead: requests that arrive a second.", _LOAD)] = None,
    input_len: Annotated[int, _option("Mean tokens of a prompt. Default 1024.", _LOAD)] = 1024,
    output_len: Annotated[int, _option("Mean tokens of an answer. Default 256.", _LOAD)] = 256,
    cached_prompt: Annotated[float, _option("Share of a prompt found in the prefix cache. Default 0.", _LOAD)] = 0.0,
    ttft_ms: Annotated[float | None, _option("Objective: mean time to the first token.", _LOAD)] = None,
    tpot_ms: Annotated[float | None, _option("Objective: mean time a token after it.", _LOAD)] = None,
    greedy: Annotated[bool, _option("Temperature 0; sampling costs a little more.", _LOAD, "--greedy")] = False,
    gpu: Annotated[
        str, _option("Default h200; --list shows all. Several (h100,h200), or all: compared.", _GPUS)
    ] = "h200",
    tp: Annotated[str, _option("GPUs that share the target. Default 1,2,4,8.", _GPUS, "--tp")] = "1,2,4,8",
    draft_tp: Annotated[int, _option("GPUs that share the draft; 1: each has a whole one. Default 1.", _GPUS)] = 1,
    max_model_len: Annotated[int | None, _option("Default: twice the lengths, at least 4096.", _GPUS)] = None,
    max_num_seqs: Annotated[int | None, _option("Most requests on a replica.", _GPUS)] = None,
    max_num_batched_tokens: Annotated[int, _option("Tokens of a prompt read in one step. Default 2048.", _GPUS)] = 2048,
    gpu_memory_utilization: Annotated[float, _option("Share of a GPU's memory. Default 0.9.", _GPUS)] = 0.9,
    calibration: Annotated[
        Path | None, _option("A JSON of 'paceline bench offline' on this GPU: fit the efficiency to it.", _GPUS)
    ] = None,
    hardware: Annotated[Path | None, _option("More GPUs, TOML (docs/plan.md).", _GPUS)] = None,
    price: Annotated[
        float | None, _option("US dollars per GPU and hour: instead of --cloud and --prices.", _MONEY)
    ] = None,
    prices: Annotated[
        Path | None, _option("Your own prices, TOML (docs/plan.md): they count before list prices.", _MONEY)
    ] = None,
    cloud: Annotated[
        str | None,
        _option("The price of this cloud, machines rented whole. Default: the median of all list prices.", _MONEY),
    ] = None,
    utilization: Annotated[float, _option("Share of the month in which the load stands. Default 1.", _MONEY)] = 1.0,
    sell_input: Annotated[float, _option("Selling price, US dollars per million tokens in.", _MONEY)] = 0.0,
    sell_output: Annotated[float, _option("Selling price, US dollars per million tokens out.", _MONEY)] = 0.0,
    preset: Annotated[str | None, _option("llama-70b-4xh100: a published claim, row by row.", _OUTPUT)] = None,
    out: Annotated[Path | None, _option("Write the JSON document here.", _OUTPUT, "--out")] = None,
    as_json: Annotated[bool, _option("Print the JSON document instead of tables.", _OUTPUT, "--json")] = False,
    html: Annotated[Path | None, _option("Write a page with sliders here; it needs no network.", _OUTPUT)] = None,
    list_known: Annotated[
        bool,
        _option("Show the GPUs and prices that are known (with --hardware, --prices: yours too).", _OUTPUT, "--list"),
    ] = False,
) -> None:
    """How many GPUs a load needs, what they cost, and what speculation saves: on paper, before any is rented.

    Exit status: 0 planned, 3 planned and the objective cannot be met, 2 could not plan.

    [bold]Examples[/bold]

      paceline plan llama-3.1-70b --draft llama-3.2-1b --acceptance 0.78 --gpu h200 --users 64 --tpot-ms 20

      paceline plan llama-3.1-70b --draft llama-3.2-1b --gpu h100 --requests-per-second 20 --input-len 2000
      --output-len 400 --ttft-ms 500 --tpot-ms 25 --cloud lambda --sell-output 0.9 --html plan.html

      paceline plan --preset llama-70b-4xh100
    """
    from paceline.capacity.request import Request

    if list_known:
        refuse_unused(ctx, "--list shows what is known", but={"list_known", "hardware", "prices", *_DOCUMENT})
        _show_known(hardware, prices, out, as_json)
        return
    if preset is not None:
        refuse_unused(
            ctx,
            "--preset checks one claim, whose models, load, GPUs and prices are fixed, as a table without sliders",
            but={"preset", *_DOCUMENT},
        )
        _run_preset(preset, out, as_json)
        return
    if draft is None:
        refuse_unused(ctx, "Nothing drafts without --draft", only=_OF_DRAFTS if k != "0" else _OF_DRAFTS - {"k"})
    elif draft == "ngram":
        refuse_unused(ctx, "--draft ngram has no model", only=_OF_DRAFT_MODEL)
    if not model:
        raise ConfigurationError("MODEL is missing: a shape such as llama-3.1-70b, a config.json or a model directory.")
    if out is not None and html is not None and out == html:
        raise ConfigurationError(f"--out and --html are both '{out}': give two files.")
    ks = whole_numbers("-k", k, "0,3,5") if k is not None else Request(model=model).ks
    request = Request(
        model=model,
        draft=draft,
        gpu=gpu,
        users=users,
        requests_per_second=requests_per_second,
        input_len=input_len,
        output_len=output_len,
        cached=cached_prompt,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        acceptance=acceptance,
        acceptance_length=acceptance_length,
        ks=ks,
        tps=whole_numbers("--tp", tp),
        draft_tp=draft_tp,
        quantization=quantization,
        draft_quantization=draft_quantization,
        quantize_lm_head=quantize_lm_head,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        price=price,
        prices_file=prices,
        cloud=cloud,
        hardware_file=hardware,
        utilization=utilization,
        sell_input=sell_input,
        sell_output=sell_output,
        calibration=calibration,
        is_greedy=greedy,
    )
    run = _compare if gpu == "all" or "," in gpu else _run
    if not run(request, out, as_json, html):
        raise typer.Exit(NOT_MET)


def _compare(request: Any, out: Path | None, as_json: bool, html: Path | None) -> bool:
    """Whether any of the GPUs meets the objective."""
    import json

    from paceline.bench.report import make_console
    from paceline.capacity.comparison import compare, comparison_table, comparison_words, gpu_names
    from paceline.capacity.document import document
    from paceline.capacity.hardware import load_gpus
    from paceline.capacity.tables import load_in_words
    from paceline.cli.console import show_notes

    if html is not None:
        raise ConfigurationError(
            "--html is made from the plan for one GPU, and the page switches to every other: give --gpu one name."
        )
    names = gpu_names(request.gpu, load_gpus(request.hardware_file))
    found = compare(request, names)
    asked = [compared.asked for compared in found if compared.asked is not None]
    show_notes(dict.fromkeys(note for one in asked for note in one.notes if "no FP8" not in note))
    plans = {compared.gpu: document(compared.answer, None) for compared in found if compared.answer is not None}
    text = json.dumps({"tool": "plan", "comparison": plans}, indent=1, allow_nan=False) + "\n"
    if out is not None:
        write_whole(out, text)
    is_met = any(compared.answer is not None and compared.answer.best is not None for compared in found)
    if as_json:
        typer.echo(text, nl=False)
        return is_met
    console = make_console()
    console.print(comparison_table(found, load_in_words(asked[0].question)))
    for words in comparison_words(found):
        console.print(words, markup=False)
    console.print(_provenance(next(iter(plans.values()))), markup=False, soft_wrap=True)
    return is_met


def _provenance(plan: dict[str, Any]) -> str:
    return f"{plan['date'][:10]}, Paceline {plan['versions']['paceline']}: {plan['command']}"


def _run(request: Any, out: Path | None, as_json: bool, html: Path | None) -> bool:
    """Whether the objective can be met."""
    import json

    from paceline.bench.report import make_console
    from paceline.capacity.document import document
    from paceline.capacity.planner import answer
    from paceline.capacity.request import read_request
    from paceline.capacity.sentences import command_in_words
    from paceline.capacity.tables import render
    from paceline.cli.console import say, show_notes

    asked = read_request(request)
    found = answer(asked.question)
    show_notes(asked.notes)
    content = document(found, asked.calibration)
    content["notes"] = [*asked.notes, *content["notes"]]
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    if out is not None:
        write_whole(out, text)
    if html is not None:
        write_whole(html, _page(request, asked, found), "--html")
        say(f"Page with sliders: {html}")
    if as_json:
        typer.echo(text, nl=False)
    else:
        console = make_console()
        console.print(render(found, asked.calibration))
        for line in filter(None, (command_in_words(found), _provenance(content))):
            console.print(line, markup=False, soft_wrap=True)  # a command is copied: no line ends within it
    return found.best is not None


def _page(request: Any, asked: Any, found: Any) -> str:
    from paceline.capacity.page import page_data, render_page
    from paceline.capacity.request import for_every_gpu

    return render_page(
        page_data(found, for_every_gpu(request, asked.gpus), asked.gpus, asked.prices, asked.calibration)
    )


def _run_preset(name: str, out: Path | None, as_json: bool) -> None:
    """Markdown, or the rows as JSON."""
    import json

    from paceline.capacity.start_document import PRESET, document, render_markdown

    if name != PRESET:
        raise ConfigurationError(f"--preset '{name}' is not known; there is {PRESET}.")
    text = json.dumps(document(), indent=1) + "\n"
    if out is not None:
        write_whole(out, text)
    typer.echo(text if as_json else render_markdown(), nl=False)


def _show_known(hardware: Path | None, prices: Path | None, out: Path | None, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from paceline.bench.report import make_console
    from paceline.capacity.hardware import load_gpus
    from paceline.capacity.prices import load_prices
    from paceline.capacity.tables import known_tables

    gpus = load_gpus(hardware)
    costs = load_prices(prices, gpus)
    known = {
        "tool": "plan",
        "gpus": {key: asdict(gpu) for key, gpu in gpus.items()},
        "prices": [asdict(price) for price in costs],
    }
    text = json.dumps(known, indent=1, allow_nan=False) + "\n"
    if out is not None:
        write_whole(out, text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        make_console().print(known_tables(gpus, costs))
