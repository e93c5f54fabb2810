"""Traces: sampling of records where they enter, and the spans of their way to the subscriber.

A record is sampled where it enters: always if its `traceparent` has the flag; without a `traceparent` by chance, at the
ratio that is set; at most `SAMPLED_MAX` a second either way. From there its context goes with it, and each step that
handles its batch, commit or frame makes one span: never one a record. Rejected: the SDK's tracer and
`BatchSpanProcessor`, which find contexts by context variables, use their own clock, and do not count dropped spans.
I1: with a ratio of 0 `is_on` is False, and the tracer reads and makes nothing. I2: at most `SPANS_MAX` ended spans wait for
export; further ones are dropped and counted.
Threading: event loop. `eddyline.core.telemetry.trace_export` exports the spans.
"""

from __future__ import annotations

from collections import deque
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.runtime.clock import SystemClock
from eddyline.core.telemetry.trace_context import TraceContext, parse_traceparent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.runtime.clock import Clock

    Value = str | int | bool
    Attributes = Mapping[str, Value]

SAMPLED_MAX: Final = 20
"""Sampled records a second, at one process. Each costs six spans, 30 us and 300 B in a collector: below 0.1 % of a core."""
SPANS_MAX: Final = 2_048
"""As in OpenTelemetry. 1 MB; half a minute of spans at the highest rate, so a collector may restart."""
LINKS_MAX: Final = 16
"""Contexts of other sampled records in the same batch that a span links to."""
NONE: Final[Attributes] = MappingProxyType({})
"""An empty set of attributes."""

_NS_A_MS: Final = 1_000_000
_NS_A_S: Final = 1_000_000_000
_DRIFT_NS: Final = 5 * _NS_A_MS
"""Drift between wall and monotonic clock above which the offset is measured again; the wall clock has milliseconds."""


class SpanEvent(NamedTuple):
    """An event within a span."""

    name: str
    at_ns: int


class EndedSpan(NamedTuple):
    """A completed span, in wall clock time. `error` = a reason of the contract; "" = success."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[TraceContext, ...] = ()
    error: str = ""


class OpenSpan:
    """A span that has started. It is exported only once `end` was called."""

    __slots__ = ("_attributes", "_events", "_is_over", "_links", "_name", "_parent", "_start_ns", "_tracer", "context")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: TraceContext,
        parent: TraceContext | None,
        attributes: Attributes,
    ) -> None:
        self.context = context
        self._tracer = tracer
        self._name = name
        self._parent = parent
        self._start_ns = tracer.now_ns()
        self._attributes = attributes
        self._events: list[SpanEvent] = []
        self._links: list[TraceContext] = []
        self._is_over = False

    @property
    def traceparent(self) -> str:
        """Return the header for calls made within the span."""
        return self.context.header()

    def event(self, name: str) -> None:
        """Add an event at the current time."""
        self._events.append(SpanEvent(name, self._tracer.now_ns()))

    def link(self, other: TraceContext) -> None:
        """Link the span of another trace's record; links beyond `LINKS_MAX` are dropped."""
        if len(self._links) < LINKS_MAX:
            self._links.append(other)

    def end_and_start(self, name: str) -> OpenSpan:
        """End this span, and start a child of it."""
        self.end()
        return self._tracer.start_span(name, self.context)

    def end(self, error: str = "") -> None:
        """End the span; only the first call has an effect."""
        if self._is_over:
            return
        self._is_over = True
        self._tracer.on_span_end(
            EndedSpan(
                self._name,
                self.context,
                self._parent,
                self._start_ns,
                max(self._start_ns, self._tracer.now_ns()),
                self._attributes,
                tuple(self._events),
                tuple(self._links),
                error,
            )
        )


class Tracer:
    """Tracer of one process. `ratio` 0 to 1."""

    def __init__(self, ratio: float, *, clock: Clock, rng: Random) -> None:
        self.is_on = ratio > 0
        self._ratio = ratio
        self._clock = clock
        self._rng = rng
        self._offset_ns = 0
        self._allowed = float(SAMPLED_MAX)
        self._allowed_s = clock.monotonic_s()
        self._spans: deque[EndedSpan] = deque()
        self.exported_count = 0
        self.dropped_count = 0

    def start_root_span(self, name: str, traceparent: str = "", attributes: Attributes = NONE) -> OpenSpan | None:
        """Start the first span of an incoming record, which came with `traceparent`; None = it is not sampled."""
        if not self.is_on:
            return None
        parent = self.sample(traceparent)
        return None if parent is None else self.start_span(name, parent, attributes)

    def sample(self, traceparent: str = "") -> TraceContext | None:
        """Decide whether an incoming record is sampled: return its parent, with span id 0 for a new trace; None = it is
        not."""
        parent = parse_traceparent(traceparent) if traceparent else None
        if parent is None:
            if self._rng.random() >= self._ratio or not self._may_sample():
                return None
            return TraceContext(self._rng.getrandbits(128) or 1, 0)
        return parent if parent.is_sampled and self._may_sample() else None

    def start_child_span(self, name: str, traceparent: str, attributes: Attributes = NONE) -> OpenSpan | None:
        """Start a span of a record that another process sampled; None = it did not."""
        parent = parse_traceparent(traceparent) if self.is_on and traceparent else None
        return self.start_span(name, parent, attributes) if parent is not None and parent.is_sampled else None

    def start_span(self, name: str, parent: TraceContext, attributes: Attributes = NONE) -> OpenSpan:
        """Start a span with the given parent."""
        context = TraceContext(parent.trace_id, self._rng.getrandbits(64) or 1)
        return OpenSpan(self, name, context, parent if parent.span_id else None, attributes)

    def on_span_end(self, span: EndedSpan) -> None:
        """Queue a completed span for export, or drop it if the queue is full."""
        if len(self._spans) >= SPANS_MAX:
            self.dropped_count += 1
        else:
            self._spans.append(span)

    def drain(self, limit: int = SPANS_MAX) -> list[EndedSpan]:
        """Remove the oldest completed spans, at most `limit`, and return them."""
        return [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]

    def now_ns(self) -> int:
        """Return wall clock time with the resolution of the monotonic clock."""
        monotonic_ns = int(self._clock.monotonic_s() * _NS_A_S)
        wall_ns = self._clock.now_ms() * _NS_A_MS
        if not 0 <= monotonic_ns + self._offset_ns - wall_ns <= _DRIFT_NS:
            self._offset_ns = wall_ns - monotonic_ns
        return monotonic_ns + self._offset_ns

    def _may_sample(self) -> bool:
        now_s = self._clock.monotonic_s()
        self._allowed = min(SAMPLED_MAX, self._allowed + (now_s - self._allowed_s) * SAMPLED_MAX)
        self._allowed_s = now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True


NOOP_TRACER: Final = Tracer(0.0, clock=SystemClock(), rng=Random(0))
"""A tracer that samples nothing."""
