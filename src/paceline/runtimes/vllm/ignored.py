"""Fields of a request that Paceline's own server honours and vLLM ignores without a word: refused by name.

vLLM takes unknown fields silently, its own former ones among them; whoever sends `guided_json` would get text that
follows no schema.
"""

from __future__ import annotations

import json

from paceline.errors import InvalidRequestError

_PATHS = ("/v1/chat/completions", "/v1/completions")
_IGNORED = {
    "speculation": "vLLM has no choice of drafts for one request; leave it out",
    "guided_json": 'give "structured_outputs": {"json": ...} instead',
    "guided_regex": 'give "structured_outputs": {"regex": ...} instead',
    "guided_choice": 'give "structured_outputs": {"choice": ...} instead',
    "guided_grammar": 'give "structured_outputs": {"grammar": ...} instead',
}
_ORIGINS = "include_token_origins"


def refuse_ignored(path: str, body: bytes) -> None:
    """Raises InvalidRequestError. A body that is no JSON object is vLLM's to refuse."""
    if path not in _PATHS or not any(name.encode() in body for name in (*_IGNORED, _ORIGINS)):
        return
    try:
        sent = json.loads(body)
    except ValueError:
        return
    if not isinstance(sent, dict):
        return
    options = sent.get("stream_options")
    if isinstance(options, dict) and options.get(_ORIGINS):
        raise InvalidRequestError(
            f"stream_options.{_ORIGINS}: vLLM does not tell; leave it out.", param=f"stream_options.{_ORIGINS}"
        )
    for name, instead in _IGNORED.items():
        if sent.get(name) is not None:
            raise InvalidRequestError(f"{name}: runtime vllm would ignore it; {instead}.", param=name)
