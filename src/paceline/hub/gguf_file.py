"""What a GGUF file says: its metadata as plain Python values and its tensors as arrays, through the `gguf` library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UnsupportedModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numpy.typing import NDArray


class GgufFile:
    """Read-only view. `get("llama.block_count")` for exact keys, `arch_value("block_count")` for the model's own."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        try:
            self._reader = GGUFReader(path)
        except (ValueError, OSError, IndexError) as error:
            raise UnsupportedModelError(f"'{path}' cannot be read as a GGUF file: {error}") from error
        self.path = path
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture", ""))

    def arch_value(self, key: str, default: Any = None) -> Any:
        return self.get(f"{self.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        value = self.arch_value(key)
        if value is None:
            raise UnsupportedModelError(f"'{self.path}' has no '{self.architecture}.{key}' in its metadata.")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """In PyTorch's order: [out, in]."""
        return tuple(int(size) for size in reversed(self._tensor(name).shape))

    def array(self, name: str) -> NDArray[Any]:
        """Dequantised, in PyTorch's order of dimensions."""
        from gguf.quants import dequantize

        tensor = self._tensor(name)
        try:
            return dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"'{self.path}' stores {name} as {tensor.tensor_type.name}, which cannot be dequantised. "
                "Use a file with another quantisation (Q4_K_M and Q8_0 work)."
            ) from error

    def _tensor(self, name: str) -> ReaderTensor:
        if name not in self.tensors:
            raise UnsupportedModelError(f"'{self.path}' holds no tensor '{name}': it is not a whole model.")
        return self.tensors[name]
