"""Metrics in Prometheus's text format, by `prometheus_client`; blocking, for a thread of its own.

Traps of the library: a counter's family is named without `_total`, which the sample has again; its default registry has
metrics of the process and the interpreter, so it is not used; a family with labels and no series is only a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.telemetry.metrics import MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from eddyline.core.telemetry.metrics import Distribution, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(metrics: Sequence[Metric]) -> bytes:
    """Return the text of a scrape."""
    # Imported here, so that a role without an endpoint does not load it.
    from prometheus_client.exposition import generate_latest

    return generate_latest(_MetricCollector(metrics))


class _MetricCollector:
    """A registry for the library, with one list of metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """Yield the metric families, in order."""
        for metric in self._metrics:
            yield _family(metric)


def _family(metric: Metric) -> Family:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    match metric.kind:
        case MetricKind.COUNTER:
            counted = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for point in metric.points:
                counted.add_metric(point.labels, point.value)
            return counted
        case MetricKind.GAUGE:
            now = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for point in metric.points:
                now.add_metric(point.labels, float(point.value))
            return now
        case MetricKind.HISTOGRAM:
            distribution = metric.distribution
            assert distribution is not None
            observed = HistogramMetricFamily(metric.name, metric.meaning)
            observed.add_metric((), list(_buckets(distribution)), distribution.total)
            return observed


def _buckets(distribution: Distribution) -> Iterable[tuple[str, float]]:
    """Yield cumulative counts: for each bound the number of observations up to it."""
    below = 0
    for bound, count in zip((*distribution.bounds, float("inf")), distribution.counts, strict=True):
        below += count
        yield "+Inf" if bound == float("inf") else str(float(bound)), below
