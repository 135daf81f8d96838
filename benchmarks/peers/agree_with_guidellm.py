"""Do `paceline bench serve` and GuideLLM measure the same on the same server? The two take turns (A B B A).

    python benchmarks/peers/agree_with_guidellm.py --guidellm ~/guidellm/bin/guidellm

GuideLLM lives in an environment of its own (README.md here says how to make it). Without --url the server is
fake_server.py, which answers by the clock: any difference is then the clients'. Wanted: TTFT and tokens within 3 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import BUILTIN_PROMPTS, record

from paceline.bench.serve.reading import read_results
from paceline.bench.serve.results import Case

_LARGEST = 0.03
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextmanager
def server(options: argparse.Namespace) -> Iterator[str]:
    if options.url is not None:
        yield options.url
        return
    script = Path(__file__).resolve().parent.parent / "fake_server.py"
    command = [sys.executable, str(script), "--ttft-ms", "200", "--step-ms", "25", "--clock", "spread",
               "--tokens", str(options.max_tokens), "--tokens-a-chunk", "3"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(10)


def ours(url: str, prompts: Path, folder: Path, options: argparse.Namespace) -> Case:
    arguments = {"--url": url, "--prompts": prompts, "--concurrency": options.users, "--num-prompts": options.requests,
                 "--max-tokens": options.max_tokens, "--seeds": 0, "--out": folder}  # fmt: skip
    words = [str(word) for pair in arguments.items() for word in pair]
    command = [sys.executable, "-m", "paceline.cli", "bench", "serve", "--shared-prefixes"]
    command += ["--speculation", "on"] if options.url is not None else []
    subprocess.run([*command, *words], check=True, **_QUIET)
    return read_results(folder / "bench.json").cases[0]


def theirs(url: str, model: str, prompts: Path, file: Path, options: argparse.Namespace) -> Case:
    backend = f"kind=openai_http,target={url},model={model},request_format=/v1/chat/completions"
    command = [
        options.guidellm, "run", "--backend", f"{backend},max_tokens={options.max_tokens}",
        "--profile", f"kind=concurrent,streams={options.users}",
        "--constraint", f"kind=max_requests,count={options.requests}",
        "--data", f"kind=text_file,path={prompts}", "--output", f"kind=json,path={file}", "--disable-console",
    ]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, **_QUIET)
    return read_results(file).cases[0]


def figures(case: Case) -> dict[str, float | None]:
    good = case.num_requests - case.num_failed
    return {
        "ttft_ms_mean": case.latency("ttft", "mean"), "ttft_ms_p50": case.latency("ttft", "p50"),
        "tpot_ms_p50": case.latency("tpot", "p50"), "e2e_ms_p50": case.latency("e2e", "p50"),
        "output_tokens_per_request": case.output_tokens / good,
        "prompt_tokens_per_request": (case.prompt_tokens or 0) / good,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", required=True, help="its command")
    parser.add_argument("--url", help="a running server; without it, one that answers by the clock")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--name", default="agree-with-guidellm")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with TemporaryDirectory() as name, server(options) as url:
        import httpx

        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        prompts = Path(name) / "prompts.txt"
        texts = (BUILTIN_PROMPTS * options.requests)[: options.requests]
        prompts.write_text("\n".join(texts) + "\n")
        for number in range(options.rounds):
            for tool in ("paceline", "guidellm") if number % 2 == 0 else ("guidellm", "paceline"):
                folder = Path(name) / f"{tool}{number}"
                case = (
                    ours(url, prompts, folder, options)
                    if tool == "paceline"
                    else theirs(url, model, prompts, folder.with_suffix(".json"), options)
                )
                runs.append({"tool": tool, "round": number, **figures(case)})
                print(json.dumps(runs[-1]))
    found = compare(runs)
    for metric, difference in found.items():
        print(f"{metric:28} paceline / guidellm - 1 = {difference:+.2%}")
    where = record(options.name, {"server": options.url or "fake_server.py", "model": model, "users": options.users,
                                  "requests": options.requests, "runs": runs, "differences": found})  # fmt: skip
    judged = [found[name] for name in ("ttft_ms_mean", "output_tokens_per_request", "prompt_tokens_per_request")]
    agree = all(abs(difference) <= _LARGEST for difference in judged)
    print(f"{'Within' if agree else 'NOT within'} {_LARGEST:.0%}. Wrote {where}.")
    sys.exit(not agree)


def compare(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Means over rounds, ours over theirs, less 1."""

    def mean(tool: str, metric: str) -> float:
        values = [run[metric] for run in runs if run["tool"] == tool]
        return sum(values) / len(values)

    metrics = [name for name in runs[0] if name not in ("tool", "round")]
    return {metric: mean("paceline", metric) / mean("guidellm", metric) - 1 for metric in metrics}


if __name__ == "__main__":
    main()
