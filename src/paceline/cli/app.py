"""The commands, what they take and what they say in --help. The work is in the modules they import."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.bench import bench_app
from paceline.cli.options import with_engine_options

app = typer.Typer(
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
models_app = typer.Typer(no_args_is_help=True, help="The models on this machine: list, pull, rm.")
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="A known name, a model directory, a .gguf file or a repo id. Without it: the default pair, "
        "smollm2-135m-instruct and its draft.",
        show_default=False,
    ),
]


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


@app.command()
@with_engine_options
def serve(
    engine: dict[str, Any],
    model: ModelArgument = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name in the API, instead of MODEL. May be repeated.", show_default=False)
    ] = None,
) -> None:
    """Serve a model over an OpenAI-compatible API.

    [bold]Examples[/bold]

      paceline serve

      paceline serve smollm2-135m-instruct --speculative-model smollm2-135m-instruct-draft --num-speculative-tokens 5

      paceline serve ./my-llama --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --port 9000
    """
    from paceline.cli.serve import run_server

    raise typer.Exit(run_server(model, engine, host, port, served_model_name or []))


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
def pull_model(name: Annotated[str, typer.Argument(help="A known name, or a repo id such as org/model.")]) -> None:
    """Bring a model to this machine."""
    from paceline.cli.models import pull_model

    pull_model(name)


@models_app.command("rm")
def remove_model(name: Annotated[str, typer.Argument(help="A name from 'paceline models list'.")]) -> None:
    """Delete a model from the cache."""
    from paceline.cli.models import remove_model

    remove_model(name)
