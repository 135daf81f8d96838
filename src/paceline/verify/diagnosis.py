"""Why a law failed, in words: the samples are held against the laws that known faults would give.

Each suspicion is a law h; the samples' likelihood under (1 - share) p + share h, at the best share, is compared with
that under p. Faults rarely touch every token, hence the mixture. The suspicion that explains most is reported; it is
a hint for an engineer and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.verify.cases import Prompt
from paceline.verify.law import Array, laws, processed_logits
from paceline.verify.law_check import Group, Place
from paceline.verify.oracle import Oracle

_SHARES = np.arange(0.05, 1.0001, 0.05)
_FLOOR = 1e-12  # a suspicion is not ruled out by one token
_WORTH_SAYING = 8.0  # nats of likelihood
_ALMOST = 0.9  # of two suspicions that explain about as much, the one that names a place goes before a parameter

_NEUTRAL: dict[str, Any] = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "temperature": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "repetition_penalty": 1.0, "logit_bias": {}, "allowed_token_ids": None, "min_tokens": 0,
}  # fmt: skip
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Suspicion:
    name: str
    share: float
    gain: float  # nats


class Diagnosis:
    def __init__(self, target: Oracle, draft: Oracle | None, prompts: Sequence[Prompt], ends: Sequence[int]) -> None:
        self._target = target
        self._draft = draft
        self._prompts = prompts
        self._ends = ends

    def explain(self, place: Place) -> Suspicion | None:
        """The suspicion that explains a failed place best; None if none does."""
        exact = [self._law(self._target, place, group.prefix) for group in place.groups]
        found = []
        for name in self._names(place):
            suspected = [self._suspected(name, place, group) for group in place.groups]
            found.append(_weigh(name, place.groups, exact, suspected))
        most = max((suspicion.gain for suspicion in found), default=0.0)
        if most < _WORTH_SAYING:
            return None
        return next(suspicion for suspicion in found if suspicion.gain >= _ALMOST * most)

    def _names(self, place: Place) -> list[str]:
        params = place.case.setting.params
        names = []
        if place.place > 0:
            names.append("previous place")
            if any(params.get(name, _NEUTRAL[name]) != _NEUTRAL[name] for name in _PENALTIES):
                names.append("penalties blind to this answer")
        if self._draft is not None:
            names.append("draft")
            if place.place < place.case.mode.num_places - 1:  # a bonus token meets no ratio
                names += ["raw ratio", "argmax draft"]
        dropped = [f"without {name}" for name, neutral in _NEUTRAL.items() if params.get(name, neutral) != neutral]
        return [*names, *dropped]

    def _suspected(self, name: str, place: Place, group: Group) -> Array:
        params = place.case.setting.params
        if name in ("draft", "raw ratio", "argmax draft"):
            return self._of_draft(name, place, group.prefix)
        if name == "previous place":
            return self._law(self._target, place, group.prefix[:-1])
        if name == "penalties blind to this answer":
            return self._law(self._target, place, group.prefix, counted=())
        return self._law(self._target, place, group.prefix, params=_without(params, name.removeprefix("without ")))

    def _of_draft(self, name: str, place: Place, prefix: tuple[int, ...]) -> Array:
        assert self._draft is not None
        q = self._law(self._draft, place, prefix)
        if name == "draft":
            return q
        p = self._law(self._target, place, prefix)
        if name == "argmax draft":
            return emitted(p, drawn=np.eye(len(q))[int(q.argmax())], divisor=q)
        prompt = self._prompts[place.case.setting.prompt].token_ids
        return emitted(p, drawn=q, divisor=laws(self._draft.logits([(*prompt, *prefix)])[0], {}, 0.0)[0])

    def _law(
        self,
        oracle: Oracle,
        place: Place,
        prefix: Sequence[int],
        *,
        params: Mapping[str, Any] | None = None,
        counted: Sequence[int] | None = None,
    ) -> Array:
        setting = place.case.setting
        params = setting.params if params is None else params
        prompt = self._prompts[setting.prompt].token_ids
        (raw,) = oracle.logits([(*prompt, *prefix)])
        output = prefix if counted is None else counted
        return laws(processed_logits(raw, params, prompt, tuple(output), self._ends), params, 0.0)[0]


def emitted(p: Array, drawn: Array, divisor: Array) -> Array:
    """The law of the first token when a draft from `drawn` is accepted with min(1, p / divisor), and recovered from
    max(p - divisor, 0): p itself where the two are the same law."""
    kept = drawn * np.minimum(1.0, p / np.maximum(divisor, _FLOOR))
    residual = np.maximum(p - divisor, 0.0)
    residual = residual if residual.sum() > 0 else p
    result: Array = kept + (1.0 - kept.sum()) * residual / residual.sum()
    return result


def _without(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key != name}


def _weigh(name: str, groups: Sequence[Group], exact: Sequence[Array], suspected: Sequence[Array]) -> Suspicion:
    tokens = [np.fromiter(group.counts, dtype=np.int64) for group in groups]
    times = np.concatenate([np.fromiter(group.counts.values(), dtype=np.float64) for group in groups])
    p = np.concatenate([law[ids] for law, ids in zip(exact, tokens, strict=True)])
    h = np.concatenate([law[ids] for law, ids in zip(suspected, tokens, strict=True)])

    def likelihood(share: float) -> float:
        return float((times * np.log(np.maximum((1.0 - share) * p + share * h, _FLOOR))).sum())

    best = max(_SHARES, key=likelihood)
    return Suspicion(name, float(best), likelihood(float(best)) - likelihood(0.0))


_WORDS = {
    "previous place": "the law of the place before: a row is off by one",
    "penalties blind to this answer": "penalties that do not count the tokens before it in this answer, "
    "drafts of the same step included",
    "draft": "the draft's law q: a draft that was not verified, or a recovered or bonus token drawn from q",
    "raw ratio": "a ratio with the draft's raw law, though the draft was drawn from its processed law",
    "argmax draft": "a ratio with the draft's softmax, though the draft was its argmax (one-hot)",
}


def in_words(place: Place, suspicion: Suspicion | None) -> str:
    """One paragraph about a failed place."""
    last = place.case.mode.num_places - 1
    where = f"place {place.place} of 0..{last}"
    if place.place == 0:
        where += " (the first token, before any draft)"
    elif place.place == 1:
        where += " (the first draft, accepted or recovered)"
    elif place.place == last:
        where += " (the bonus token, where all drafts were kept)"
    said = f"{place.case.mode.name}; {place.case.setting.name}; {where}: "
    said += f"TV {place.fit.variation:.3f} (95% interval {place.fit.variation_low:.3f} to "
    said += f"{place.fit.variation_high:.3f}) from the target's law, p = {place.fit.p_value:.1e}."
    if place.fit.num_impossible:
        said += (
            f" {place.fit.num_impossible} of {place.fit.num_samples} tokens have probability 0 under these parameters."
        )
    if suspicion is None:
        return said + " None of the known faults explains it."
    name = suspicion.name
    like = _WORDS.get(name) or f"the law {name}: the parameter is not applied to p"
    return said + f" It looks as if {suspicion.share:.0%} of them came from {like}."
