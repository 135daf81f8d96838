"""Where the parts meet: an Engine with its executor and tokenizer, for the offline API and the engine process.

The engine knows workers through a protocol alone; this module is what hands it one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.config import EngineConfig
from paceline.engine.engine import Engine

if TYPE_CHECKING:
    from paceline.engine.interfaces import TokenDecoder


def build_engine(config: EngineConfig) -> Engine:
    """Load everything that the configuration names."""
    from paceline.tokenizer import load_tokenizer

    return assemble_engine(config, load_tokenizer(config.model.path))


def assemble_engine(config: EngineConfig, token_decoder: TokenDecoder | None) -> Engine:
    """Load the models; the tokenizer is already there, or not wanted."""
    from paceline.worker.executor import make_executor

    return Engine(config, make_executor(config), token_decoder)
