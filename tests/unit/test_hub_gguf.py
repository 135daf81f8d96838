"""A converted GGUF file computes what the model it was made from computes, and its tokenizer is the file's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from unit.hub_fakes import add_tokenizer, byte_level_tokens, save, write_small_gguf

from paceline.errors import UnsupportedModelError
from paceline.hub import gguf_convert
from paceline.hub.gguf_convert import convert
from paceline.hub.gguf_tokenizer import merges_from_scores
from paceline.tokenizer import load_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": len(byte_level_tokens()),
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": False},
    "qwen2": {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": True},
    "qwen3": {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": True},
}


def random_model(kind: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **KINDS[kind]))
    for parameter in model.parameters():  # norms and biases away from 1 and 0; values that BF16 holds exactly
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).bfloat16().float()
    return model.eval()


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of query and key rows: for each head, row i of the first half, then row i of the second."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return torch.stack([rows[:, 0], rows[:, 1]], dim=2).reshape(weight.shape)


def write_gguf(model: Any, kind: str, path: Path) -> None:
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map

    config, writer = model.config, GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add_tokenizer(writer, "llama-bpe" if kind == "llama" else "qwen2")
    names = get_tensor_name_map(MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    heads = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for suffix, count in heads.items():
            if kind == "llama" and name.endswith(suffix):
                weight = interleaved(weight, count)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.numpy())
    if kind == "llama":
        writer.add_tensor("rope_freqs.weight", rope_divisors(model).numpy())
    save(writer)


def rope_divisors(model: Any) -> torch.Tensor:
    size = model.config.head_dim
    plain = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    return plain / model.model.rotary_emb.inv_freq


@pytest.mark.parametrize("kind", KINDS)
def test_logits_survive_the_round_trip(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = random_model(kind)
    write_gguf(model, kind, tmp_path / "m.gguf")
    (tmp_path / "hf").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    token_ids = torch.randint(0, SIZES["vocab_size"], (1, 40))
    with torch.no_grad():
        torch.testing.assert_close(converted(token_ids).logits, model(token_ids).logits, atol=1e-5, rtol=1e-5)
    assert converted.config.tie_word_embeddings is KINDS[kind]["tie_word_embeddings"]
    assert converted.generation_config.eos_token_id == 2


def test_shards_hold_what_one_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open

    monkeypatch.setattr(gguf_convert, "SHARD_BYTES", 600)
    write_small_gguf(tmp_path / "m.gguf")
    (tmp_path / "hf").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(index) == 11
    assert len(set(index.values())) > 1
    for name, file in index.items():
        with safe_open(tmp_path / "hf" / file, "pt") as shard:
            assert name in shard.keys()  # noqa: SIM118 (a shard is not iterable)


def test_tokenizer_and_template_come_from_the_file(tmp_path: Path) -> None:
    write_small_gguf(tmp_path / "m.gguf")
    (tmp_path / "hf").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    tokenizer = load_tokenizer(tmp_path / "hf")
    tokens = byte_level_tokens()
    assert tokenizer.token_table() == {token: index for index, token in enumerate(tokens)}
    assert tokenizer.eos_token_id == 2
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "hell"}])
    expected = "<|im_start|>user\nhell<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(prompt, skip_special_tokens=False) == expected
    assert prompt[0] == 1
    # SmolLM cuts digits off before the merges: the two spaces stay one token.
    assert [tokens[token_id] for token_id in tokenizer.encode("  5")] == ["ĠĠ", "5"]


@pytest.mark.parametrize("text", ["héllo 你好 😀", "e\u0301 \u200d👩‍👩‍👧", "  tab\t\r\n\n x  ", "<|im_end|>", ""])
def test_text_survives_encode_and_decode(text: str, tmp_path: Path) -> None:
    write_small_gguf(tmp_path / "m.gguf")
    (tmp_path / "hf").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "hf")
    tokenizer = load_tokenizer(tmp_path / "hf")
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    write_small_gguf(tmp_path / "m.gguf", pre="qwen3")
    with pytest.raises(UnsupportedModelError, match="Did you mean 'qwen2'"):
        convert(tmp_path / "m.gguf", tmp_path)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    write_small_gguf(tmp_path / "m.gguf", architecture="gemma3")
    with pytest.raises(UnsupportedModelError, match="gemma3 model; GGUF files of llama, mistral, qwen2, qwen3 work"):
        convert(tmp_path / "m.gguf", tmp_path)


def test_sentencepiece_merges_follow_the_scores() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "abb": 3, "bb": 4}
    scores = [0.0, 0.0, -2.0, -3.0, -1.0]
    assert merges_from_scores(vocabulary, scores) == [("b", "b"), ("a", "b"), ("a", "bb"), ("ab", "b")]
