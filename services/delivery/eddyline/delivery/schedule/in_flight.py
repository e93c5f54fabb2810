"""In-flight bound: limits how many subscriptions may be sending at once (`WORKERS`).

A subscription counts from the dispatcher's turn until gRPC has accepted its frames. Frames that the own wire sends to many
at once count until the end of that turn of the event loop, when they are written. A subscription is classified as a
slow reader when 16 sends that started later have finished before it, or when no send at all finishes for `STILL_S`. The
duration of its own send does not make a reader slow, because on a busy process every send takes long, and sends finish
about in the order in which they began; after `LATE_S` a send only stops counting. A slow reader's stream does not count,
nor at its next turns until one of them is not overtaken, so it cannot block other topics, however many it watches.
I1: at most `WORKERS` count when a turn begins; a turn serves all that wait for its topic, however many. I2: no turn
    waits longer than `LATE_S` for sends that began before.
Rejected: a time limit for each send. A process that was stopped for that time then classified all its readers as slow,
and with everything sending at once they all were.
Threading: none of its own; one caller.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

WORKERS: Final = 8
"""Unbounded in gRPC, which leaves no choice when the process is busy.

A send takes about 0.1 ms of the event loop and as long in gRPC's own thread: two or three at once keep both busy, and 8
are 1 ms of work ahead of the next topic. A band with fewer subscriptions than its share of these cannot use all of its
share.
"""
OVERTAKEN: Final = 2 * WORKERS
"""Sends that began later and are complete, from which on a reader is slow."""
STILL_S: Final = 0.010
"""If no send at all completed for this long, those in flight since then are slow: the process waits for no other cause."""
LATE_S: Final = 0.050
"""No subscription counts longer than this: a turn of 500 subscriptions takes as long."""
MOMENT_S: Final = 1e-6
"""A remaining wait that counts as none: a timer may fire slightly before it is due."""


class WatchReader:
    """The reader of a stream as the dispatcher knows it: one object for all of the stream's subscriptions."""

    __slots__ = ("call", "is_idle", "sent_bytes", "sent_count", "sent_s", "slow")

    def __init__(self, *, call: object | None = None, now_s: float = 0.0) -> None:
        self.call = call
        """Its call, for a frame that is sent to many at once; None = frames go through its task alone."""
        self.is_idle = False
        """True = its task waits, has sent caught_up and all that was due, so a frame may be sent past it."""
        self.slow = False
        self.sent_s = now_s
        """Time of the last frame given to its transport; at first of its opening."""
        self.sent_count = self.sent_bytes = 0


class PendingRead:
    """One subscription as the dispatcher knows it: its wake-up callback, its seq, and the reader of its stream."""

    __slots__ = ("advance", "began_s", "is_closed", "overtaken_at", "reader", "seq", "view", "wake")

    def __init__(self, wake: Callable[[], None], advance: Callable[[int, bool, bool], bool] | None = None) -> None:
        self.wake = wake
        self.advance = advance
        """Moves the subscription past a frame that was sent past its task, or is hidden from it: new seq, whether it ends
        an append, whether it is hidden. False = it is not moved: its reader must be told the end of an append."""
        self.reader = WatchReader()
        self.seq = 0
        self.view: Hashable | None = None
        """The view of the frame it waits for; None = it takes its next frame itself."""
        self.began_s: float | None = None
        self.overtaken_at = 0
        self.is_closed = False


class InFlight:
    """The subscriptions that count now."""

    def __init__(self) -> None:
        self._counted: OrderedDict[PendingRead, None] = OrderedDict()
        self._done = 0
        """Counted sends that are complete, since the start."""
        self._sent_s = 0.0
        self._passing_count = 0
        """Sends of this turn of the loop, to many at once, which end with it."""

    def __len__(self) -> int:
        return len(self._counted)

    def begin(self, waiter: PendingRead, now_s: float) -> None:
        """Count a subscription that a turn serves."""
        if waiter.is_closed:
            return
        self.forget(waiter)
        waiter.began_s = now_s
        waiter.overtaken_at = self._done + len(self._counted) + OVERTAKEN
        if not waiter.reader.slow:
            self._counted[waiter] = None

    def begin_passing(self, count: int) -> None:
        """Count sends to many at once, which the transports have taken, and write at the end of this turn of the loop."""
        self._passing_count += count

    def end_passing(self, now_s: float) -> None:
        """End the count of the sends to many at once: they are written."""
        self._done += self._passing_count
        self._passing_count = 0
        self._sent_s = now_s

    def end(self, waiter: PendingRead, now_s: float) -> bool:
        """End the count of a subscription whose frames are sent; True = it counted until now."""
        if waiter.began_s is None:
            return False
        self._sent_s = now_s
        waiter.reader.slow = self._done >= waiter.overtaken_at
        counted = self.forget(waiter)
        self._done += counted
        return counted

    def forget(self, waiter: PendingRead) -> bool:
        """End the count of a subscription that closes; True = it counted until now."""
        waiter.began_s = None
        if waiter not in self._counted:
            return False
        del self._counted[waiter]
        return True

    def wait_s(self, now_s: float) -> float:
        """Return 0 if a turn may begin, else the time after which one may, even if nothing is sent until then."""
        while len(self._counted) + self._passing_count >= WORKERS:
            if not self._counted:
                return STILL_S  # they end much sooner, with this turn of the loop
            oldest = next(iter(self._counted))
            assert oldest.began_s is not None, "what counts has begun"
            reader = oldest.reader
            reader.slow = reader.slow or self._done >= oldest.overtaken_at
            if not reader.slow:
                still_s = max(self._sent_s, oldest.began_s) + STILL_S - now_s
                late_s = oldest.began_s + LATE_S - now_s
                if min(still_s, late_s) > MOMENT_S:
                    return min(still_s, late_s)
                reader.slow = late_s > MOMENT_S
            del self._counted[oldest]
        return 0.0
