"""A draft whose head knows only the tokens that the target uses most: the head is most of a small draft's cost.

Such a draft proposes nothing else, so its law is 0 outside those tokens; rejection sampling is exact with any q. Two
ways lead to it:

- a checkpoint that was exported so: `draft_vocab_size` N in config.json, `lm_head.weight` [N, hidden] and `d2t` [N]
  int64, target id = draft id + d2t[draft id], the format of EAGLE-3 checkpoints;
- any draft with `answer_counts.npy` [V] beside its weights (how often the target wrote each token): the head is cut
  to the most frequent ones while loading.

Behind the head everything is indexed by the target's ids: the logits of all other tokens are minus infinity.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from paceline.errors import UnsupportedModelError
from paceline.models.support import weight_files

COUNTS_FILE = "answer_counts.npy"
MAP_NAME = "d2t"
_COVERAGE = 0.98  # of the target's answers, where no size is given
_STEP = 1024  # a size that is chosen here is a multiple of this

Ids = NDArray[np.int64]


def frequent_tokens(counts: NDArray[np.integer], size: int | None, always: Seq[int] = ()) -> Ids:
    """Ascending ids [N] of the most frequent tokens, `always` among them; size None: as many as cover 98 % of answers.

    counts [V]. Raises ValueError unless len(always) < size <= V.
    """
    vocab_size = len(counts)
    order = np.argsort(-counts.astype(np.int64), kind="stable")
    if size is None:
        covered = counts[order].cumsum() / max(int(counts.sum()), 1)
        needed = int((covered < _COVERAGE).sum()) + 1
        size = min(vocab_size, -(-needed // _STEP) * _STEP)
    must = np.unique(np.asarray(always, dtype=np.int64))
    if not len(must) < size <= vocab_size:
        raise ValueError(f"must be above {len(must)} and at most {vocab_size}")
    others = order[~np.isin(order, must)]
    return np.sort(np.concatenate((must, others[: size - len(must)])))


def read_counts(path: Path, vocab_size: int) -> NDArray[np.integer] | None:
    """Token counts [V] beside a draft's weights; None if it has none. Raises UnsupportedModelError for a wrong file."""
    file = path / COUNTS_FILE
    if not file.is_file():
        return None
    try:
        counts: NDArray[np.integer] = np.load(file, allow_pickle=False)
    except ValueError as error:
        raise UnsupportedModelError(f"{file} cannot be read: {error}.") from None
    if counts.shape != (vocab_size,) or not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise UnsupportedModelError(
            f"{file} must hold {vocab_size} counts, one a token; it holds {counts.dtype} {list(counts.shape)}."
        )
    return counts


def read_map(path: Path, draft_vocab_size: int, vocab_size: int) -> Ids:
    """The target ids [N] of a checkpoint's reduced head. Raises UnsupportedModelError for a map that is none."""
    for file in weight_files(path):
        with safe_open(file, framework="np") as opened:
            if MAP_NAME in opened.keys():  # noqa: SIM118 (not a mapping)
                offsets: Ids = opened.get_tensor(MAP_NAME)
                break
    else:
        raise UnsupportedModelError(
            f"{path}: draft_vocab_size is {draft_vocab_size}, but no tensor {MAP_NAME} is there."
        )
    tokens: Ids = offsets.reshape(-1).astype(np.int64) + np.arange(offsets.size)
    fits = (
        len(tokens) == draft_vocab_size and tokens[0] >= 0 and tokens[-1] < vocab_size and (np.diff(tokens) > 0).all()
    )
    if not fits:
        raise UnsupportedModelError(
            f"{path}: {MAP_NAME} must map {draft_vocab_size} draft ids to ascending target ids below {vocab_size}."
        )
    return tokens
