"""Metrics in Prometheus's text form, by the library that defines it; blocking, for a thread of its own.

The library's traps: a counter's family is named without `_total`, which comes back with the sample; its default registry has
families of the process and the interpreter, so there is none here; a family with labels and no series is a header alone.
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
    """The text of a scrape."""
    # Imported here: a role that exports nothing need not pay for it.
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Collected(metrics))


class _Collected:
    """What the library takes for a registry."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        """The families, in their order."""
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
    """Counts up to each bound, as the form wants them: each with all below it."""
    below = 0
    for bound, count in zip((*distribution.bounds, float("inf")), distribution.counts, strict=True):
        below += count
        yield "+Inf" if bound == float("inf") else str(float(bound)), below
