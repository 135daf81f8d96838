"""vLLM-shaped arguments to EngineConfig: what is honoured, what is refused and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from server_fakes import FakeTokenizer

from paceline.arguments import Machine, Resolved, resolve_arguments
from paceline.arguments.foreign import FOREIGN, FOREIGN_SPECULATIVE
from paceline.config import SpeculativeConfig
from paceline.errors import ConfigurationError

CPU = Machine(num_gpus=0, cpu_dtype=lambda: "bfloat16")
GPU = Machine(num_gpus=1, cpu_dtype=lambda: "bfloat16")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 7,
}


def write_model(path: Path, **changes: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA | changes))
    return str(path)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_model(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> str:
    return write_model(tmp_path / "draft", max_position_embeddings=512)


@pytest.fixture(autouse=True)
def differences(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Fake tokenizers; append a difference to make a pair unfit."""
    found: list[str | None] = []
    monkeypatch.setattr("paceline.tokenizer.load_tokenizer", lambda path: FakeTokenizer())
    monkeypatch.setattr("paceline.tokenizer.has_tokenizer", lambda path: True)
    monkeypatch.setattr("paceline.tokenizer.same_tokens", lambda target, draft: found[0] if found else None)
    return found


def resolve(machine: Machine = CPU, **arguments: Any) -> Resolved:
    return resolve_arguments(arguments, machine=machine)


def refusal(machine: Machine = CPU, **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        resolve(machine, **arguments)
    return str(caught.value)


def test_defaults(target: str) -> None:
    resolved = resolve(model=target)
    config = resolved.config
    assert (config.model.path, config.model.name) == (Path(target), target)
    assert config.model.dtype == "bfloat16"
    assert config.model.max_model_len == 4096  # not the 8192 of the model: this is a CPU
    assert config.model.vocab_size == FakeTokenizer.vocab_size  # p39: the table of embeddings is padded
    assert config.model.eos_token_ids == (7,)
    assert config.speculative is None
    assert config.device == "cpu"
    assert resolved.notes == ()


def test_dtype_and_length_on_a_gpu_are_the_models(target: str) -> None:
    config = resolve(GPU, model=Path(target)).config
    assert (config.device, config.model.dtype, config.model.max_model_len) == ("cuda", "bfloat16", 8192)


@pytest.mark.parametrize(("given", "dtype"), [("float", "float32"), ("half", "float16"), ("float32", "float32")])
def test_dtype_names(target: str, given: str, dtype: str) -> None:
    assert resolve(model=target, dtype=given).config.model.dtype == dtype


def test_flat_and_nested_forms_are_the_same(target: str, draft: str) -> None:
    flat = resolve(model=target, speculative_model=draft, num_speculative_tokens=3)
    nested = resolve(model=target, speculative_config={"model": draft, "num_speculative_tokens": 3})
    text = resolve(model=target, speculative_config=json.dumps({"model": draft, "num_speculative_tokens": 3}))
    assert flat.config == nested.config == text.config
    speculative = flat.config.speculative
    assert speculative is not None
    assert (speculative.method, speculative.num_speculative_tokens) == ("draft_model", 3)
    assert speculative.draft is not None
    assert speculative.draft.max_model_len == 512  # p38: its own, shorter than the target's


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculative_model": "[ngram]", "num_speculative_tokens": 4, "ngram_prompt_lookup_max": 3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}},
        {"speculative_config": {"model": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}},
    ],
)
def test_ngram(target: str, arguments: dict[str, Any]) -> None:
    speculative = resolve(model=target, **arguments).config.speculative
    assert speculative is not None
    assert (speculative.method, speculative.draft, speculative.prompt_lookup_max) == ("ngram", None, 3)


def test_a_draft_model_has_the_text_beside_it_where_steps_are_not_captured(target: str, draft: str) -> None:
    def speculative(machine: Machine, engine: dict[str, Any], **given: Any) -> SpeculativeConfig:
        config = resolve(
            machine, model=target, speculative_config={"model": draft, **given}, **engine
        ).config.speculative
        assert config is not None
        return config

    beside = speculative(CPU, {})
    assert (beside.proposers, beside.proposer) == (("draft", "ngram"), "auto")
    assert (beside.prompt_lookup_min, beside.prompt_lookup_max) == (2, 16)
    named = speculative(CPU, {}, proposer="draft", prompt_lookup_max=6)
    assert (named.proposers, named.proposer, named.prompt_lookup_max) == (("draft", "ngram"), "draft", 6)
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5] * 5}
    assert speculative(CPU, {}, **synthetic).proposer == "draft", "given rates say nothing about a text"
    assert speculative(GPU, {}).proposers == ("draft",)
    assert speculative(GPU, {}, proposer="draft").proposers == ("draft",)
    assert speculative(GPU, {"enforce_eager": True}, proposer="auto").proposers == ("draft", "ngram")
    assert speculative(GPU, {}, rejection_sample_method="block").proposers == ("draft", "ngram")


def test_where_steps_are_captured_a_text_beside_the_draft_is_refused(target: str, draft: str) -> None:
    for given in ({"proposer": "auto"}, {"proposer": "ngram"}, {"prompt_lookup_max": 4}):
        message = refusal(GPU, model=target, speculative_config={"model": draft, **given})
        assert f"speculative_config.{next(iter(given))}" in message
        assert "only where steps are not captured" in message
    assert "needs a draft model" in refusal(model=target, speculative_config={"method": "ngram", "proposer": "draft"})


def test_engine_settings_arrive(target: str) -> None:
    config = resolve(
        model=target, block_size=32, num_gpu_blocks_override=99, kv_cache_memory_bytes=1 << 20, max_num_seqs=4,
        enable_prefix_caching=False, max_num_batched_tokens=64, seed=3, max_model_len=100, dtype="float32",
    ).config  # fmt: skip
    assert (config.cache.block_size, config.cache.num_blocks, config.cache.enable_prefix_caching) == (32, 99, False)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (4, 64)
    assert (config.cache.kv_cache_memory_bytes, config.seed, config.model.max_model_len) == (1 << 20, 3, 100)


def test_the_script_of_a_gpu_user_gets_every_problem_in_one_message() -> None:
    message = refusal(
        model="meta-llama/Llama-3.1-70B-Instruct", speculative_model="meta-llama/Llama-3.1-1B-Instruct",
        num_speculative_tokens=5, tensor_parallel_size=4, gpu_memory_utilization=0.90, max_model_len=4096,
        quantization="fp8", enforce_eager=True,
    )  # fmt: skip
    assert message.startswith("3 problems")
    assert "it is 'meta-llama/Llama-3.2-1B-Instruct'" in message
    assert "tensor_parallel_size=4 is not possible: this machine has no GPU" in message
    assert "quantization='fp8' is not possible" in message


def test_without_them_the_same_script_runs_with_advice(target: str, draft: str) -> None:
    resolved = resolve(
        model=target, speculative_model=draft, num_speculative_tokens=5, tensor_parallel_size=1,
        gpu_memory_utilization=0.90, max_model_len=4096, enforce_eager=True,
    )  # fmt: skip
    assert resolved.config.num_speculative_tokens == 5
    assert [note.split(" ")[0] for note in resolved.notes] == ["enforce_eager=True", "gpu_memory_utilization"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_model_length": 5}, "Unknown argument 'max_model_length'. Did you mean 'max_model_len'?"),
        ({"num_speculative_token": 5}, "Did you mean 'num_speculative_tokens'?"),
        ({"speculative_config": {"modle": "x"}}, "'speculative_config.modle'. Did you mean 'model'?"),
        ({"num_speculative_tokens": 5}, "not what drafts them"),
        ({"speculative_config": {"method": "draft_model"}}, "needs a 'model'"),
        ({"speculative_config": {"method": "ngram", "model": "x"}}, "takes no model"),
        ({"speculative_config": {"method": "eagle3", "model": "x"}}, "'eagle3' is not offered"),
        ({"speculative_config": {"method": "magic"}}, "expected one of draft_model, ngram"),
        ({"speculative_config": "{"}, "not valid JSON"),
        ({"speculative_config": {"method": "ngram"}, "num_speculative_tokens": 2}, "not both"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 99}}, "between 1 and 32"),
        ({"max_model_len": 10_000}, "more than the 8192 positions"),
        ({"max_model_len": "4096"}, "expected `int | null`, got `str`"),
        ({"dtype": "int8"}, "expected one of auto, float32"),
        ({"device": "cuda"}, "no GPU"),
        ({"tokenizer": "other"}, "its own tokenizer"),
        ({"trust_remote_code": True}, "never run"),
        ({"pipeline_parallel_size": 2}, "one node"),
        ({"block_size": 12}, "power of two"),
        ({"model": "smollm3"}, "Unknown model 'smollm3'"),
        ({"model": "nowhere/at/all"}, "No directory"),
    ],
)
def test_refusals(target: str, arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(**{"model": target, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tensor_parallel_size": 4}, "this machine has 1 GPU. Paceline splits a model over the GPUs of one machine"),
        ({"tensor_parallel_size": 4}, "past one machine, serve with vLLM from the same arguments: runtime='vllm'"),
        ({"quantization": "awq"}, "expected one of fp8"),
        ({"quantize_lm_head": True}, "is not FP8; add quantization='fp8'"),
        ({"speculative_config": {"method": "ngram", "quantization": "fp8"}}, "belong to a draft model"),
        ({"speculative_config": {"method": "ngram", "draft_tensor_parallel_size": 2}}, "draft_tensor_parallel_size=2"),
    ],
)
def test_refusals_on_a_gpu(target: str, arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(GPU, model=target, **arguments)


@pytest.mark.parametrize(
    ("size", "draft_size", "words"),
    [
        (3, 1, "tensor_parallel_size=3 cannot be used: it must be one of 1, 2, 4, 8"),
        (16, 1, "this machine has 8 GPUs. Paceline splits a model over the GPUs of one machine; past one machine"),
        (0, 1, "tensor_parallel_size=0 cannot be used"),
        (4, 3, "draft_tensor_parallel_size=3 cannot be used with tensor_parallel_size=4"),
        (2, 4, "draft_tensor_parallel_size=4 cannot be used with tensor_parallel_size=2"),
        (2, 0, "draft_tensor_parallel_size=0 cannot be used"),
        (8, 1, "tensor_parallel_size=8 is not possible for"),  # of the tiny target
        (8, 8, "draft_tensor_parallel_size=8 is not possible for"),
    ],
)
def test_sizes_that_cannot_be(target: str, draft: str, size: int, draft_size: int, words: str) -> None:
    speculative = {"model": draft, "draft_tensor_parallel_size": draft_size}
    message = refusal(Machine(num_gpus=8), model=target, tensor_parallel_size=size, speculative_config=speculative)
    assert words in message


def test_ranks_on_a_cpu_are_for_those_who_ask_for_it(target: str) -> None:
    resolved = resolve(model=target, tensor_parallel_size=2, device="cpu")
    assert resolved.config.tensor_parallel_size == 2
    assert "nothing is faster" in resolved.notes[0]
    assert "device='cpu' runs the ranks as processes" in refusal(model=target, tensor_parallel_size=2)


def test_enforce_eager_costs_on_a_gpu(target: str) -> None:
    assert "costs most of the gain" in resolve(GPU, model=target, enforce_eager=True).notes[0]


def test_p39_a_pair_with_different_tokens_is_refused(target: str, draft: str, differences: list[str | None]) -> None:
    differences.append("the draft's tokens are not the target's: id 3 differs.")
    assert "id 3 differs" in refusal(model=target, speculative_model=draft)


def test_p39_a_draft_that_cannot_read_all_tokens_is_refused(target: str, tmp_path: Path) -> None:
    small = write_model(tmp_path / "small", vocab_size=64)
    assert "could not read all" in refusal(model=target, speculative_model=small)


def test_the_problems_of_both_models_come_together(tmp_path: Path) -> None:
    mamba = write_model(tmp_path / "mamba", architectures=["MambaForCausalLM"], model_type="mamba")
    message = refusal(model=mamba, speculative_model=str(tmp_path / "missing/"))
    assert message.startswith("2 problems")
    assert "Mamba" in message


def test_a_draft_that_is_the_target_is_a_note(target: str) -> None:
    assert "nothing is faster" in resolve(model=target, speculative_model=target).notes[0]


def test_without_tokenizer(target: str) -> None:
    resolved = resolve(model=target, skip_tokenizer_init=True)
    assert resolved.tokenizer is None
    assert resolved.config.model.vocab_size == 128


@pytest.mark.parametrize("table", [FOREIGN, FOREIGN_SPECULATIVE])
def test_foreign_arguments_say_why_they_are_refused(table: dict[str, Any]) -> None:
    for foreign in table.values():
        assert all(foreign.accepts(value) for value in foreign.harmless)
        assert foreign.reason.endswith(".") or set(foreign.harmless) == {True, False}


def test_a_draft_without_tokenizer_files_has_the_targets_tokens(
    target: str, draft: str, monkeypatch: pytest.MonkeyPatch, differences: list[str | None]
) -> None:
    monkeypatch.setattr("paceline.tokenizer.has_tokenizer", lambda path: str(path) != draft)
    differences.append("never compared: there is nothing to compare with")
    assert resolve(model=target, speculative_model=draft).config.draft is not None


def test_a_draft_without_tokenizer_files_and_with_other_ids_is_refused(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_model(tmp_path / "other", vocab_size=777)
    monkeypatch.setattr("paceline.tokenizer.has_tokenizer", lambda path: str(path) != other)
    with pytest.raises(ConfigurationError, match=r"no tokenizer files, and its 777 token ids"):
        resolve(model=target, speculative_model=other)


def test_acceptance_methods(target: str) -> None:
    def acceptance(**config: Any) -> tuple[str, tuple[float, ...]]:
        resolved = resolve(model=target, speculative_config={"method": "ngram", "num_speculative_tokens": 3, **config})
        speculative = resolved.config.speculative
        assert speculative is not None
        assert any("NOT the target's" in note for note in resolved.notes) is not speculative.is_lossless
        return speculative.acceptance, speculative.synthetic_acceptance_rates

    assert acceptance() == acceptance(rejection_sample_method="standard") == ("rejection", ())
    assert acceptance(rejection_sample_method="strict") == ("rejection", ())
    assert acceptance(rejection_sample_method="block") == ("block", ())
    rates = acceptance(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.8, 0.4, 0.0])
    assert rates == ("synthetic", (0.8, 0.5, 0.0))


@pytest.mark.parametrize(
    "config",
    [
        {"rejection_sample_method": "synthetic"},
        {"synthetic_acceptance_rates": [0.5, 0.5, 0.5]},
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.5]},
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6, 0.5]},
        {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.2, 0.6, 0.5]},
        {"rejection_sample_method": "lenient"},
    ],
)
def test_half_given_acceptance_is_refused(target: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"speculative_config\.(rejection_sample_method|synthetic_acceptance)"):
        resolve(model=target, speculative_config={"method": "ngram", "num_speculative_tokens": 3, **config})


def test_fp8_settings_arrive_for_each_model(target: str, draft: str) -> None:
    speculative = {"model": draft, "quantization": "fp8", "quantize_lm_head": True}
    config = resolve(
        GPU, model=target, quantization="fp8", kv_cache_dtype="fp8_e4m3", speculative_config=speculative
    ).config  # fmt: skip
    assert config.draft is not None
    assert (config.model.quantization, config.model.quantize_lm_head) == ("fp8", False)
    assert (config.draft.quantization, config.draft.quantize_lm_head) == ("fp8", True)
    assert (config.model.kv_cache_dtype, config.draft.kv_cache_dtype) == ("fp8", "fp8")


def test_the_draft_is_quantised_only_if_told(target: str, draft: str) -> None:
    asked = {"model": target, "speculative_model": draft, "quantization": "fp8"}
    for more, expected in (({}, None), ({"speculative_model_quantization": "fp8"}, "fp8")):
        config = resolve(GPU, **asked, **more).config
        assert config.draft is not None
        assert (config.model.quantization, config.draft.quantization) == ("fp8", expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kv_cache_dtype": "fp8"},
        {"quantize_lm_head": True},
        {"speculative_config": {"model": "draft", "quantization": "fp8"}},
    ],
)
def test_fp8_that_needs_a_gpu_is_refused_without_one(target: str, arguments: dict[str, Any]) -> None:
    assert "is not possible: FP8 kernels need a GPU, and this machine has no GPU. Leave it out." in refusal(
        model=target, **arguments
    )


def test_head_of_an_fp8_checkpoint_may_be_quantised(tmp_path: Path) -> None:
    path = write_model(tmp_path / "fp8", quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"})
    assert resolve(GPU, model=path, quantize_lm_head=True).config.model.quantize_lm_head


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ({"kv_cache_memory_bytes": 1000}, None),
        ({"num_gpu_blocks_override": 7}, None),
        # 2 (key, value) x 2 heads x 8 x 2 layers x 16 positions x 2 bytes a block, 7 blocks and the null block
        ({}, 2 * 2 * 8 * 2 * 16 * 2 * 8),
        ({"dtype": "float32"}, 2 * 2 * 8 * 2 * 16 * 4 * 8),
        ({"speculative_model": "draft"}, 2 * 2 * 2 * 8 * 2 * 16 * 2 * 8),
        ({"tensor_parallel_size": 2, "device": "cpu"}, 2 * 1 * 8 * 2 * 16 * 2 * 8),
    ],
)
def test_a_cache_without_room_for_a_sequence_is_told_before_weights_are_read(
    target: str, draft: str, arguments: dict[str, Any], needed: int | None
) -> None:
    """There are no weights here at all."""
    given = {"model": target, "max_model_len": 100, **arguments}
    if "speculative_model" in given:
        given["speculative_model"] = draft
    if needed is None:
        assert "one sequence of max_model_len=100 needs 7" in refusal(**given)
        return
    assert "Lower max_model_len or raise kv_cache_memory_bytes" in refusal(**given, kv_cache_memory_bytes=needed - 1)
    resolve(**given, kv_cache_memory_bytes=needed)
