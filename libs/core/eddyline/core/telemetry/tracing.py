"""Traces: which records are followed from where they enter to the subscriber, and the spans of what happens to them.

A record is sampled where it enters: one whose `traceparent` says so always, one without by chance, at the ratio that is set;
at most `SAMPLED_MAX` a second either way. From there on its context travels, and whoever handles the batch, commit or frame
that it is in makes one span: never one a record. Rejected: the SDK's tracer and `BatchSpanProcessor`, whose contexts
are found by context variables, whose clock is not ours, and which do not count what they drop.
I1: with a ratio of 0 `is_on` is False, nothing else is looked at, and nothing is made. I2: ended spans that wait to be
exported are at most `SPANS_MAX`; what comes above is dropped, and counted.
Threading: event loop. Who takes the spans out is `eddyline.core.telemetry.trace_export`.
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
"""A second, at one process. Each costs some six spans, 30 us and 300 B in a collector: less than a thousandth of a core."""
SPANS_MAX: Final = 2_048
"""Elsewhere likewise. A megabyte; at most half a minute of what is sampled, so a collector may restart."""
LINKS_MAX: Final = 16
"""Contexts that a span names beside its parent: of other sampled records in one batch."""
NONE: Final[Attributes] = MappingProxyType({})
"""No attributes."""

_NS_A_MS: Final = 1_000_000
_NS_A_S: Final = 1_000_000_000
_DRIFT_NS: Final = 5 * _NS_A_MS
"""How far the wall clock may be from where it was seen last, before it is taken as new: it is told in milliseconds."""


class SpanEvent(NamedTuple):
    """Something within a span."""

    name: str
    at_ns: int


class EndedSpan(NamedTuple):
    """What happened once, between two moments of the wall clock. `error` = a reason of the contract; "" = it went well."""

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
    """A span that has begun. One that nobody ends is not exported."""

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
        """What it tells those that it calls."""
        return self.context.header()

    def event(self, name: str) -> None:
        """Something is reached."""
        self._events.append(SpanEvent(name, self._tracer.now_ns()))

    def link(self, other: TraceContext) -> None:
        """It is of another trace's record too. Beyond `LINKS_MAX` it is not said."""
        if len(self._links) < LINKS_MAX:
            self._links.append(other)

    def end_and_start(self, name: str) -> OpenSpan:
        """End it, and begin what comes of it."""
        self.end()
        return self._tracer.start_span(name, self.context)

    def end(self, error: str = "") -> None:
        """It is over; a second time says nothing more."""
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
    """One process's. `ratio` 0 to 1."""

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
        """The first span here of a record that has come in; None = it is not sampled. `traceparent` = what it came with."""
        if not self.is_on:
            return None
        parent = self.sample(traceparent)
        return None if parent is None else self.start_span(name, parent, attributes)

    def sample(self, traceparent: str = "") -> TraceContext | None:
        """Whether a record that has come in is followed: what it comes from, of span 0 where a trace begins with it."""
        given = parse_traceparent(traceparent) if traceparent else None
        if given is None:
            if self._rng.random() >= self._ratio or not self._may_sample():
                return None
            return TraceContext(self._rng.getrandbits(128) or 1, 0)
        return given if given.is_sampled and self._may_sample() else None

    def start_child_span(self, name: str, traceparent: str, attributes: Attributes = NONE) -> OpenSpan | None:
        """A span of a record that was sampled elsewhere; None = it was not."""
        parent = parse_traceparent(traceparent) if self.is_on and traceparent else None
        return self.start_span(name, parent, attributes) if parent is not None and parent.is_sampled else None

    def start_span(self, name: str, parent: TraceContext, attributes: Attributes = NONE) -> OpenSpan:
        """A span within a trace."""
        context = TraceContext(parent.trace_id, self._rng.getrandbits(64) or 1)
        return OpenSpan(self, name, context, parent if parent.span_id else None, attributes)

    def on_span_end(self, span: EndedSpan) -> None:
        """A span waits to be exported, or is dropped for want of room."""
        if len(self._spans) >= SPANS_MAX:
            self.dropped_count += 1
        else:
            self._spans.append(span)

    def drain(self, limit: int = SPANS_MAX) -> list[EndedSpan]:
        """The oldest spans that wait, at most `limit`; they wait no more."""
        return [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]

    def now_ns(self) -> int:
        """The wall clock, as fine as the monotonic one."""
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
"""Where nothing is traced."""
