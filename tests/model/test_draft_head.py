"""Drafts whose head knows only the target's frequent tokens: cut while loading, or exported so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from model.pairs import make_llm, make_pair, prompts, texts
from safetensors.torch import load_file, save_file

from paceline import LLM, SamplingParams
from paceline.errors import ConfigurationError, PacelineError
from paceline.models.draft_head import frequent_tokens

VOCAB, KEPT = 101, 40
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> list[list[int]]:
    return texts(make_llm(pair[0]), prompts(6), GREEDY)


def counts_of(lines: list[list[int]]) -> np.ndarray:
    return np.bincount([token for line in lines for token in line], minlength=VOCAB).astype(np.int32)


def with_counts(draft: Path, folder: Path, counts: np.ndarray) -> Path:
    copy = folder / "draft"
    shutil.copytree(draft, copy)
    np.save(copy / "answer_counts.npy", counts)
    return copy


def exported(draft: Path, folder: Path, tokens: np.ndarray) -> Path:
    """The same draft in the format of a reduced head."""
    copy = folder / "reduced"
    shutil.copytree(draft, copy)
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][torch.from_numpy(tokens)].contiguous()
    weights["d2t"] = torch.from_numpy(tokens - np.arange(len(tokens)))
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((copy / "config.json").read_text())
    config |= {"architectures": ["LlamaReducedHeadForCausalLM"], "draft_vocab_size": len(tokens)}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def accepted(llm: LLM) -> float:
    counts = llm.stats().speculation
    return counts.num_accepted_tokens / counts.num_draft_tokens


def test_frequent_tokens_keep_the_ends_and_cover_what_is_asked() -> None:
    counts = np.array([5, 0, 9, 1, 7, 0, 3])
    assert frequent_tokens(counts, 3).tolist() == [0, 2, 4]
    assert frequent_tokens(counts, 3, always=[5]).tolist() == [2, 4, 5]
    assert frequent_tokens(counts, 7).tolist() == list(range(7))
    heavy = np.concatenate((np.full(1500, 1000), np.ones(2548, dtype=int)))
    assert len(frequent_tokens(heavy, None)) == 2048
    for size in (0, 8):
        with pytest.raises(ValueError, match="at most 7"):
            frequent_tokens(counts, size)


@pytest.mark.parametrize("way", ["cut", "exported"])
def test_the_text_is_the_targets_and_drafts_are_frequent_tokens(
    pair: tuple[Path, Path], plain: list[list[int]], tmp_path: Path, way: str
) -> None:
    target, draft = pair
    counts = counts_of(plain)
    tokens = frequent_tokens(counts, KEPT, [2])
    config: dict[str, object] = {"num_speculative_tokens": 4}
    if way == "cut":
        config |= {"model": str(with_counts(draft, tmp_path, counts)), "draft_vocab_size": KEPT}
    else:
        config |= {"model": str(exported(draft, tmp_path, tokens))}
    llm = make_llm(target, config)
    worker = llm._engine._executor._worker  # type: ignore[union-attr]
    proposed: set[int] = set()
    propose = worker.decoder._proposer.propose

    def watched(*arguments):  # type: ignore[no-untyped-def]
        proposal = propose(*arguments)
        proposed.update(proposal.draft_token_ids.flatten().tolist())
        return proposal

    worker.decoder._proposer.propose = watched
    assert texts(llm, prompts(6), GREEDY) == plain
    assert proposed - {-1} <= set(tokens.tolist())
    assert accepted(llm) > 0.08
    random = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    assert texts(llm, prompts(2), random) == texts(llm, prompts(2), random)
    assert proposed - {-1} <= set(tokens.tolist())


def test_both_ways_draft_the_same(pair: tuple[Path, Path], plain: list[list[int]], tmp_path: Path) -> None:
    target, draft = pair
    counts = counts_of(plain)
    cut = {"model": str(with_counts(draft, tmp_path, counts)), "draft_vocab_size": KEPT, "num_speculative_tokens": 3}
    same = {"model": str(exported(draft, tmp_path, frequent_tokens(counts, KEPT, [2]))), "num_speculative_tokens": 3}
    random = [SamplingParams(temperature=0.9, seed=i, max_tokens=16, ignore_eos=True) for i in range(4)]
    first, second = make_llm(target, cut), make_llm(target, same)
    assert texts(first, prompts(4), random) == texts(second, prompts(4), random)
    assert accepted(first) == accepted(second)


def test_the_default_cuts_on_a_cpu_where_counts_are_known(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = pair
    counts = np.zeros(VOCAB, dtype=np.int32)
    counts[3:20] = 5
    folder = str(with_counts(draft, tmp_path, counts))
    sizes = {}
    for wanted in ("auto", "all", 30):
        llm = make_llm(target, {"model": folder, "draft_vocab_size": wanted, "num_speculative_tokens": 2}, device="cpu")
        head = llm._engine._executor._worker.draft.model.head_tokens  # type: ignore[union-attr]
        sizes[wanted] = None if head is None else len(head)
    assert sizes == {"auto": None, "all": None, 30: 30}  # 98 % of so few tokens, rounded up, are all of them


@pytest.mark.parametrize(("change", "message"), [
    ({"draft_vocab_size": 0}, "draft_vocab_size=0"),
    ({"draft_vocab_size": 102}, "at most 101"),
    ({"draft_vocab_size": "most"}, "draft_vocab_size"),
])  # fmt: skip
def test_wrong_sizes_are_refused(
    pair: tuple[Path, Path], tmp_path: Path, change: dict[str, object], message: str
) -> None:
    draft = with_counts(pair[1], tmp_path, np.ones(VOCAB, dtype=np.int32))
    with pytest.raises(ConfigurationError, match=message):
        make_llm(pair[0], {"model": str(draft), "num_speculative_tokens": 2, **change})


def test_a_size_without_counts_and_wrong_files_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = pair
    with pytest.raises(ConfigurationError, match=r"answer_counts\.npy"):
        make_llm(target, {"model": str(draft), "draft_vocab_size": 30})
    short = with_counts(draft, tmp_path, np.ones(7, dtype=np.int32))
    with pytest.raises(ConfigurationError, match="must hold 101 counts"):
        make_llm(target, {"model": str(short), "draft_vocab_size": 30})
    reduced = exported(draft, tmp_path, np.arange(3, 43))
    with pytest.raises(ConfigurationError, match="reduced to 40 tokens already"):
        make_llm(target, {"model": str(reduced), "draft_vocab_size": 30})
    weights = load_file(reduced / "model.safetensors")
    weights["d2t"] = weights["d2t"].flip(0).contiguous() + 70
    save_file(weights, reduced / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PacelineError, match="d2t must map 40 draft ids"):
        make_llm(target, {"model": str(reduced)})


def test_a_target_with_a_reduced_head_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="draft"):
        make_llm(exported(pair[1], tmp_path, np.arange(3, 43)))
