"""The commands, what they take and what they say in --help. The work is in the modules they import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.access_options import with_access_options
from paceline.cli.bench import bench_app
from paceline.cli.deploy import deploy_app
from paceline.cli.finite import App, OnceCommand
from paceline.cli.log_options import read_log_options, with_log_options
from paceline.cli.old_options import with_old_options
from paceline.cli.options import with_engine_options
from paceline.cli.plan import plan
from paceline.cli.serve_command import ServeCommand

app = App(
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    help=(
        "Serve a large language model faster, with exactly its own answers: a small draft model "
        "proposes tokens, the large one checks several of them in one pass.\n\n"
        "[bold]Start here[/bold]\n\n"
        "  paceline serve                     the default model pair on http://127.0.0.1:8000\n\n"
        "  paceline generate 'Why is the sky blue?'\n\n"
        "  paceline models list"
    ),
)
models_app = App(no_args_is_help=True, help="The models on this machine: list, pull, rm.")
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")
app.add_typer(deploy_app, name="deploy")
app.command("plan", cls=OnceCommand)(plan)

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="A known name, a model directory, a .gguf file or a repo id. Without it: the default pair, "
        "smollm2-135m-instruct and its draft.",
        show_default=False,
    ),
]

_DRAFT, _RUN, _MACHINE = "The draft", "The run", "The machine"
_RUNTIME = "Runtime"


def _more(text: str, panel: str) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_default=False)


def _version(wanted: bool) -> None:
    if wanted:
        from paceline import __version__

        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command(cls=ServeCommand)
@with_engine_options
@with_old_options
@with_access_options
@with_log_options
def serve(
    engine: dict[str, Any],
    access: dict[str, Any],
    logs: dict[str, Any],
    model: ModelArgument = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name in the API, instead of MODEL. May be repeated.", show_default=False)
    ] = None,
    shutdown_grace: Annotated[
        float, typer.Option(help="Seconds that running requests may take after SIGTERM.", rich_help_panel=_RUN)
    ] = 10.0,
    stall_after: Annotated[
        float,
        typer.Option(
            help="Seconds without progress of the engine until /health says 503; longer than any step takes.",
            rich_help_panel=_RUN,
        ),
    ] = 60.0,
    runtime: Annotated[
        str, typer.Option(help="The engine: paceline, or vllm (installed elsewhere).", rich_help_panel=_RUNTIME)
    ] = "paceline",
    vllm_python: Annotated[
        str | None, _more("Python of the environment that has vLLM. Default: that of the `vllm` command.", _RUNTIME)
    ] = None,
    vllm_args: Annotated[
        str | None, _more("More options of vLLM, in its own spelling: '--pipeline-parallel-size 2'.", _RUNTIME)
    ] = None,
    nodes: Annotated[
        int, typer.Option(help="Machines with --tensor-parallel-size GPUs each, through Ray.", rich_help_panel=_RUNTIME)
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print vLLM's command and end.", rich_help_panel=_RUNTIME)
    ] = False,
    vllm_version: Annotated[
        str | None, _more("With --dry-run: for this version, which need not be installed.", _RUNTIME)
    ] = None,
) -> None:
    """Serve a model over an OpenAI-compatible API.

    [bold]Examples[/bold]

      paceline serve

      paceline serve smollm2-135m-instruct --speculative-model smollm2-135m-instruct-draft --num-speculative-tokens 5

      paceline serve ./my-llama --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --port 9000

      paceline serve --runtime vllm --vllm-python ~/vllm/bin/python
    """
    from paceline.cli.serve import choose_runtime, refuse_with_vllm, run_server
    from paceline.server.access.options import read_access_options
    from paceline.server.options import ServerOptions, check_server_options

    problems: list[str] = []
    options = ServerOptions(
        served_model_names=tuple(served_model_name or ()),
        shutdown_grace_seconds=shutdown_grace,
        stall_seconds=stall_after,
        access=read_access_options(access, problems),
        **read_log_options(logs, problems),
    )
    check_server_options(options, problems)
    vllm = choose_runtime(
        runtime, python=vllm_python, arguments=vllm_args, version=vllm_version, nodes=nodes, dry_run=dry_run
    )
    if vllm is not None:
        refuse_with_vllm(access, problems)
        raise typer.Exit(vllm(model, engine, host, port, options))
    raise typer.Exit(run_server(model, engine, host, port, options, problems))


@app.command()
@with_engine_options
def generate(
    engine: dict[str, Any],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="The prompt, after the model if not the default pair; - reads it from standard input.",
        ),
    ],
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens that make up this share.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from so many tokens; 0: all.")] = 0,
    sampling_seed: Annotated[
        int | None, typer.Option(help="Makes a random answer repeatable.", show_default=False)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End at this text. May be repeated.", show_default=False)
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as plain text, without the chat template.")
    ] = False,
) -> None:
    """Answer one prompt in the terminal, as the tokens come, and say how fast it was.

    [bold]Examples[/bold]

      paceline generate 'Why is the sky blue?'

      paceline generate smollm2-135m-instruct --speculative-model ngram 'Repeat: to be or not to be'

      paceline generate ./my-llama 'Once upon a time' --raw --temperature 0.8 --sampling-seed 1
    """
    from paceline.cli.generate import run_generate

    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k}
    run_generate(words, engine, sampling | {"seed": sampling_seed, "stop": stop or []}, raw)


@app.command("distill")
def distill_draft(
    target: Annotated[str, typer.Argument(help="The model to draft for: a known name, a directory or a repo id.")],
    out: Annotated[Path, typer.Option(help="Folder for the draft; a run that stopped there goes on.")],
    size: Annotated[str, typer.Option(help="tiny, small, base or large.", rich_help_panel=_DRAFT)] = "small",
    layers: Annotated[int | None, _more("Layers, instead of the size's.", _DRAFT)] = None,
    hidden: Annotated[int | None, _more("Width, instead of the size's.", _DRAFT)] = None,
    heads: Annotated[int | None, _more("Attention heads, instead of the size's.", _DRAFT)] = None,
    draft_vocab: Annotated[
        str | None,
        _more("Also write reduced/, its head cut to so many frequent tokens; or auto.", _DRAFT),
    ] = None,
    tokens: Annotated[
        int | None,
        _more("Positions to learn from, each look counted. Default 2 million on a CPU, 500 million on a GPU.", _RUN),
    ] = None,
    steps: Annotated[int | None, _more("The same in steps.", _RUN)] = None,
    minutes: Annotated[
        float | None, _more("The same in time: measured at the start, fixed from there on.", _RUN)
    ] = None,
    loss: Annotated[
        str | None,
        _more(
            "forward-kl, reverse-kl, tv, or a sum such as forward-kl*0.25+tv@0.6 (*weight @temperature). Without it "
            "forward-kl, and that sum for the last 30 %.",
            _RUN,
        ),
    ] = None,
    final_loss: Annotated[
        list[str] | None, _more("For the last 30 %. Repeated: all are tried, the best draft is kept.", _RUN)
    ] = None,
    optimizer: Annotated[
        list[str] | None, _more("NAME:RATE:TABLE_RATE, muon or adamw. Repeated: short trials choose.", _RUN)
    ] = None,
    data: Annotated[
        list[Path] | None,
        _more(
            'Your own traffic, JSONL: {"messages": [...]} (answered anew) or {"text": "..."}. May be repeated.', _RUN
        ),
    ] = None,
    data_mix: Annotated[
        float | None, _more("Share of --data in what is learnt; 1: nothing else. Default 0.5.", _RUN)
    ] = None,
    report_on: Annotated[
        Path | None, _more("Report on these prompts too, JSONL with category and turns or messages.", _RUN)
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same draft.", rich_help_panel=_RUN)] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew in DIR, over an earlier draft.", rich_help_panel=_RUN)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Refuse to begin: there must be a run to go on with.", rich_help_panel=_RUN)
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds of learning that a kill may cost.", rich_help_panel=_RUN)
    ] = 60.0,
    rows: Annotated[int | None, _more("Conversations written at once.", _MACHINE)] = None,
    length: Annotated[int | None, _more("Tokens of a row; about documents twice as many.", _MACHINE)] = None,
    batch: Annotated[int | None, _more("Rows a step.", _MACHINE)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_MACHINE)] = "auto",
) -> None:
    """Train a small draft model that fits a target, from nothing but the target.

    The target writes prompts and answers; the draft learns its laws. Stopped anywhere, the same command goes on.
    The report says how many tokens a pass the draft gives, what it costs here and which K to serve it with.

    [bold]Examples[/bold]

      paceline distill smollm2-135m-instruct --out my-draft --minutes 30

      paceline distill ./my-llama --out my-draft --size base --data traffic.jsonl --data-mix 0.5

      paceline distill ./my-llama --out my-draft --final-loss forward-kl --final-loss tv@0.6
    """
    from paceline.cli.distill import run_distill
    from paceline.distill.options import DistillOptions

    run_distill(
        DistillOptions(
            target=target,
            out=out,
            size=size,
            layers=layers,
            hidden=hidden,
            heads=heads,
            draft_vocab=draft_vocab,
            tokens=tokens,
            steps=steps,
            minutes=minutes,
            loss=loss,
            final_loss=tuple(final_loss or ()),
            optimizer=tuple(optimizer or ()),
            data=tuple(data or ()),
            data_mix=data_mix,
            report_on=report_on,
            seed=seed,
            overwrite=overwrite,
            resume=resume,
            checkpoint_every=checkpoint_every,
            rows=rows,
            length=length,
            batch=batch,
            device=device,
        )
    )


@app.command()
@with_engine_options
def tune(
    engine: dict[str, Any],
    prompts: Annotated[Path, typer.Option(help='Yours, one a line: text, or JSON {"prompt": text}.')],
    model: ModelArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for paceline.json and vllm.json, each a speculative_config.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Of each answer.", min=2)] = 128,
    temperature: Annotated[float, typer.Option(help="Of the answers; what your users ask for.")] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="Prompts as they stand, without the chat template.")] = False,
) -> None:
    """Which K to draft at which load: what steps cost on this machine, and what your prompts accept.

    K is tried up to --num-speculative-tokens. Paceline follows load and acceptance by itself; the table is for vLLM,
    for other engines, and for choosing a draft. See docs/adaptive.md.

    [bold]Examples[/bold]

      paceline tune ./my-llama --speculative-model ./my-draft --prompts prompts.jsonl --out tuned

      paceline serve ./my-llama --speculative-config "$(cat tuned/paceline.json)"
    """
    from paceline.cli.tune import run_tune

    run_tune(model, engine, prompts, out, max_tokens, temperature, raw)


@app.command()
@with_engine_options
def verify(
    engine: dict[str, Any],
    model: ModelArgument = None,
    num_speculative_tokens: Annotated[
        list[int] | None, typer.Option(help="K. May be repeated. Default 1 and 3.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='Prompts, one a line: text, or JSON {"prompt": text}. Default: our own.', show_default=False),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Answers of each case. Default 96, with --quick 48.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer answers, and no n-gram beside a draft model.")] = False,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="K follows load and acceptance, as a server's does; else it is fixed.")
    ] = False,
    acceptance: Annotated[
        list[str] | None, typer.Option(help="rejection or block. May be repeated. Default: both.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="law, parity or seeds. May be repeated. Default: all.", show_default=False)
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            help="Where the exact law comes from: transformers, or engine (without speculation). Default: "
            "transformers; of an FP8 target, engine.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Verify a running server instead, for parity and seeds.", show_default=False)
    ] = None,
    baseline_url: Annotated[
        str | None,
        typer.Option(
            help="With --url: the same model without speculation; else its own requests without drafts.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here.", show_default=False)] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the report as a page here.", show_default=False)
    ] = None,
) -> None:
    """Test that speculation changes the speed and nothing else: is the law of every token still the target's?

    Exit status: 0 passed, 1 failed, 2 could not run. See docs/verify.md.

    [bold]Examples[/bold]

      paceline verify

      paceline verify ./my-llama --speculative-model ./my-draft --num-speculative-tokens 5 --html report.html

      paceline verify --url http://127.0.0.1:8000
    """
    from paceline.cli.verify import Choices, Files, run_verify, run_verify_url

    files = Files(prompts, json_file, html_file)
    choices = Choices(num_speculative_tokens or [], samples, quick, adaptive, acceptance or [], only or [], oracle)
    if url is not None or baseline_url is not None:
        raise typer.Exit(run_verify_url(url, baseline_url, model, engine, choices, files))
    raise typer.Exit(run_verify(model, engine, choices, files))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def demo(context: typer.Context) -> None:
    """The same prompt with speculation off and on, side by side. All of its options: paceline demo --help."""
    from paceline.demo import main

    raise typer.Exit(main(context.args))


@models_app.command("list")
def list_models() -> None:
    """Show the models on this machine, and the names that can be pulled."""
    from paceline.cli.models import show_models

    show_models()


@models_app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A known name, or a repo id such as org/model.")],
    to: Annotated[
        Path | None, typer.Option(help="As a plain directory there, outside the cache.", show_default=False)
    ] = None,
) -> None:
    """Bring a model to this machine."""
    from paceline.cli.models import pull_model

    pull_model(name, to)


@models_app.command("rm")
def remove_model(name: Annotated[str, typer.Argument(help="A name from 'paceline models list'.")]) -> None:
    """Delete a model from the cache."""
    from paceline.cli.models import remove_model

    remove_model(name)
