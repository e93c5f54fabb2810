"""Traces of a frame: spans of its traced commits, from the store's answer to the subscribers' transports.

`delivery.receive` begins when a commit arrives from the store, and ends when its frame has its turn, or at once if the
topic has no listeners; `delivery.send` begins when a subscriber takes the frame, and ends when its transport has
accepted it. Records that a subscriber reads from the log by its cursor are not traced.
I1: at most `SENDS_MAX` spans of subscribers are made per commit, for the first ones.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import names as telemetry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.store_link.protocol import FollowItem
    from eddyline.core.telemetry.tracing import OpenSpan, Tracer

SENDS_MAX: Final = 16
"""Up to ten thousand subscribers get one record: a few spans are enough to measure."""


class CommitTrace:
    """Trace of one commit in a ring's frame. `seq` = the commit's last."""

    __slots__ = ("_sends_left", "_tracer", "received", "seq")

    def __init__(self, tracer: Tracer, received: OpenSpan, seq: int) -> None:
        self._tracer = tracer
        self._sends_left = SENDS_MAX
        self.received = received
        self.seq = seq

    def send(self) -> OpenSpan | None:
        """Start the span of a subscriber that takes the frame; None = the commit has enough of them."""
        if not self._sends_left:
            return None
        self._sends_left -= 1
        return self._tracer.start_span(telemetry.SPAN_DELIVERY_SEND, self.received.context)


def commit_traces(tracer: Tracer, event: FollowItem, topic: str) -> tuple[CommitTrace, ...]:
    """Start the receive spans of an item, one for each commit that the store marks as traced."""
    traces: list[CommitTrace] = []
    for traced in event.traces:
        received = tracer.start_child_span(
            telemetry.SPAN_DELIVERY_RECEIVE,
            traced.traceparent,
            {telemetry.ATTRIBUTE_TOPIC: topic, telemetry.ATTRIBUTE_SEQ: traced.seq},
        )
        if received is not None:
            traces.append(CommitTrace(tracer, received, traced.seq))
    return tuple(traces)


def start_send_spans(traces: Iterable[CommitTrace]) -> tuple[OpenSpan, ...]:
    """Start the spans of one subscriber that takes a frame."""
    return tuple(span for trace in traces if (span := trace.send()) is not None)


def end_receive_spans(traces: Iterable[CommitTrace]) -> None:
    """End the receive spans: their frame is open to subscribers."""
    for trace in traces:
        trace.received.end()


def traceparent(traces: tuple[CommitTrace, ...]) -> str:
    """Return the trace that a frame carries to its subscribers."""
    return traces[0].received.traceparent if traces else ""
