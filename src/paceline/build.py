"""Where the parts meet: an Engine with its executor and tokenizer, for the offline API and the engine process.

The engine knows workers through a protocol alone; this module is what hands it one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.config import EngineConfig
from paceline.engine.engine import Engine

if TYPE_CHECKING:
    from paceline.engine.interfaces import Executor
    from paceline.engine.step_costs import StepCosts
    from paceline.tokenizer import Tokenizer


def build_engine(config: EngineConfig) -> Engine:
    """Load everything that the configuration names."""
    from paceline.tokenizer import load_tokenizer

    return assemble_engine(config, load_tokenizer(config.model.path), shared=True)


def assemble_engine(config: EngineConfig, tokenizer: Tokenizer | None, *, shared: bool = False) -> Engine:
    """Load the models; the tokenizer is already there, or not wanted.

    `shared`: strangers send requests, so a grammar is tried in a sandbox and compiled while others go on, and token
    ids become text elsewhere, in `server/text_client.py`.
    """
    from paceline.structured.sandbox import Sandbox
    from paceline.structured.service import GrammarService
    from paceline.structured.store import GrammarStore
    from paceline.worker.executor import make_executor

    if tokenizer is None:
        executor = make_executor(config)
        return Engine(config, executor, None, costs=_costs(config, executor))
    store = GrammarStore(tokenizer, config.model.eos_token_ids)
    grammars = GrammarService(store, Sandbox() if shared else None)
    executor = make_executor(config, store, compiles=shared)
    return Engine(config, executor, tokenizer, grammars=grammars, emits_text=not shared, costs=_costs(config, executor))


def _costs(config: EngineConfig, executor: Executor) -> StepCosts | None:
    """What steps cost here, if K is to follow it."""
    from paceline.engine.cost_cache import step_costs
    from paceline.hub.cache import paceline_home

    if config.speculative is None or not config.speculative.adaptive:
        return None
    return step_costs(config, executor, paceline_home() / "costs")
