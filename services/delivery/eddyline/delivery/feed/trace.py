"""A frame's traces: of the commits in it that are traced, from the store's answer to the transports of subscribers.

`delivery.receive` begins when a commit comes from the store, and ends when its frame has its turn, or at once where nobody
listens; `delivery.send` begins when a subscriber takes the frame, and ends when its transport has it. Who reads the log by a
cursor of its own gets the records untraced.
I1: of one commit at most `SENDS_MAX` spans tell of subscribers, the first ones; of the others nothing is made.
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
"""Ten thousand subscribers get what one record was made into: a few say how long that took."""


class CommitTrace:
    """One commit's, in a ring's frame. `seq` = the commit's last."""

    __slots__ = ("_sends_left", "_tracer", "received", "seq")

    def __init__(self, tracer: Tracer, received: OpenSpan, seq: int) -> None:
        self._tracer = tracer
        self._sends_left = SENDS_MAX
        self.received = received
        self.seq = seq

    def send(self) -> OpenSpan | None:
        """A subscriber takes the frame; None = enough of them are told of."""
        if not self._sends_left:
            return None
        self._sends_left -= 1
        return self._tracer.start_span(telemetry.SPAN_DELIVERY_SEND, self.received.context)


def commit_traces(tracer: Tracer, event: FollowItem, topic: str) -> tuple[CommitTrace, ...]:
    """The traces of an item that has come: of each commit that the store says is traced."""
    made: list[CommitTrace] = []
    for traced in event.traces:
        received = tracer.start_child_span(
            telemetry.SPAN_DELIVERY_RECEIVE,
            traced.traceparent,
            {telemetry.ATTRIBUTE_TOPIC: topic, telemetry.ATTRIBUTE_SEQ: traced.seq},
        )
        if received is not None:
            made.append(CommitTrace(tracer, received, traced.seq))
    return tuple(made)


def sends(traces: Iterable[CommitTrace]) -> tuple[OpenSpan, ...]:
    """The spans of one subscriber that takes a frame."""
    return tuple(span for trace in traces if (span := trace.send()) is not None)


def opened(traces: Iterable[CommitTrace]) -> None:
    """Their frame is open to subscribers."""
    for trace in traces:
        trace.received.end()


def traceparent(traces: tuple[CommitTrace, ...]) -> str:
    """What a frame tells its subscribers."""
    return traces[0].received.traceparent if traces else ""
