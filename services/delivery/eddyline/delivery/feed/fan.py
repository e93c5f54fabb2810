"""Fan: sends a small frame that a turn has opened to all subscriptions that wait for it, past the tasks of their streams.

A stream's task would take the frame a turn of the event loop later, through four coroutines; here a frame is made once
for all streams with the same view, and each stream costs a few attributes and a write. The others keep the way of their
task, with the same ring, cursors and bounds.
I1: a subscription gets the frame here only if it waits for exactly this one, its stream's task waits and owes nothing (no
    heartbeat, caught_up or going_away), and its transport takes all of it now: so nothing is overtaken, and nothing waits
    that this module knows of. I2: its cursor, counters and view of appends are then those of a frame sent by its task.
Not here: frames above `FAN_BYTES_MAX`, gaps, frames of traced commits (each send has a span), and wires without such a way.
Threading: event loop only; nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import MESSAGE_BYTES_DEFAULT, Gap
from eddyline.delivery.feed.encode import TopicView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.feed.ring import Ring, RingFrame
    from eddyline.delivery.schedule.in_flight import PendingRead
    from eddyline.delivery.stats import DeliveryStats

FAN_BYTES_MAX: Final = (16 << 10) - 5
"""Of a frame sent to many at once: with gRPC's prefix one DATA frame of HTTP/2's default size (RFC 9113: 16 KiB). A larger
one costs more to write than its task does."""

assert FAN_BYTES_MAX <= MESSAGE_BYTES_DEFAULT, "no stream's limit splits such a frame"


def send_to_none(calls: Sequence[object], _message: bytes) -> Sequence[object]:
    """Return all calls: a wire that has no way to many at once."""
    return calls


class Fan:
    """Sends frames to many. `send_to_all` sends a message to calls, and returns those to which nothing was sent."""

    def __init__(self, *, clock: Clock, stats: DeliveryStats) -> None:
        self.send_to_all: Callable[[Sequence[object], bytes], Sequence[object]] = send_to_none
        self._clock = clock
        self._stats = stats

    def send(
        self, ring: Ring, frame: RingFrame, waiters: Iterable[PendingRead], sent: list[PendingRead]
    ) -> list[PendingRead]:
        """Send an open frame of `ring` to the waiters that can take it now; add them to `sent`, return the others."""
        if isinstance(frame.item, Gap) or frame.traces:
            return list(waiters)
        others: list[PendingRead] = []
        groups: dict[object, list[PendingRead]] = {}
        view: object = None
        group: list[PendingRead] = []
        for waiter in waiters:
            reader = waiter.reader
            if not reader.is_idle or waiter.view is None or waiter.seq != frame.after_seq or waiter.is_closed:
                others.append(waiter)
                continue
            if waiter.view is not view:  # `view_of` returns one object for equal views
                view = waiter.view
                group = groups.setdefault(view, [])
            group.append(waiter)
        for view, group in groups.items():
            assert isinstance(view, TopicView)
            others += self._send(ring, frame, view, group, sent)
        return others

    def _send(
        self, ring: Ring, frame: RingFrame, view: TopicView, group: list[PendingRead], sent: list[PendingRead]
    ) -> list[PendingRead]:
        """Send the frame to the waiters of one view; return those that have not got it."""
        data, records = ring.encoded(frame, view)
        seq, batch_end = frame.next_after_seq, frame.batch_end
        if not data:
            return self._hide(seq, batch_end, group, sent)
        if len(data) > FAN_BYTES_MAX:
            return group
        behind = self.send_to_all([waiter.reader.call for waiter in group], data)
        others: list[PendingRead] = []
        if behind:
            calls = set(behind)
            others = [waiter for waiter in group if waiter.reader.call in calls]
            group = [waiter for waiter in group if waiter.reader.call not in calls]
        size, now_s = len(data), self._clock.monotonic_s()
        for waiter in group:
            assert waiter.advance is not None, "what has a view can be moved"
            waiter.advance(seq, batch_end, False)
            waiter.seq = seq
            reader = waiter.reader
            reader.slow = False
            reader.sent_s = now_s
            reader.sent_count += records
            reader.sent_bytes += size
        self._stats.delivered_count += records * len(group)
        self._stats.delivered_bytes += size * len(group)
        sent += group
        return others

    def _hide(self, seq: int, batch_end: bool, group: list[PendingRead], sent: list[PendingRead]) -> list[PendingRead]:
        """Move past a frame of which the view hides all; return the waiters whose readers must be told its end."""
        others: list[PendingRead] = []
        for waiter in group:
            assert waiter.advance is not None, "what has a view can be moved"
            if waiter.advance(seq, batch_end, True):
                waiter.seq = seq
                sent.append(waiter)
            else:
                others.append(waiter)
        return others
