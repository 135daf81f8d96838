"""A server for tests of clients: tiny random weights, a chat template with tools, an API key, and small limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model.pairs import disturb
from model.tiny import make_tiny
from unit.hub_fakes import byte_level_tokens

KEY = "a-key-for-the-clients"
MODEL = "tiny"
MAX_MODEL_LEN = 900
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {% for tool in tools %}{{ tool['function'] | tojson }}\n{% endfor %}"
    'Call as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Api:
    url: str  # without /v1
    process: subprocess.Popen[str]


def write_model(path: Path) -> None:
    """A model directory: random weights, one token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = byte_level_tokens()
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    inner = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>")
    inner.chat_template = TEMPLATE
    inner.save_pretrained(path)
    make_tiny("smollm2", path, vocab_size=len(tokens), max_position_embeddings=2048)


def write_draft(target: Path, path: Path) -> str:
    """A draft that agrees with the model often but not always."""
    shutil.copytree(target, path)
    disturb(target, path, 0.08)
    return str(path)


@contextmanager
def serve(folder: Path, *, with_draft: bool = False) -> Iterator[Api]:
    """Drafts are n-grams, which random weights rarely fulfil; `with_draft`: of a model, three a step, always."""
    keys = folder / "keys"
    keys.write_text(f"tests {KEY}\n")
    model = folder / "model"
    model.mkdir()
    write_model(model)
    speculative = {"method": "ngram", "num_speculative_tokens": 3}
    if with_draft:
        draft = write_draft(model, folder / "draft")
        speculative = {"model": draft, "num_speculative_tokens": 3, "adaptive": False}
    options = {
        "speculative-config": json.dumps(speculative), "served-model-name": MODEL, "port": 0,
        "dtype": "float32", "max-model-len": MAX_MODEL_LEN, "kv-cache-memory-bytes": 4_000_000,
        "api-key-file": keys, "max-request-tokens": 2 * MAX_MODEL_LEN, "request-timeout": 300,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli", "serve", str(model), *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    shown = ""
    try:
        while "Try:" not in shown:
            line = process.stderr.readline()
            assert line, shown
            shown += line
        yield Api(shown.split(" on ")[-1].split()[0], process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
