"""The small parts of `paceline distill`: the schedule, a user's data, sizes, the tokenizer's view, costs, the chart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from distill_toys import SHAPE, VOCAB, toy_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.tiny import make_tiny
from safetensors.torch import load_file

from paceline.distill import costs, student
from paceline.distill.chart import Panel, chart
from paceline.distill.language import language_of
from paceline.distill.losses import parse_loss
from paceline.distill.model import LlamaShape, is_plain_llama
from paceline.distill.options import DistillOptions
from paceline.distill.recipe import DistillRecipe, TextRecipe
from paceline.distill.reduced import coverage, export_reduced, frequent_tokens
from paceline.distill.teacher import load_teacher
from paceline.distill.text import Text, TextStore
from paceline.distill.transcripts import file_prompts, held_out_prompts
from paceline.distill.user_text import UserText, read_user_text
from paceline.errors import ConfigurationError, InvalidRequestError, UnsupportedModelError

CPU = torch.device("cpu")
STEADY = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@STEADY
@given(
    steps=st.integers(1, 3000),
    reuse=st.floats(1, 20),
    mix=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    rows=st.integers(4, 64),
)
def test_rounds_come_in_order_end_in_time_and_keep_the_mix(steps: int, reuse: float, mix: float, rows: int) -> None:
    recipe = DistillRecipe(text=TextRecipe(rows=rows, length=32, selected=24, data_mix=mix), reuse=reuse, batch=8)
    due = [recipe.rounds_due(step, steps) for step in range(steps)]
    total = recipe.rounds_for(steps)
    assert due == sorted(due)
    assert due[0] == len(recipe.text.kinds)
    assert due[-1] <= total
    assert all(count == total for step, count in enumerate(due) if step >= recipe.write_until * steps)
    kinds = [recipe.text.kind_of(number) for number in range(total)]
    expected = mix * (total - len(recipe.text.kinds))
    assert abs(kinds[len(recipe.text.kinds) :].count("data") - expected) <= 1
    assert recipe.steps_for(round(steps * recipe.tokens_per_step)) == steps


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def chat(messages: list[dict[str, Any]]) -> list[int]:
    if any("content" not in message for message in messages):
        raise InvalidRequestError("messages[0] needs a 'content'.")
    return [99, *(token for message in messages for token in words(message["content"])), 98]


def read(path: Path, *lines: Any, length: int = 16) -> Any:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_user_text([path], chat=chat, encode=words, separator=97, length=length)


def test_a_users_data_becomes_beginnings(tmp_path: Path) -> None:
    turns = [("user", "a bb"), ("assistant", "ccc"), ("user", "dddd"), ("assistant", "not learnt")]
    found = read(
        tmp_path / "data.jsonl",
        {"messages": [{"role": role, "content": content} for role, content in turns]},
        "",
        {"messages": [{"role": "user", "content": "a " * 20}]},
        {"text": "a bb ccc " * 6},
    )
    assert [b.tolist() for b in found.beginnings] == [[99, 1, 2, 3, 4, 98], [97, *[1, 2, 3] * 5]]
    assert found.num_too_long == 1
    rows = found.rows(2, 16, first=0, seed=1)
    assert sorted((row >= 0).sum() for row in rows) == [6, 16]
    assert np.array_equal(rows, found.rows(2, 16, first=0, seed=1))


def test_every_beginning_is_used_before_one_comes_again(tmp_path: Path) -> None:
    lines = [{"messages": [{"role": "user", "content": "x" * n}]} for n in range(1, 8)]
    found = read(tmp_path / "data.jsonl", *lines)
    served = np.concatenate([found.rows(3, 16, first=3 * number, seed=4)[:, 1] for number in range(7)]).tolist()
    assert [sorted(served[at : at + 7]) for at in (0, 7, 14)] == [list(range(1, 8))] * 3
    assert served[:7] != served[7:14]


def test_what_is_held_out_is_never_learnt_even_if_it_was_asked_twice() -> None:
    beginnings = tuple(np.array([n % 20]) for n in range(60))
    held, learnt = UserText(beginnings).split(seed=3)
    apart = [{int(b[0]) for b in part.beginnings} for part in (held, learnt)]
    assert len(apart[0]) == 2
    assert not apart[0] & apart[1]
    assert len(held.beginnings) + len(learnt.beginnings) == 60


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected"),
        ({"prompt": "a"}, "line 2: expected"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "line 2: the conversation has no user turn"),
        ({"messages": ["a"]}, "no user turn"),
        ({"messages": [{"role": "user"}]}, "line 2: messages"),
    ],
)
def test_wrong_data_is_named_by_its_line(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path / "data.jsonl", {"text": "a"}, line)


def test_data_that_teaches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to learn from"):
        read(tmp_path / "data.jsonl", {"text": "too short"})
    with pytest.raises(ConfigurationError, match="one row is not enough"):
        read(tmp_path / "data.jsonl", *[{"messages": [{"role": "user", "content": "a"}]}] * 3)


class TemplateTokenizer:
    all_special_ids = (0, 1, 2)
    chat_template = "yes"

    def get_vocab(self) -> dict[str, int]:
        return {"<|endoftext|>": 0}

    def decode(self, ids: list[int]) -> str:
        return {0: "<|endoftext|>", 2: "|"}[ids[0]]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}|\n" for m in messages) + "<assistant>"


def test_the_language_is_read_from_the_chat_template() -> None:
    language = language_of(TemplateTokenizer(), ends=(0, 2))  # the first ends texts, the second turns
    text = ["".join(map(chr, part)) for part in (language.format.start, language.format.to_assistant)]
    assert text == ["<user>", "\n<assistant>"]
    assert "".join(map(chr, language.format.to_user)) == "\n<user>"
    assert (language.format.end, language.document_start) == (2, 0)
    with pytest.raises(ConfigurationError, match="closes a turn"):
        language_of(TemplateTokenizer(), ends=(0,))


@pytest.mark.parametrize("kind", ["llama3", "qwen2", "qwen3", "smollm2"])
def test_every_architecture_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = make_tiny(kind, tmp_path / kind)
    teacher = load_teacher(path, dtype=torch.float32, device=CPU)
    assert (teacher.dense is not None) == (kind == "smollm2")
    ids = torch.arange(3, 63).view(4, 15)
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits
    laws = teacher.read(ids, positions_at_once=31) @ teacher.head.T
    torch.testing.assert_close(laws, expected, atol=1e-4, rtol=1e-4)


def test_what_is_no_plain_llama_is_told_apart() -> None:
    assert not is_plain_llama({"model_type": "qwen3"})
    with pytest.raises(UnsupportedModelError, match="plain Llamas"):
        LlamaShape.from_config({"model_type": "qwen3"})


def test_rounds_are_kept_as_they_were_written(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "text")
    text = Text("chat", torch.randint(49152, (3, 8)), torch.rand(3, 8) > 0.5, torch.tensor([0.0, 0.7, 1.0]))
    store.save(0, text, seconds=1.25)
    assert 0 in store
    assert 1 not in store
    again = store.load(0, CPU)
    assert (again.kind, store.seconds(0)) == ("chat", 1.25)
    for name in ("tokens", "is_answer", "temperature"):
        assert torch.equal(getattr(text, name), getattr(again, name))
    assert [path.name for path in store.folder.iterdir()] == ["round-00000.safetensors"]


def test_report_prompts_end_where_the_target_first_answers() -> None:
    flags = torch.tensor([[False, False, False, True, True, False], [True] * 6])
    text = Text("chat", torch.arange(12).view(2, 6), flags, torch.zeros(2))
    assert [p.token_ids for p in held_out_prompts({"chat": text}, 5)] == [(0, 1, 2), (6, 7, 8)]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2"), ('{"category": "a"}', "turns"), ('{"category": "a", "turns": []}', "line 2"), ("7", "line 2")],
)
def test_prompts_for_the_report_are_read_and_wrong_ones_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "asked.jsonl"
    right = '{"category": "qa", "turns": ["a bb", "second"]}'
    path.write_text(right + "\n")
    (prompt,) = file_prompts(path, chat)
    assert (prompt.category, prompt.token_ids) == ("qa", (99, 1, 2, 98))
    path.write_text(f"{right}\n{line}\n")
    with pytest.raises(ConfigurationError, match=message):
        file_prompts(path, chat)


def test_every_branch_of_the_end_takes_its_own_steps() -> None:
    one = DistillRecipe(minutes=1)
    three = DistillRecipe(
        minutes=1, final_losses=(parse_loss("tv"), parse_loss("forward-kl"), parse_loss("reverse-kl"))
    )
    assert one.branch_factor == 1
    assert three.branch_factor == pytest.approx(1.6)


def turn(plain: float, step: float) -> costs.Turn:
    return costs.Turn(plain, step, step / 2, step / 2)


def test_speed_ups_are_tokens_over_relative_costs() -> None:
    measured = costs.Costs(
        {1: [turn(10, 20), turn(10, 10), turn(20, 30)], 4: [turn(10, 30)] * 3, 8: [turn(10, 50)] * 3},
        {1: 1.0, 4: 4.0, 8: 8.0},
    )
    found = costs.speed_ups({1: 1.8, 4: 3.6, 6: 4.0, 8: 4.2}, measured)
    assert [s.expected for s in found] == pytest.approx([1.8 / 1.5, 3.6 / 3, 4.0 / 4, 4.2 / 5])
    assert (found[0].low, found[0].high) == pytest.approx((1.8 / 2, 1.8 / 1))
    assert costs.best_k(found) == 1
    assert costs.best_k(found[2:]) == 0  # slower than plain


@STEADY
@given(st.lists(st.integers(0, 50), min_size=8, max_size=40), st.integers(3, 7))
def test_the_most_frequent_tokens_are_kept_and_the_end_with_them(counts: list[int], size: int) -> None:
    tokens = frequent_tokens(torch.tensor(counts), size, always=(0, 2))
    assert len(tokens) == size
    assert tokens.tolist() == sorted(set(tokens.tolist()) | {0, 2})
    left_out = [count for token, count in enumerate(counts) if token not in tokens.tolist()]
    kept = [counts[token] for token in tokens.tolist() if token not in (0, 2)]
    assert min(kept) >= max(left_out)


def test_auto_covers_almost_all_answers() -> None:
    counts = torch.tensor([int(1e6 / (n + 1) ** 1.5) for n in range(40_000)])
    tokens = frequent_tokens(counts, None, always=(5,))
    assert len(tokens) % 1024 == 0
    assert coverage(counts, tokens) >= 0.98
    assert coverage(counts, tokens[: len(tokens) - 1024]) < 0.98
    with pytest.raises(ConfigurationError, match="at most 40000"):
        frequent_tokens(counts, 40_001, always=())


def test_a_cut_head_gives_the_laws_of_the_whole_one_on_its_tokens(tmp_path: Path) -> None:
    model, tokens = toy_target(), torch.tensor([2, 5, 9, 23])
    export_reduced(model, {"eos_token_id": 2}, tokens, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    hidden = model(torch.tensor([[1, 5, 6]]))[0, -1].bfloat16().float()
    whole = hidden @ state["model.embed_tokens.weight"].float().T
    cut = torch.full((VOCAB,), -math.inf)
    cut[torch.arange(4) + state["d2t"]] = hidden @ state["lm_head.weight"].float().T
    torch.testing.assert_close(cut[tokens], whole[tokens])
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["draft_vocab_size"], config["vocab_size"], config["tie_word_embeddings"]) == (
        4,
        SHAPE.vocab_size,
        False,
    )


def test_the_chart_is_svg_with_a_line_for_each_series() -> None:
    panel = Panel("a < b", [1, 2, 3], {"qa": [1.0, 1.5, 1.7], "all": [1.2, 1.4, 1.6]}, "all", [(1, 2)] * 3)
    root = ElementTree.fromstring(chart([panel, panel]))
    assert len(root.findall(".//{*}polyline")) == 4
    assert len(root.findall(".//{*}polygon")) == 2
    assert "a < b" in [node.text for node in root.findall(".//{*}text")]


def test_a_loss_that_was_asked_for_is_kept_to_the_end() -> None:
    def losses(**given: Any) -> list[str]:
        first, final = DistillOptions(target="t", out=Path("o"), **given).losses()
        return [" + ".join(map(str, terms)) for terms in (first, *final)]

    assert losses() == ["forward-kl", "forward-kl*0.25 + tv@0.6"]
    assert losses(loss="reverse-kl") == ["reverse-kl"]
    assert losses(final_loss=("tv", "forward-kl")) == ["forward-kl", "tv", "forward-kl"]


def test_the_shipped_drafts_configuration_is_what_export_writes() -> None:
    shipped = Path(student.__file__).parents[1] / "pairs" / "smollm2-135m-instruct-draft"
    config = json.loads((shipped / "config.json").read_text())
    assert student.hugging_face_config(LlamaShape.from_config(config), config) == config
    assert sum(file.stat().st_size for file in shipped.iterdir()) < 30_000_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'{"text": "a \ud800 b"}', "surrogate"),
        ('{"messages": null, "text": "a"}', "expected"),
        ('{"messages": 5, "text": "a"}', "expected"),
        ('{"messages": "a", "text": "a"}', "expected"),
    ],
)
def test_user_text_that_cannot_be_learnt_is_named_by_its_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigurationError, match=f"line 2: .*{said}"):
        read_user_text([path], chat=chat, encode=words, separator=0, length=8)
