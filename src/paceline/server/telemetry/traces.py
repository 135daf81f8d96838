"""OpenTelemetry traces by option: one span a request, with the names of the GenAI conventions that vLLM uses too.

The packages are the extra `otel`. A collector that is down costs spans, never a request.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from paceline.errors import ConfigurationError
from paceline.extras import to_install
from paceline.server.telemetry.record import RequestRecord

_EXPORT_SECONDS = 2.0


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigurationError for an address that is none."""
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"--otlp-traces-endpoint={endpoint} is no HTTP address; give one such as http://127.0.0.1:4318/v1/traces."
        )


class Traces:
    """An observer of the telemetry that sends spans to an OTLP collector over HTTP."""

    def __init__(self, endpoint: str, model: str) -> None:
        """Raises ConfigurationError for an address that is none, or if the packages are missing."""
        check_endpoint(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigurationError(
                f"--otlp-traces-endpoint needs OpenTelemetry, which is not installed: {to_install('otel')}."
            ) from None
        self._model = model
        self._provider = TracerProvider(resource=Resource.create({"service.name": "paceline"}))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paceline")

    def __call__(self, record: RequestRecord) -> None:
        if not record.is_generation:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(record.trace_headers)
        end = time.time_ns()
        span = self._tracer.start_span(
            "llm_request", context=parent, kind=SpanKind.SERVER, start_time=end - int(record.seconds * 1e9)
        )
        span.set_attributes(self._attributes(record))
        if record.error is not None and not record.is_aborted:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(end_time=end)

    def _attributes(self, record: RequestRecord) -> dict[str, Any]:
        counts = record.speculation
        found = {
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "gen_ai.request.id": record.request_id,
            "gen_ai.response.model": self._model,
            "gen_ai.response.finish_reasons": record.finish_reasons,
            "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": record.num_completion_tokens,
            "gen_ai.latency.e2e": record.seconds,
            "gen_ai.latency.time_to_first_token": record.time_to_first_token,
            "gen_ai.latency.time_in_queue": record.queue_seconds,
            "paceline.num_cached_tokens": record.num_cached_tokens,
            "paceline.num_drafts": counts.num_drafts,
            "paceline.num_draft_tokens": counts.num_draft_tokens,
            "paceline.num_accepted_tokens": counts.num_accepted_tokens,
            "error.type": record.error,
        }
        return {name: value for name, value in found.items() if value is not None}

    def close(self) -> None:
        """Send what is left, if the collector takes it in time."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(2 * _EXPORT_SECONDS)
