"""Metrics pushed to an OTLP collector over gRPC, by OpenTelemetry's exporter; blocking, for a thread of its own.

Names, kinds and labels are those of the text format, all cumulative since the start. `http://` is without TLS, `https://`
with it; headers, certificates and compression are the exporter's own variables (`OTEL_EXPORTER_OTLP_…`). A failed export
is not repeated: the next one has all its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from eddyline.core.telemetry.metrics import MetricKind
from eddyline.core.telemetry.otlp import EXPORT_S, SCOPE, export_error_capture, otlp_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics.export import Gauge, MetricsData, Sum
    from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric

    from eddyline.core.telemetry.metrics import Distribution, Metric


class OtlpExporter:
    """Exporter of one role to one collector. Its maker closes it."""

    def __init__(self, url: str, *, role: str, version: str, instance: str) -> None:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        self._resource = otlp_resource(role, version=version, instance=instance)
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=EXPORT_S)
        self._failure = export_error_capture()

    def export(self, metrics: Sequence[Metric], *, start_ns: int, now_ns: int) -> str:
        """Send all metrics; return why that failed, or "". Takes at most `EXPORT_S`, less once it is closed."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        result = self._exporter.export(self._data(metrics, start_ns, now_ns))
        return "" if result is MetricExportResult.SUCCESS else self._failure.take_reason()

    def close(self) -> None:
        """Break off an export in flight. Any thread."""
        self._exporter.shutdown()

    def _data(self, metrics: Sequence[Metric], start_ns: int, now_ns: int) -> MetricsData:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        exported = [_metric(metric, start_ns, now_ns) for metric in metrics]
        scope = ScopeMetrics(scope=InstrumentationScope(SCOPE), metrics=exported, schema_url="")
        return MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])


def _metric(metric: Metric, start_ns: int, now_ns: int) -> OtelMetric:
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric

    if metric.distribution is not None:
        data: OtelHistogram | Sum | Gauge = _histogram(metric.distribution, start_ns, now_ns)
    else:
        data = _numbers(metric, start_ns, now_ns)
    # No unit: it is in the name, and a collector would append it again.
    return OtelMetric(name=metric.name, description=metric.meaning, unit="", data=data)


def _numbers(metric: Metric, start_ns: int, now_ns: int) -> Sum | Gauge:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, NumberDataPoint, Sum

    points = [
        NumberDataPoint(
            attributes=dict(zip(metric.labels, point.labels, strict=True)),
            start_time_unix_nano=start_ns,
            time_unix_nano=now_ns,
            value=_number(point.value),
        )
        for point in metric.points
    ]
    if metric.kind is MetricKind.COUNTER:
        return Sum(points, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _number(value: float) -> int | float:
    """Return an int or float for protobuf, which refuses bools and numpy's integers."""
    return int(value) if isinstance(value, SupportsIndex) else float(value)


def _histogram(distribution: Distribution, start_ns: int, now_ns: int) -> OtelHistogram:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, HistogramDataPoint
    from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram

    point = HistogramDataPoint(
        attributes={},
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=distribution.observation_count,
        sum=float(distribution.total),
        bucket_counts=distribution.counts,
        explicit_bounds=distribution.bounds,
        min=None,  # type: ignore[arg-type]  # unknown, and optional on the wire
        max=None,  # type: ignore[arg-type]
    )
    return OtelHistogram([point], aggregation_temporality=AggregationTemporality.CUMULATIVE)
