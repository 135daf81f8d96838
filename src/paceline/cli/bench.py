"""paceline bench offline: what it takes, and in which order it speaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from paceline.cli.bench_serve import report, serve
from paceline.cli.finite import App, OnceCommand
from paceline.cli.given import refuse_unused
from paceline.cli.lists import refuse_twice, whole_numbers
from paceline.cli.termination import signals_as_ctrl_c
from paceline.cli.writing import claimed_file, write_whole
from paceline.errors import ConfigurationError

bench_app = App(no_args_is_help=True, help="Measure speed: of a running server, or of the engine alone.")
bench_app.command(cls=OnceCommand)(serve)
bench_app.command(cls=OnceCommand)(report)

_OF_DRAFT = frozenset({"draft_quantization", "quantize_draft_lm_head", "draft_tensor_parallel_size"})
_MODEL, _SPECULATION, _RUN, _ENGINE = "Models", "Speculation", "Runs", "Engine"


def _option(text: str, panel: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


@bench_app.command(cls=OnceCommand)
def offline(
    ctx: typer.Context,
    model: Annotated[str, _option("A shape (llama-3.1-70b), a config.json, a directory or a known model.", _MODEL)],
    draft: Annotated[str | None, _option("The draft, likewise; or 'ngram'.", _MODEL)] = None,
    load_format: Annotated[
        str | None, _option("dummy: random weights, the default for a shape. auto: the real ones.", _MODEL)
    ] = None,
    dtype: Annotated[str | None, _option("auto, float32, bfloat16 or float16. Default auto.", _MODEL)] = None,
    quantization: Annotated[str | None, _option("fp8: the linears of both models.", _MODEL)] = None,
    draft_quantization: Annotated[
        str | None, _option("fp8 or none: the draft's, if it differs from the target's.", _MODEL)
    ] = None,
    quantize_lm_head: Annotated[
        bool, _option("The target's output head in FP8 as well.", _MODEL, "--quantize-lm-head")
    ] = False,
    quantize_draft_lm_head: Annotated[
        bool, _option("The draft's output head in FP8 as well.", _MODEL, "--quantize-draft-lm-head")
    ] = False,
    kv_cache_dtype: Annotated[str | None, _option("auto or fp8.", _MODEL)] = None,
    k: Annotated[
        str,
        _option(
            "Numbers of drafts a step, such as 0,3,5. 'none': 0 without loading the draft. 'adaptive': as many as pay, "
            "up to the largest given (or 5).",
            _SPECULATION,
            "-k",
        ),
    ] = "0",
    synthetic_acceptance: Annotated[
        float | None, _option("Keep each draft with this probability if those before it were kept.", _SPECULATION)
    ] = None,
    synthetic_acceptance_length: Annotated[
        float | None, _option("Emit so many tokens a pass on average, the extra one included.", _SPECULATION)
    ] = None,
    batch: Annotated[str, _option("Numbers of sequences, such as 1,8,32. Default 1.", _RUN)] = "1",
    input_len: Annotated[int, _option("Tokens of a prompt. Default 128.", _RUN)] = 128,
    output_len: Annotated[int, _option("Tokens of an answer. Default 256.", _RUN)] = 256,
    repeats: Annotated[
        int, _option("Runs of each batch and K; the median counts (of two in the middle the slower). Default 1.", _RUN)
    ] = 1,
    temperature: Annotated[float, _option("Default 0.", _RUN)] = 0.0,
    seed: Annotated[int, _option("Of prompts and sampling. Default 0.", _RUN)] = 0,
    bandwidth: Annotated[float | None, _option("Of the memory in GB/s; measured if not given.", _RUN)] = None,
    out: Annotated[Path | None, _option("Write the JSON document here as well.", _RUN)] = None,
    device: Annotated[str | None, _option("auto, cpu or cuda. Default auto.", _ENGINE)] = None,
    block_size: Annotated[int | None, _option("Positions in one KV block. Default 16.", _ENGINE)] = None,
    max_num_batched_tokens: Annotated[int | None, _option("Most tokens in one step.", _ENGINE)] = None,
    gpu_memory_utilization: Annotated[float | None, _option("Share of a GPU's memory. Default 0.9.", _ENGINE)] = None,
    kv_cache_memory_bytes: Annotated[int | None, _option("Size of the KV cache.", _ENGINE)] = None,
    enforce_eager: Annotated[bool, _option("Do without captured graphs.", _ENGINE, "--enforce-eager")] = False,
    tensor_parallel_size: Annotated[
        int | None, _option("GPUs that share the target: 1, 2, 4 or 8. Default 1.", _ENGINE)
    ] = None,
    draft_tensor_parallel_size: Annotated[
        int | None, _option("GPUs that share one copy of the draft. Default 1: a whole one on each.", _ENGINE)
    ] = None,
) -> None:
    """Decode speed by batch and K, without server and tokenizer, and how far from the hardware's limit.

    The last line of standard output is one JSON document.

    [bold]Examples[/bold]

      paceline bench offline --model llama-3.1-70b --draft llama-3.2-1b --quantization fp8
      --synthetic-acceptance 0.78 --batch 1,8,32,64,128 -k 0,3,5

      paceline bench offline --model smollm2-135m-instruct --draft smollm2-135m-instruct-draft -k 0,5
    """
    from paceline.bench.acceptance import SyntheticAcceptance
    from paceline.bench.bounds import Bounds
    from paceline.bench.sweep import Models, Sweep

    if draft is None:
        refuse_unused(ctx, "Without --draft there is none to set up", only=_OF_DRAFT)
    elif draft == "ngram":
        refuse_unused(ctx, "--draft ngram has no model", only=_OF_DRAFT)
    if bandwidth is not None and (problem := Bounds(1e-3, 1e6, "GB/s").problem("--bandwidth", bandwidth)):
        raise ConfigurationError(problem)
    acceptance = None
    if synthetic_acceptance is not None or synthetic_acceptance_length is not None:
        acceptance = SyntheticAcceptance(synthetic_acceptance, synthetic_acceptance_length)
    engine = {
        "dtype": dtype,
        "quantization": quantization,
        "quantize_lm_head": quantize_lm_head,
        "kv_cache_dtype": kv_cache_dtype,
        "device": device,
        "block_size": block_size,
        "max_num_batched_tokens": max_num_batched_tokens,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
        "enforce_eager": enforce_eager,
        "tensor_parallel_size": tensor_parallel_size,
    }
    speculative: dict[str, Any] = {}
    if draft not in (None, "ngram"):
        speculative["quantization"] = quantization if draft_quantization is None else _or_none(draft_quantization)
        speculative["quantize_lm_head"] = quantize_draft_lm_head
        speculative["draft_tensor_parallel_size"] = draft_tensor_parallel_size
    models = Models(
        model=model,
        draft=draft,
        load_format=load_format,
        engine=_given(engine),
        speculative=_given(speculative),
        acceptance=acceptance,
    )
    draft_words = [word.strip() for word in k.split(",")]
    refuse_twice("-k", k, draft_words)
    draft_counts = [word for word in draft_words if word not in ("none", "adaptive")]
    sweep = Sweep(
        batches=whole_numbers("--batch", batch, "1,8,32"),
        ks=whole_numbers("-k", ",".join(draft_counts) if draft_counts else "0", "0,3,5"),
        without_draft="none" in draft_words,
        adaptive="adaptive" in draft_words,
        input_len=input_len,
        output_len=output_len,
        repeats=repeats,
        temperature=temperature,
        seed=seed,
    )
    cases: list[Any] = []
    with signals_as_ctrl_c(), claimed_file(out):
        try:
            _run(models, sweep, bandwidth, out, cases)
        except KeyboardInterrupt:
            _say_interrupted(len(cases), out)
            raise


def _run(models: Any, sweep: Any, bandwidth: float | None, out: Path | None, cases: list[Any]) -> None:
    """Ceiling, progress, table, JSON. `cases` receives what is over."""
    from dataclasses import asdict

    from paceline.bench import report
    from paceline.bench.bandwidth import read_bandwidth
    from paceline.bench.environment import environment
    from paceline.bench.offline import engine_ceiling, run_cases
    from paceline.bench.shapes import named_as_given
    from paceline.bench.sweep import plan_engines
    from paceline.cli.console import say, show_configuration, show_notes

    console = report.make_console()
    with TemporaryDirectory(prefix="paceline-bench-") as folder:
        plans, notes = plan_engines(models, sweep, Path(folder))
        show_notes(notes)
        config = plans[-1].config  # the first may be the one without the draft
        ceiling = engine_ceiling(config, bandwidth * 1e9 if bandwidth else read_bandwidth(config.device))
        acceptance = models.acceptance
        rates = {k: acceptance.conditional_rate(k) if acceptance else None for k in sweep.ks}
        console.print(report.ceiling_table(ceiling, sweep, rates, measured=bandwidth is None))
        configurations: list[dict[str, str]] = []

        def described(table: dict[str, str]) -> None:
            configurations.append(named_as_given(table, Path(folder)))
            show_configuration(configurations[-1])

        def rows() -> list[dict[str, Any]]:
            return report.summaries(cases, ceiling, sweep)

        def content(*more: str) -> dict[str, Any]:
            return report.document(
                environment=environment(config.device),
                options={"models": asdict(models), "sweep": asdict(sweep)},
                configurations=configurations,
                ceiling=ceiling,
                rows=rows(),
                cases=cases,
                notes=[*notes, *report.warnings(cases, rows()), *more],
            )

        for plan in plans:
            for case in run_cases(plan, sweep, acceptance, say=say, described=described):
                cases.append(case)
                _write(out, content, "The run had not ended when this was written.")
    console.print(report.result_table(rows()))
    show_notes(report.warnings(cases, rows()))
    _write(out, content)
    print(report.as_line(content()))


def _write(out: Path | None, content: Callable[..., dict[str, Any]], *more: str) -> None:
    """After every case, so that a run that is cut short keeps what it measured; whole or not at all."""
    import json

    if out is not None:
        write_whole(out, json.dumps(content(*more), indent=1) + "\n")


def _say_interrupted(num_cases: int, out: Path | None) -> None:
    from paceline.cli.console import say

    if num_cases and out is not None:
        cases = "one case that was" if num_cases == 1 else f"{num_cases} cases that were"
        say(f"Interrupted: {out} holds the {cases} over.")
    else:
        say("Interrupted: nothing is kept" + (" (--out FILE keeps what is over)." if num_cases else "."))


def _or_none(quantization: str) -> str | None:
    return None if quantization == "none" else quantization


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None and value is not False}
