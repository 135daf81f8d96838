"""The tokenizer wrapper: chat messages checked, templates run, token tables compared (pitfall p39)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream
from unit.hub_fakes import TEMPLATE, byte_level_tokens

from paceline.errors import ConfigurationError, InvalidRequestError
from paceline.tokenizer import Tokenizer, load_tokenizer, same_tokens

ALTERNATING = "{% if messages[0]['role'] == 'tool' %}{{ raise_exception('roles must alternate') }}{% endif %}x"


def make(extra: list[str] | None = None, template: str | None = TEMPLATE, tokens: list[str] | None = None) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*(tokens or byte_level_tokens()), *(extra or [])])}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    inner = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>")
    inner.chat_template = template
    return Tokenizer(inner)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make()


def test_text_and_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hé 😀<|im_end|>")
    assert tokenizer.decode(ids) == "hé 😀"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hé 😀<|im_end|>"
    assert ids[-1] == tokenizer.eos_token_id == 2
    assert tokenizer.vocab_size == len(tokenizer.token_table()) == len(byte_level_tokens())


def test_backend_decodes_as_tokens_come(tokenizer: Tokenizer) -> None:
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer.backend, token_id) for token_id in tokenizer.encode("é😀")]
    assert [piece for piece in pieces if piece] == ["é", "😀"]


def test_chat_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with_prompt = tokenizer.apply_chat_template(messages)
    without = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert tokenizer.decode(without, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert with_prompt[: len(without)] == without
    assert all(isinstance(token_id, int) for token_id in with_prompt)


def test_text_parts_are_joined(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    joined = tokenizer.apply_chat_template([{"role": "user", "content": parts}])
    assert joined == tokenizer.apply_chat_template([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ("hello", "must be a list"),
        ({"role": "user", "content": "hi"}, "must be a list"),
        (["hello"], r"messages\[0\] is a str"),
        ([{"content": "hi"}], r"messages\[0\] needs a 'role'"),
        ([{"role": "user"}], r"messages\[0\] needs a 'content'"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], r"messages\[1\]\.content .* not a int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "type 'image_url'; only text"),
    ],
)
def test_bad_messages(tokenizer: Tokenizer, messages: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as raised:
        tokenizer.apply_chat_template(messages)
    assert raised.value.param == "messages"


def test_template_that_refuses() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        make(template=ALTERNATING).apply_chat_template([{"role": "tool", "content": "x"}])


def test_model_without_template() -> None:
    tokenizer = make(template=None)
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template") as raised:
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert raised.value.code == "no_chat_template"


@pytest.mark.parametrize("order", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_padding_at_the_end_is_the_same_table(order: Callable[..., tuple[Tokenizer, Tokenizer]]) -> None:
    assert same_tokens(*order(make(), make(extra=["<pad-0>", "<pad-1>"]))) is None


def test_different_tables_name_the_first_difference() -> None:
    tokens = byte_level_tokens()
    tokens[7], tokens[9] = tokens[9], tokens[7]
    reason = same_tokens(make(), make(tokens=tokens))
    assert reason is not None
    assert f"id 7 is {tokens[9]!r} in the target and {tokens[7]!r} in the draft" in reason


def test_directory_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_imports_are_quick() -> None:
    """Neither the tokenizer nor the hub imports torch or transformers before there is work for them."""
    code = "import sys, paceline.tokenizer, paceline.hub; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_variable_that_the_template_does_not_read_is_refused(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(InvalidRequestError, match="does not read 'enable_thinking'") as caught:
        tokenizer.apply_chat_template(messages, enable_thinking=False)
    assert caught.value.param == "chat_template_kwargs.enable_thinking"
    assert make(template="{{ enable_thinking }}").apply_chat_template(messages, enable_thinking=True)
