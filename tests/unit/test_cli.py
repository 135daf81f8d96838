"""The command line: what reaches the engine, what is said, exit status; nothing is loaded."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import typer
from server_fakes import FakeEngine, FakeTokenizer, fake_config

from paceline.arguments import Resolved
from paceline.cli import main
from paceline.cli.app import app
from paceline.cli.generate import split_words, statistics
from paceline.cli.options import model_or_default_pair
from paceline.errors import ConfigurationError, EngineDeadError, InvalidRequestError, PacelineError
from paceline.sequence import SpeculationCounts
from paceline.server.options import ServerOptions


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", *words])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below this one, with the words that name it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
    for name, child in (inner or {}).items():
        yield from commands(child, (*words, name))


def float_options(command: Any) -> list[str]:
    def kind(parameter: Any) -> str:  # typer before 0.22 has click's types
        descriptor = getattr(parameter, "type_descriptor", None)
        return repr(descriptor.annotation if descriptor else parameter.type).lower()

    return [parameter.opts[-1] for parameter in command.params if "float" in kind(parameter)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def run_server(
        model: str | None, engine: dict[str, Any], host: str, port: int, options: ServerOptions, problems: list[str]
    ) -> int:
        seen.update(model=model, engine=engine, host=host, port=port, options=options)
        assert problems == []
        return 7

    monkeypatch.setattr("paceline.cli.serve.run_server", run_server)
    return seen


def test_serve_passes_only_what_was_written(monkeypatch: pytest.MonkeyPatch, served: dict[str, Any]) -> None:
    assert run(monkeypatch, "serve") == 7
    assert served == {"model": None, "engine": {}, "host": "127.0.0.1", "port": 8000, "options": ServerOptions()}


def test_serve_options(monkeypatch: pytest.MonkeyPatch, served: dict[str, Any]) -> None:
    run(
        monkeypatch, "serve", "big", "--speculative-model", "small", "--num-speculative-tokens", "3", "--port", "9000",
        "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "float32", "--max-model-len", "512",
        "--served-model-name", "a", "--served-model-name", "b", "--gpu-memory-utilization", "0.9",
        "--shutdown-grace", "25", "--stall-after", "90",
    )  # fmt: skip
    assert served["model"] == "big"
    assert served["port"] == 9000
    assert served["options"] == ServerOptions(
        served_model_names=("a", "b"), shutdown_grace_seconds=25, stall_seconds=90
    )
    assert served["engine"] == {
        "speculative_model": "small", "num_speculative_tokens": 3, "enable_prefix_caching": False, "dtype": "float32",
        "enforce_eager": True, "max_model_len": 512, "gpu_memory_utilization": 0.9,
    }  # fmt: skip


def test_the_default_pair_and_what_switches_it_off() -> None:
    assert model_or_default_pair(None, {"dtype": "float32"}) == {
        "model": "smollm2-135m-instruct",
        "speculative_model": "smollm2-135m-instruct-draft",
        "dtype": "float32",
    }
    ngram = {"speculative_config": '{"method": "ngram"}'}
    assert model_or_default_pair(None, ngram) == {"model": "smollm2-135m-instruct", **ngram}
    assert model_or_default_pair("mine", {}) == {"model": "mine"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "/no/such/model"), "No directory"),
        (("serve", "smollm2-135m-instruct", "--num-speculative-tokens", "4"), "not what drafts them"),
        (("generate", "--speculative-config", "{", "hi"), "not valid JSON"),
        (("generate", "--temperature", "-1", "hi"), "temperature must be"),
        (("generate", "a", "b", "c"), "in quotes"),
        (("models", "pull", "smollm2-135m-instrct"), "Did you mean"),
        (("serve", "--port", "99999999"), "Cannot listen"),
    ],
)
def test_mistakes_are_one_message_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    if words[0] == "serve" and "--port" not in words:
        words = (*words, "--port", "0")
    assert run(monkeypatch, *words) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_generate_streams_and_ends_with_statistics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = Resolved(fake_config(), FakeTokenizer(), ())  # type: ignore[arg-type]
    monkeypatch.setattr("paceline.llm.resolve_arguments", lambda arguments, progress: resolved)
    monkeypatch.setattr("paceline.llm.LLM._make_engine", lambda llm: FakeEngine(llm.config))
    monkeypatch.setattr(FakeTokenizer, "has_chat_template", True, raising=False)
    monkeypatch.setattr(sys, "argv", ["paceline", "generate", "fake", "hello", "--max-tokens", "4"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    shown = capsys.readouterr()
    assert shown.out == " w2 w3 w4 w5\n"
    assert "4 tokens in" in shown.err
    assert "resolved configuration" in shown.err


def test_statistics() -> None:
    assert statistics(10, 0.5, 2.0, SpeculationCounts()) == "10 tokens in 2.00 s · 5.0 tok/s · first after 0.50 s"
    spoken = statistics(10, 0.5, 2.0, SpeculationCounts(4, 20, 6, [4, 2]))
    assert spoken.endswith("2.50 tokens per target pass · 30% of drafts accepted")


def test_prompt_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert split_words(["mine", "-"]) == ("mine", "from a pipe")
    assert split_words(["hello"]) == (None, "hello")
    with pytest.raises(InvalidRequestError):
        split_words(["a", "b", "c"])


def test_help_is_for_newcomers_and_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['paceline', '--help']\n"
        "from paceline.cli import main\n"
        "try: main()\n"
        "finally: print('loaded:', [m for m in ('torch', 'transformers', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "loaded: []" in done.stdout
    assert "paceline generate 'Why is the sky blue?'" in done.stdout


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_every_command_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    shown = capsys.readouterr().out
    assert "Examples" in shown
    assert "--num-speculative-tokens" in shown


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("paceline ")


@pytest.mark.parametrize("words", [[""], ["mine", "  \n"]])
def test_an_empty_prompt_is_refused(words: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        split_words(words)


FLOAT_OPTIONS = [  # every option that takes a float, of every command
    (words, option) for words, command in commands(typer.main.get_command(app)) for option in float_options(command)
]


def test_no_command_takes_a_number_that_is_none() -> None:
    assert {(("serve",), "--shutdown-grace"), (("plan",), "--price"), (("bench", "serve"), "--timeout")} <= set(
        FLOAT_OPTIONS
    )
    whole, values = typer.main.get_command(app), cycle(["nan", "inf", "-inf", "1e999"])
    for words, option in FLOAT_OPTIONS:
        if words == ("serve",):
            continue  # tells it with everything else
        needed = {
            "distill": ["m", "--out", "d"], "generate": ["p"], "tune": ["--prompts", "p"], "offline": ["--model", "m"],
        }.get(words[-1], [])  # fmt: skip
        with pytest.raises(typer.BadParameter, match="finite number") as caught:
            whole.main([*words, *needed, f"{option}={next(values)}"], standalone_mode=False)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("runtime", ["paceline", "vllm"])
def test_serve_tells_a_number_that_is_none_with_all_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: str, value: str
) -> None:
    options = [option for words, option in FLOAT_OPTIONS if words == ("serve",)]
    assert {"--shutdown-grace", "--stall-after", "--request-timeout", "--gpu-memory-utilization"} <= set(options)
    if runtime == "vllm":
        options.remove("--gpu-memory-utilization")  # vLLM's arguments are read after ours are right
    wrong = [f"{option}={value}" for option in options]
    logs = ["--log-format", "xml", "--log-level", "loud"] if runtime == "paceline" else []
    more = ["--dry-run", "--vllm-version", "0.32"] if runtime == "vllm" else []
    assert run(monkeypatch, "serve", "m", "--port", "0", "--runtime", runtime, *wrong, *logs, *more) == 2
    told = capsys.readouterr().err
    for option in (*options, *logs):
        assert option.removeprefix("--").replace("-", "_") in told.replace("-", "_")
    assert "Value error" not in told


@pytest.mark.parametrize("option", ["--shutdown-grace", "--stall-after", "--request-timeout", "--body-timeout"])
@pytest.mark.parametrize("value", ["-1", "1e300", "31536001"])
def test_seconds_that_no_timer_can_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert run(monkeypatch, "serve", "--port", "0", "--dtype", "int8", f"{option}={value}") == 2
    told = capsys.readouterr().err
    assert option in told
    assert "dtype" in told  # with the other mistakes, before anything is loaded


@pytest.mark.parametrize(("kind", "status"), [(EngineDeadError, 1), (PacelineError, 2), (ConfigurationError, 2)])
def test_the_exit_status_tells_a_dead_engine_from_a_wrong_option(
    kind: type[PacelineError], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise kind("why")

    monkeypatch.setattr("paceline.cli.app.app", fail)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status


def test_all_that_is_wrong_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status = run(
            monkeypatch, "serve", "no-such-model", "--max-num-seqs", "0", "--block-size", "0", "--max-model-len", "-3",
            "--max-num-batched-tokens", "-1", "--kv-cache-memory-bytes", "0", "--max-logprobs", "-2", "--dtype", "int8",
            "--gpu-memory-utilization", "1.5", "--speculative-model", "ngram", "--num-speculative-tokens", "99",
            "--otlp-traces-endpoint", "foo", "--shutdown-grace", "-1", "--api-key-file", "no-such-file",
            "--served-model-name", "", "--served-model-name", "a", "--served-model-name", "a",
            "--log-format", "xml", "--ssl-certfile", "no-such-cert",
            "--port", str(taken.getsockname()[1]),
        )  # fmt: skip
    assert status == 2
    told = capsys.readouterr().err
    assert "Loading" not in told
    wanted = (
        "'no-such-model'", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens", "max_logprobs",
        "kv_cache_memory_bytes", "dtype", "gpu_memory_utilization", "num_speculative_tokens", "--otlp-traces-endpoint",
        "--shutdown-grace", "--api-key-file", "--served-model-name must", "--served-model-name 'a'", "Cannot listen",
        "--log-format must be text or json, not 'xml'", "--ssl-certfile no-such-cert cannot be used: No such file",
        "belong together",
    )  # fmt: skip
    assert [name for name in wanted if name not in told] == []
    assert f"{len(wanted)} problems" in told


@pytest.mark.parametrize("name", ["", " ", "a\n", "-x"])
def test_a_name_to_serve_under_is_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(monkeypatch, "serve", "--dtype", "int8", "--port", "0", "--served-model-name", name) == 2
    assert "--served-model-name" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["paceline", "paceline.cli"])
def test_the_command_runs_as_a_module(module: str) -> None:
    found = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout.split()[0], found.stderr) == (0, "paceline", "")
