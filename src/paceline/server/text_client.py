"""TextClient: an engine client that writes the text of deltas, so that no step of the engine waits for a tokenizer.

Answers with stop strings are the exception: where they end depends on their text, so the engine writes it itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from paceline.sequence import EngineRequest, FinishReason, SequenceDelta
from paceline.server.engine_client import EngineClient
from paceline.server.wrapped_client import WrappedClient
from paceline.text_stream import TextStream
from paceline.tokenizer import Tokenizer


class TextClient(WrappedClient):
    def __init__(self, inner: EngineClient, tokenizer: Tokenizer) -> None:
        super().__init__(inner)
        self._tokenizer = tokenizer

    def generate(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        params = request.sampling_params
        if params.stop or not params.detokenize:
            return self._inner.generate(request)
        return self._with_text(request)

    async def _with_text(self, request: EngineRequest) -> AsyncGenerator[SequenceDelta, None]:
        params = request.sampling_params
        skip, hides_end = params.skip_special_tokens, not params.include_stop_str_in_output
        streams = [TextStream(self._tokenizer, skip_special_tokens=skip) for _ in range(params.n)]
        async with aclosing(self._inner.generate(request)) as deltas:
            async for delta in deltas:
                stream, token_ids = streams[delta.index], delta.token_ids
                if delta.finish_reason is None:
                    stream.feed(token_ids)
                    delta.text = stream.take()
                else:  # without stop strings it is the last token that ends an answer
                    stream.feed(token_ids[:-1] if hides_end and delta.finish_reason is FinishReason.STOP else token_ids)
                    delta.text = stream.finish()
                yield delta
