"""The tokenizer inside a GGUF file, written as tokenizer.json and tokenizer_config.json.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) instead of describing it; a wrong one gives other tokens
for the same text and costs quality silently, so an unknown name is refused. Two kinds: byte-level BPE ("gpt2":
SmolLM, Llama 3, Qwen) with its merges, and SentencePiece BPE ("llama": Llama 2, Mistral), whose merges follow from
the scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UnsupportedModelError, did_you_mean
from paceline.hub.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# How text is cut into words before the merges: each family's published rule.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLIT_BY = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe", "gpt2": "gpt-2"}
_KNOWN = ("smollm", "gpt-2", *_SPLIT_BY)


def write_tokenizer(source: GgufFile, folder: Path) -> None:
    tokenizer = build_tokenizer(source)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = tokenizer_config(source)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def build_tokenizer(source: GgufFile) -> Tokenizer:
    model = source.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(source)
    elif model == "llama":
        tokenizer = _sentence_piece(source)
    else:
        raise UnsupportedModelError(f"'{source.path}' has a '{model}' tokenizer; 'gpt2' and 'llama' ones work.")
    tokenizer.add_tokens(_added_tokens(source))
    _add_bos(tokenizer, source)
    return tokenizer


def tokenizer_config(source: GgufFile) -> dict[str, Any]:
    tokens = source.get("tokenizer.ggml.tokens")
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: source.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    # The end of a turn, where the file names one, is what ends a generated text.
    ids["eos_token"] = source.get("tokenizer.ggml.eot_token_id", ids["eos_token"])
    special = {name: tokens[token_id] for name, token_id in ids.items() if token_id is not None}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": source.arch_value("context_length"),
        "clean_up_tokenization_spaces": False,
        **special,
    }
    template = source.get("tokenizer.chat_template")
    return config | ({"chat_template": template} if template else {})


def _vocabulary(source: GgufFile) -> dict[str, int]:
    return {token: index for index, token in enumerate(source.get("tokenizer.ggml.tokens"))}


def _added_tokens(source: GgufFile) -> list[AddedToken]:
    from tokenizers import AddedToken

    types = source.get("tokenizer.ggml.token_type", [])
    tokens = source.get("tokenizer.ggml.tokens")
    return [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _byte_level(source: GgufFile) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    rule = _rule(source)
    merges = [tuple(merge.split(" ", 1)) for merge in source.get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(_vocabulary(source), merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _rule(source: GgufFile) -> str:
    name = str(source.get("tokenizer.ggml.pre", ""))
    rule = _ALIASES.get(name, name)
    if rule not in _KNOWN:
        raise UnsupportedModelError(
            f"'{source.path}' splits text by the rule '{name}', which Paceline does not know "
            f"(known: {', '.join(_KNOWN)}).{did_you_mean(name, _KNOWN)} Use the model's Hugging Face directory instead."
        )
    return rule


def _pre_tokenizer(rule: str) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    if rule in _SPLIT_BY:
        split = pre_tokenizers.Split(Regex(_SPLIT_BY[rule]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _sentence_piece(source: GgufFile) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = _vocabulary(source)
    unknown = source.get("tokenizer.ggml.tokens")[source.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = merges_from_scores(vocabulary, source.get("tokenizer.ggml.scores"))
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = source.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best joint first: SentencePiece's order of merging."""
    ranked: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], index, vocabulary[left], vocabulary[right], (left, right)))
    return [merge for *_, merge in sorted(ranked)]


def _add_bos(tokenizer: Tokenizer, source: GgufFile) -> None:
    """SentencePiece files begin a text with BOS unless they say otherwise; byte-level ones only if they say so."""
    from tokenizers import processors

    default = source.get("tokenizer.ggml.model") == "llama"
    bos_id = source.get("tokenizer.ggml.bos_token_id")
    if bos_id is None or not source.get("tokenizer.ggml.add_bos_token", default):
        return
    bos = source.get("tokenizer.ggml.tokens")[bos_id]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )
