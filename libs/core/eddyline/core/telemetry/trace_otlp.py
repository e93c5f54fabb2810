"""Spans pushed to an OTLP collector over gRPC, by OpenTelemetry's exporter; blocking, for a thread of its own.

URL and variables are those of metrics (`eddyline.core.telemetry.metrics_otlp`). Attributes and reasons are exported
unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.telemetry.names import SPAN_KINDS
from eddyline.core.telemetry.otlp import EXPORT_S, SCOPE, export_error_capture, otlp_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from eddyline.core.telemetry.trace_context import TraceContext
    from eddyline.core.telemetry.tracing import EndedSpan


class OtlpSpanExporter:
    """Exporter of one role to one collector. Its maker closes it."""

    def __init__(self, url: str, *, role: str, version: str, instance: str) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        self._resource = otlp_resource(role, version=version, instance=instance)
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
        self._failure = export_error_capture()

    def export(self, spans: Sequence[EndedSpan]) -> str:
        """Send all spans; return why that failed, or "". Takes at most `EXPORT_S`, less once it is closed."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([_span(span, self._resource) for span in spans])
        return "" if result is SpanExportResult.SUCCESS else self._failure.take_reason()

    def close(self) -> None:
        """Break off an export in flight. Any thread."""
        self._exporter.shutdown()


def _span(span: EndedSpan, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    return ReadableSpan(
        span.name,
        context=_context(span.context),
        parent=_context(span.parent) if span.parent is not None else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, timestamp=event.at_ns) for event in span.events],
        links=[Link(_context(linked)) for linked in span.links],
        kind=SpanKind[SPAN_KINDS.get(span.name, "INTERNAL")],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope(SCOPE),
    )


def _context(context: TraceContext) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(context.trace_id, context.span_id, is_remote=False, trace_flags=TraceFlags(context.is_sampled))
