"""Metrics as values: the measurements of a role at one moment, ready for any export.

A role makes a list of `Metric` from its counters for each export. Every metric is in the list from the start, at zero, so
counting costs a hot path only the addition to a counter. Only distributions are observed as they happen, in a
`Histogram`: once a group or a batch, never once a record.

Rejected: the OpenTelemetry SDK's instruments. A `record()` takes 5 us, here 0.3; a histogram without observations is not
exported at all; and callbacks run on the reader's thread, while all counters here belong to the event loop.
Threading: event loop; a list of metrics is immutable and may go to any thread.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

SECONDS_BOUNDS: Final = (
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""prometheus_client: 5 ms to 10 s. A group commit takes 0.2 ms on a fast disk, seconds on a stalled one: 15 bounds a
series."""
COUNT_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class MetricKind(Enum):
    """Kind of a metric: a count that only grows, a current value, or a distribution since the start."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricPoint(NamedTuple):
    """Value of one series; `labels` in the order of the metric's labels."""

    value: float
    labels: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """A histogram at one moment. `counts` has one bucket up to each bound (inclusive), and a last one above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def observation_count(self) -> int:
        """Return the number of all observations."""
        return sum(self.counts)


class Metric(NamedTuple):
    """One metric with all its series. A histogram has a `distribution` and no points."""

    name: str
    kind: MetricKind
    meaning: str
    points: tuple[MetricPoint, ...] = ()
    labels: tuple[str, ...] = ()
    distribution: Distribution | None = None


class Histogram:
    """Counts observations in buckets. `bounds` ascend."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def now(self) -> Distribution:
        """Return the distribution so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


def counter(name: str, meaning: str, value: float) -> Metric:
    """Return a count without labels."""
    return Metric(name, MetricKind.COUNTER, meaning, (MetricPoint(value),))


def gauge(name: str, meaning: str, value: float) -> Metric:
    """Return a value without labels; a bool is 0 or 1."""
    return Metric(name, MetricKind.GAUGE, meaning, (MetricPoint(value),))


def counters(name: str, meaning: str, labels: tuple[str, ...], points: Iterable[MetricPoint]) -> Metric:
    """Return counts by label."""
    return Metric(name, MetricKind.COUNTER, meaning, tuple(points), labels)


def gauges(name: str, meaning: str, labels: tuple[str, ...], points: Iterable[MetricPoint]) -> Metric:
    """Return values by label."""
    return Metric(name, MetricKind.GAUGE, meaning, tuple(points), labels)


def histogram(name: str, meaning: str, observed: Histogram) -> Metric:
    """Return a distribution as a metric."""
    return Metric(name, MetricKind.HISTOGRAM, meaning, distribution=observed.now())


def one_of(name: str, meaning: str, label: str, names: Iterable[str], current: str) -> Metric:
    """Return a state as one series a name: 1 for the current state, 0 for all others."""
    return gauges(name, meaning, (label,), (MetricPoint(each == current, (each,)) for each in names))
