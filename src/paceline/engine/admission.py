"""Admission: a request checked against what this engine can do, and made into the sequences of its answers.

Contract
- `check` refuses at once, with the parameter's name, what can never be served; nothing is queued before it.
- The seed of an answer depends on the request alone where it brings one, else on the engine's own and the order.
"""

from __future__ import annotations

import random

from msgspec import structs

from paceline.config import EngineConfig
from paceline.engine.interfaces import TokenDecoder
from paceline.errors import InvalidRequestError
from paceline.plan import SamplingPlan
from paceline.request_speculation import check_speculation
from paceline.sampling_params import SamplingParams, check_num_logprobs
from paceline.sequence import EngineRequest, Sequence, SpeculationCounts
from paceline.structured.constraint import Constraint, Grammar
from paceline.text_stream import TextStream

_SEED_STRIDE = 0x9E3779B97F4A7C15  # odd: answers of one request get seeds far apart
_MASK64 = (1 << 64) - 1
_SMALLEST_TEMPERATURE = 2.0**-126  # of float32's normal numbers; below, the law has long been that of temperature 0


class Admission:
    def __init__(
        self, config: EngineConfig, token_decoder: TokenDecoder | None, cache_positions: int, *, emits_text: bool
    ) -> None:
        """`cache_positions`: what the KV cache holds of one sequence that has it for itself."""
        self._config = config
        self._decoder = token_decoder
        self._emits_text = emits_text
        self._most_positions = min(config.model.max_model_len, cache_positions)
        self._random = random.Random(config.seed)
        self._next_seq_id = 0
        self._is_synthetic = config.speculative is not None and not config.speculative.is_lossless

    def sequences(self, request: EngineRequest) -> list[Sequence]:
        """One for each answer. Raises InvalidRequestError."""
        params = request.sampling_params
        max_tokens = self.check(request)
        bad_words = self._bad_words(params)
        seed = params.seed if params.seed is not None else self._random.getrandbits(64)
        return [self._sequence(request, index, seed, max_tokens, bad_words) for index in range(params.n)]

    def check(self, request: EngineRequest) -> int:
        """Refuse what can never run (InvalidRequestError); return max_tokens resolved against the model's length."""
        prompt, params = request.prompt_token_ids, request.sampling_params
        limit, vocab_size = self._most_positions, self._config.model.vocab_size
        if not prompt:
            raise InvalidRequestError("The prompt is empty; give at least one token.", param="prompt")
        if len(prompt) >= limit:
            raise InvalidRequestError(
                f"The prompt has {len(prompt)} tokens; this model takes at most {limit - 1} and needs room for one "
                "more. Shorten the prompt or serve with a larger max_model_len.",
                param="prompt",
                code="context_length_exceeded",
            )
        if vocab_size and not all(0 <= token < vocab_size for token in prompt):
            place, bad = next((place, token) for place, token in enumerate(prompt) if not 0 <= token < vocab_size)
            raise InvalidRequestError(
                f"Token id {bad}, at index {place} of the prompt, is outside the vocabulary of {vocab_size} tokens.",
                param="prompt",
            )
        _check_token_ids(params, vocab_size)
        if params.structured_outputs is not None and not self._grammar_ends(params):
            raise InvalidRequestError(
                "This model has no EOS token to end a structured answer; name a special token in stop_token_ids.",
                param=params.structured_outputs.param,
            )
        check_num_logprobs(params, self._config.max_logprobs)
        check_speculation(params.speculation, self._config.speculative)
        room = limit - len(prompt)
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens={params.min_tokens} cannot be reached: the prompt leaves room for {room} tokens.",
                param="min_tokens",
            )
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each bad word in token ids, as it is written at the start of a text and behind a space."""
        if params.bad_words and self._decoder is None:
            raise InvalidRequestError("bad_words need a tokenizer; this engine has none.", param="bad_words")
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for text in (word.lstrip(), " " + word.lstrip()):
                assert self._decoder is not None
                found[tuple(self._decoder.encode(text, add_special_tokens=False))] = None
        return tuple(word for word in found if word)

    def _grammar_ends(self, params: SamplingParams) -> tuple[int, ...]:
        """Tokens that end a structured answer: EOS, and stop tokens that are no text. A stop token that is text ends
        the answer wherever the grammar has it."""
        stops = [token for token in params.stop_token_ids if self._decoder and not self._decoder.decode([token])]
        return tuple(dict.fromkeys([*self._config.model.eos_token_ids, *stops]))

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        constraint: Constraint | None = params.structured_outputs
        return Grammar(constraint=constraint, end_token_ids=self._grammar_ends(params)) if constraint else None

    def _sequence(
        self, request: EngineRequest, index: int, seed: int, max_tokens: int, bad_words: tuple[tuple[int, ...], ...]
    ) -> Sequence:
        params, eos = request.sampling_params, self._config.model.eos_token_ids
        sampling = _sampling_plan(params, index, (seed + index * _SEED_STRIDE) & _MASK64, eos, bad_words)
        grammar = self._grammar(params)
        if grammar is not None:
            sampling = structs.replace(sampling, grammar=grammar.encode())
        self._next_seq_id += 1
        return Sequence(
            seq_id=self._next_seq_id,
            request_id=request.request_id,
            index=index,
            prompt_token_ids=request.prompt_token_ids,
            params=params,
            sampling=sampling,
            grammar_end_token_ids=frozenset(grammar.end_token_ids if grammar else ()),
            eos_token_ids=frozenset(eos),
            max_tokens=max_tokens,
            priority=request.priority,
            cache_salt=request.cache_salt,
            text=self._text_stream(params),
            speculation=SpeculationCounts(synthetic=self._is_synthetic),
        )

    def _text_stream(self, params: SamplingParams) -> TextStream | None:
        if self._decoder is None or not params.detokenize or not (self._emits_text or params.stop):
            return None
        return TextStream(
            self._decoder,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
        )


def _check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse parameters that name tokens which do not exist."""
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": list(params.logit_bias),
        "allowed_token_ids": params.allowed_token_ids or [],
    }
    for param, token_ids in named.items():
        bad = [token for token in token_ids if vocab_size and token >= vocab_size]
        if bad:
            raise InvalidRequestError(
                f"{param} names token id {bad[0]}, outside the vocabulary of {vocab_size} tokens.", param=param
            )


def _sampling_plan(
    params: SamplingParams,
    index: int,
    seed: int,
    eos_token_ids: tuple[int, ...],
    bad_words: tuple[tuple[int, ...], ...],
) -> SamplingPlan:
    ends = () if params.min_tokens == 0 else (*eos_token_ids, *params.stop_token_ids)
    return SamplingPlan(
        temperature=params.temperature if params.temperature >= _SMALLEST_TEMPERATURE else 0.0,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=seed,
        num_logprobs=params.logprobs,
        num_prompt_logprobs=params.prompt_logprobs if index == 0 else None,
        min_tokens=params.min_tokens,
        stop_token_ids=ends,
        logit_bias=tuple(params.logit_bias.items()),
        allowed_token_ids=tuple(params.allowed_token_ids) if params.allowed_token_ids is not None else None,
        bad_words=bad_words,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
    )
