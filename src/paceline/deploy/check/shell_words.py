"""What a shell makes of a text: KServe's LLM template ends in `eval "exec vllm serve … ${VLLM_ADDITIONAL_ARGS} $@"`.

Kubernetes comes first: it puts the value of a variable of the same container in place of $(NAME), and $ for $$.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ACTS = {
    "$": "'$' is replaced or run", "`": "'`' is run", ";": "';' ends the command", "&": "'&' sends it away",
    "|": "'|' pipes it", ">": "'>' writes a file", "<": "'<' reads a file", "(": "'(' starts another shell",
    ")": "')' closes another shell", "\n": "a line's end ends the command", "#": "'#' drops what follows",
    "*": "'*' is replaced by names of files", "?": "'?' is replaced by names of files",
}  # fmt: skip
_IN_DOUBLE_QUOTES = "$`"


def as_kubernetes_passes(text: str, variables: Mapping[str, str]) -> str:
    def put(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", put, text)


def acts_in_shell(text: str) -> str | None:
    """What the shell would do with `text` beside taking its words; None if nothing. Unclosed quotes are not told."""
    quote = ""
    previous = " "
    letters = iter(text)
    for letter in letters:
        if quote:
            if letter == quote:
                quote = ""
            elif quote == '"' and letter == "\\":
                next(letters, None)
            elif quote == '"' and letter in _IN_DOUBLE_QUOTES:
                return _ACTS[letter]
        elif letter == "\\":
            next(letters, None)
        elif letter in "'\"":
            quote = letter
        elif letter in _ACTS and (letter != "#" or previous.isspace()):
            return _ACTS[letter]
        previous = letter
    return None
