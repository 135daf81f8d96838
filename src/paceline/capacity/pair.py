"""A model as a GPU sees it: the products of a pass, the cache of a position, the bytes of its weights.

Everything is read from config.json by the same code that the engine uses; nothing is loaded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.bench.ceiling import layer_linears, linear_bytes
from paceline.bench.shapes import locate_model, said_of
from paceline.capacity.hardware import Gpu
from paceline.config import ModelConfig
from paceline.errors import ConfigurationError
from paceline.hub import known_models, resolve
from paceline.models.architecture import Architecture, read_architecture
from paceline.models.quantization import HEAD, LinearFormats, choose_formats

DTYPE_BYTES = 2  # bfloat16: activations, embeddings, and what is not FP8


@dataclass(frozen=True, slots=True)
class Product:
    """y [rows, outputs] = x [rows, inputs] · Wᵀ, `count` times in a pass.

    Under tensor parallelism a product is cut along its outputs, or along its inputs with a sum over ranks behind it.
    """

    outputs: int
    inputs: int
    is_fp8: bool
    count: int
    is_summed: bool  # cut along its inputs

    @property
    def weight_bytes(self) -> int:
        """Of one."""
        return linear_bytes(self.outputs, self.inputs, DTYPE_BYTES, is_fp8=self.is_fp8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    name: str
    config: ModelConfig
    architecture: Architecture
    formats: LinearFormats
    products: tuple[Product, ...]  # of the layers
    head: Product

    @property
    def kv_number_bytes(self) -> int:
        return 1 if self.config.kv_cache_dtype == "fp8" else DTYPE_BYTES

    @property
    def kv_bytes_per_position(self) -> int:
        arch = self.architecture
        return 2 * arch.kv_size * arch.num_layers * self.kv_number_bytes

    @property
    def read_bytes(self) -> int:
        """Weights that a pass reads."""
        return sum(product.count * product.weight_bytes for product in (*self.products, self.head))

    def kv_heads(self, tp: int) -> int:
        """Of one rank: a head is held by several ranks where there are fewer heads than ranks."""
        return max(1, self.architecture.num_kv_heads // tp)

    def weight_bytes(self, tp: int, max_model_len: int) -> int:
        """In the memory of one rank, to the byte where tp is 1: linears, embedding, norms, rotary table.

        The embedding is held whole by every rank, products and head are cut. With several ranks scales and padding are
        rounded.
        """
        arch = self.architecture
        layers = sum(product.count * product.weight_bytes for product in self.products) // tp
        is_shared = arch.tied_embeddings and not self.head.is_fp8  # one tensor for embedding and head
        embedding = arch.vocab_size * arch.hidden_size * DTYPE_BYTES
        head = 0 if is_shared else self.head.weight_bytes // tp
        norms = (2 * arch.num_layers + 1) * arch.hidden_size * DTYPE_BYTES
        heads = 2 * arch.num_layers * arch.head_dim * DTYPE_BYTES if arch.qk_norm else 0
        biases = arch.num_layers * (arch.q_size + 2 * arch.kv_size) * DTYPE_BYTES if arch.qkv_bias else 0
        rotary = 2 * max_model_len * arch.head_dim * DTYPE_BYTES
        return layers + embedding + head + norms + heads + biases + rotary


def read_model(
    name: str,
    gpu: Gpu,
    *,
    quantization: str | None = None,
    quantize_lm_head: bool = False,
    kv_cache_dtype: str = "auto",
    max_model_len: int = 8192,
    role: str = "the model",
) -> PlannedModel:
    """`name`: a shape, a config.json, a model directory, or a known model that is on this machine."""
    if quantization not in (None, "none", "fp8"):
        raise ConfigurationError(f"--quantization '{quantization}': fp8 or none.")
    if kv_cache_dtype not in ("auto", "fp8"):
        raise ConfigurationError(f"--kv-cache-dtype '{kv_cache_dtype}': auto or fp8.")
    with TemporaryDirectory(prefix="paceline-plan-") as folder:
        path = _directory(name, Path(folder))
        architecture = read_named(path, name)
    if max_model_len > architecture.max_position_embeddings:
        raise ConfigurationError(
            f"{role} '{name}' knows {architecture.max_position_embeddings:,} positions, but --max-model-len (or the "
            f"lengths of the load) asks for {max_model_len:,}."
        )
    formats = choose_formats(
        architecture.quantization,
        quantize=quantization == "fp8",
        quantize_lm_head=quantize_lm_head,
        tied_embeddings=architecture.tied_embeddings,
        has_fp8_products=gpu.has_fp8,
    )
    config = ModelConfig(
        path=path,
        name=name,
        dtype="bfloat16",
        max_model_len=max_model_len,
        load_format="dummy",
        quantization="fp8" if quantization == "fp8" else None,
        quantize_lm_head=quantize_lm_head,
        kv_cache_dtype="fp8" if kv_cache_dtype == "fp8" else "auto",
    )
    rows = architecture.draft_vocab_size or architecture.vocab_size
    head = Product(rows, architecture.hidden_size, formats.is_fp8(HEAD), 1, is_summed=False)
    return PlannedModel(
        name=name,
        config=config,
        architecture=architecture,
        formats=formats,
        products=_products(architecture, formats),
        head=head,
    )


def read_named(path: Path, name: str) -> Architecture:
    try:
        return read_architecture(path)
    except ConfigurationError as error:
        raise said_of(error, str(path), name) from None


def _directory(name: str, folder: Path) -> Path:
    """Where its config.json is. A repository is not fetched: a plan needs one file of it, not its weights."""
    model = locate_model(name, folder).model
    if Path(model).is_dir():
        return Path(model)
    if name in known_models():
        return resolve(name)
    raise ConfigurationError(
        f"'{name}': a plan needs a model's config.json alone. Give that file, a directory that holds it, or the name "
        "of a shape such as llama-3.1-70b."
    )


def _products(arch: Architecture, formats: LinearFormats) -> tuple[Product, ...]:
    """Layers that are alike are counted together."""
    counts: Counter[tuple[int, int, bool, bool]] = Counter()
    for layer in range(arch.num_layers):
        for modules, outputs, inputs in layer_linears(arch, layer):
            is_summed = modules[0].endswith(("o_proj", "down_proj"))
            counts[outputs, inputs, formats.is_fp8(*modules), is_summed] += 1
    return tuple(Product(*key[:3], count, key[3]) for key, count in counts.items())
