"""OpenTelemetry traces: a span for each request, with its preparation, its wait, its prefill and its decoding.

Spans are made when a request has ended, from the times that it kept anyway, so that nothing is paid for while it
runs. The extra `otel` brings the libraries.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import interlingua
from interlingua.contract.errors import ModelError
from interlingua.server.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter


class Tracer:
    """Makes the spans of requests and hands them to an exporter in the background.

    A `traceparent` that came with the request is the parent, and its decision whether to sample holds.

    Raises:
        ModelError: the libraries are missing.
    """

    def __init__(self, exporter: SpanExporter, service_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": service_name, "service.version": interlingua.__version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("interlingua", interlingua.__version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._inside = set_span_in_context
        self._server, self._error = SpanKind.SERVER, StatusCode.ERROR

    @classmethod
    def to(cls, endpoint: str, service_name: str) -> Tracer:
        """A tracer that sends to a collector by OTLP over HTTP. `/v1/traces` is added to an address without a path."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise ModelError("`--otlp-endpoint` needs the extra `otel`: pip install 'interlingua[otel]'") from None

        scheme, _, rest = endpoint.partition("://")
        if scheme not in ("http", "https") or not rest:
            raise ModelError(f"`otlp_endpoint` must be an http:// or https:// address, got {endpoint!r}")
        url = endpoint if rest.rstrip("/").count("/") else endpoint.rstrip("/") + "/v1/traces"
        return cls(OTLPSpanExporter(endpoint=url), service_name)

    def ended(self, exchange: Exchange) -> None:
        end = time.monotonic()
        offset = time.time() - end

        def at(moment: float) -> int:
            """Nanoseconds since 1970 of a moment on the clock of `time.monotonic`."""
            return int((moment + offset) * 1e9)

        outcome = exchange.outcome
        parent = self._extract(exchange.headers)
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            parent,
            kind=self._server,
            start_time=at(exchange.arrived),
            attributes={
                "http.request.method": exchange.method,
                "http.route": exchange.route,
                "http.response.status_code": exchange.status,
                "interlingua.request_id": exchange.request_id,
            },
        )
        if outcome is not None and span.is_recording():
            span.set_attribute("interlingua.outcome", outcome.kind)
            if outcome.prepared is not None:
                span.set_attribute("gen_ai.usage.input_tokens", len(outcome.prepared.prompt_ids))
                span.set_attribute("gen_ai.request.max_tokens", outcome.prepared.max_new_tokens)
            if outcome.summary is not None:
                span.set_attribute("gen_ai.usage.output_tokens", outcome.summary.generated_tokens)
                span.set_attribute("gen_ai.response.finish_reasons", (outcome.summary.finish_reason.value,))
            timing = outcome.timing
            inside = self._inside(span, parent)
            # What did not come ends where the request did.
            moments = (timing.arrived, timing.queued, timing.started, timing.first_token)
            for name, begin, finish in zip(_PHASES, moments, (*moments[1:], 0.0), strict=True):
                if begin:
                    self._phase(name, inside, at(begin), at(finish or timing.finished))
        elif exchange.failure:
            span.set_attribute("interlingua.outcome", exchange.failure)
        if exchange.caller_id:
            span.set_attribute("interlingua.caller_request_id", exchange.caller_id)
        if exchange.status >= 500 or not exchange.status:
            span.set_status(self._error)
        span.end(at(end))

    def _phase(self, name: str, inside: Context, begin: int, end: int) -> None:
        self._tracer.start_span(name, inside, start_time=begin).end(end)

    def close(self) -> None:
        """Sends what is left. Waits for the collector, for some seconds at most."""
        self._provider.shutdown()


_PHASES = ("prepare", "queue", "prefill", "decode")
