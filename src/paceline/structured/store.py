"""GrammarStore: constraints as compiled grammars of one tokenizer, cached by content.

Special tokens (<|im_start|> and the like) are no text: they are left out of the vocabulary that xgrammar sees,
because they vanish when an answer is decoded, and a string of them would count as characters. For JSON neither
are tokens with a control character other than a line break: xgrammar lets them into strings of limited length.

Compiled grammars stay alive while somebody holds them, and the most recently used beyond that, within
CACHE_BYTES. Threads may share a store; xgrammar compiles without holding the interpreter's lock.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.structured.constraint import Constraint, GrammarError

if TYPE_CHECKING:
    from paceline.tokenizer import Tokenizer

CACHE_BYTES = 256 * 2**20
CACHE_ENTRIES = 256
# Of white space between the parts of a JSON document, in a row: room for indentation, and no way for a model
# to spend all its tokens on blanks.
MAX_WHITESPACE = 40

_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
_SOURCE_POSITION = re.compile(r"^\[[^\]]*\] \S+: ")  # "[08:31:26] /project/cpp/regex_converter.cc:94: "


class CompiledGrammar:
    """What xgrammar made of a constraint. Hold it as long as it is needed."""

    __slots__ = ("__weakref__", "inner", "no_text", "num_bytes", "vocab_size")

    def __init__(self, inner: Any, no_text: frozenset[int]) -> None:
        """`no_text`: tokens that no grammar holds."""
        self.inner = inner
        self.no_text = no_text
        self.num_bytes = int(inner.memory_size_bytes)
        self.vocab_size = int(inner.tokenizer_info.vocab_size)

    def matcher(self, end_token_ids: Sequence[int]) -> Any:
        """A new xgrammar.GrammarMatcher at the beginning of an answer."""
        import xgrammar

        ends = [token for token in end_token_ids if token < self.vocab_size]
        return xgrammar.GrammarMatcher(self.inner, override_stop_tokens=ends)


class GrammarStore:
    def __init__(self, tokenizer: Tokenizer, end_token_ids: Sequence[int]) -> None:
        """`end_token_ids`: the model's EOS tokens. Nothing is computed before the first grammar."""
        self._tokenizer = tokenizer
        self._end_token_ids = tuple(end_token_ids)
        self._infos: dict[bool, Any] = {}  # for JSON, for anything else
        self._compilers: dict[bool, Any] = {}
        self._preparing = threading.Lock()
        self._lock = threading.Lock()  # of the two caches
        self._recent: OrderedDict[tuple[str, str, bool], CompiledGrammar] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[tuple[str, str, bool], CompiledGrammar] = weakref.WeakValueDictionary()

    def tokenizer_info(self, *, for_json: bool = False) -> Any:
        """xgrammar's view of the tokenizer."""
        with self._preparing:
            if for_json not in self._infos:
                self._infos[for_json] = make_tokenizer_info(self._tokenizer, self._end_token_ids, for_json=for_json)
            return self._infos[for_json]

    def find(self, constraint: Constraint) -> CompiledGrammar | None:
        with self._lock:
            compiled = self._alive.get(constraint.key)
            if compiled is not None:
                self._remember(constraint, compiled)
            return compiled

    def get(self, constraint: Constraint) -> CompiledGrammar:
        """Compile, or find. Raises GrammarError if the constraint is no grammar."""
        compiled = self.find(constraint)
        if compiled is None:
            compiler = self._compiler(for_json=constraint.kind == "json_schema")
            compiled = CompiledGrammar(compile_constraint(compiler, constraint), self._tokenizer.special_token_ids)
            with self._lock:
                self._alive[constraint.key] = compiled
                self._remember(constraint, compiled)
        return compiled

    def _remember(self, constraint: Constraint, compiled: CompiledGrammar) -> None:
        self._recent[constraint.key] = compiled
        self._recent.move_to_end(constraint.key)
        total = sum(grammar.num_bytes for grammar in self._recent.values())
        while len(self._recent) > 1 and (total > CACHE_BYTES or len(self._recent) > CACHE_ENTRIES):
            total -= self._recent.popitem(last=False)[1].num_bytes

    def _compiler(self, *, for_json: bool) -> Any:
        info = self.tokenizer_info(for_json=for_json)
        with self._preparing:
            if for_json not in self._compilers:
                self._compilers[for_json] = make_compiler(info)
            return self._compilers[for_json]


def make_tokenizer_info(tokenizer: Tokenizer, end_token_ids: Sequence[int], *, for_json: bool) -> Any:
    """xgrammar.TokenizerInfo of a tokenizer, the tokens that are no text (of JSON) blanked out."""
    import xgrammar

    table = tokenizer.token_table()
    ends = [token for token in end_token_ids if token <= max(table.values())] or None
    found = xgrammar.TokenizerInfo.from_huggingface(tokenizer.inner, stop_token_ids=ends)
    blank = set(tokenizer.special_token_ids)
    if for_json:
        blank |= {place for place, data in enumerate(found.decoded_vocab) if _CONTROL.search(data)}
    spelled = [""] * found.vocab_size
    for token, token_id in table.items():
        if token_id not in blank:
            spelled[token_id] = token
    return xgrammar.TokenizerInfo(
        spelled,
        vocab_type=found.vocab_type,
        vocab_size=found.vocab_size,
        stop_token_ids=ends,
        add_prefix_space=found.add_prefix_space,
    )


def make_compiler(tokenizer_info: Any) -> Any:
    """One thread: the cores belong to the model. Without xgrammar's own cache, which would never forget."""
    import xgrammar

    return xgrammar.GrammarCompiler(tokenizer_info, max_threads=1, cache_enabled=False)


def compile_constraint(compiler: Any, constraint: Constraint) -> Any:
    """xgrammar.CompiledGrammar. Raises GrammarError saying what is wrong."""
    try:
        compiled = _compile(compiler, constraint)
    except (RuntimeError, ValueError) as error:
        reason = _SOURCE_POSITION.sub("", str(error).strip()).splitlines()
        raise GrammarError(f"{reason[0].rstrip('.')}." if reason else "xgrammar gave no reason.") from None
    _check_has_a_beginning(compiled)
    return compiled


def _compile(compiler: Any, constraint: Constraint) -> Any:
    match constraint.kind:
        case "json_schema":
            return compiler.compile_json_schema(
                constraint.source,
                any_whitespace=not constraint.compact,
                max_whitespace_cnt=None if constraint.compact else MAX_WHITESPACE,
            )
        case "regex":
            return compiler.compile_regex(constraint.source)
        case "ebnf":
            return compiler.compile_grammar(constraint.source)
        case "structural_tag":
            return compiler.compile_structural_tag(constraint.source)
    return compiler.compile_lark(constraint.source)


def _check_has_a_beginning(compiled: Any) -> None:
    """Refuse the empty language, and a rule that only leads back to itself: no first token exists."""
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size)
    if xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask) and not bool(mask.any()):
        raise GrammarError("no text of this model's tokens matches it.")
