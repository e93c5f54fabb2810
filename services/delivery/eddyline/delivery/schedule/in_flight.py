"""Under way: what turns have set going and is not sent yet, so that the next turn waits while there is enough of it.

One subscription served by a turn counts from then until its frames are with the transport. Whether one that takes long has a
slow reader or a busy process is not told by time: on a busy process sends end about in the order in which they began. So
slow is who was overtaken by many that began later. Its stream counts no more, nor at its next turns until one of them is not
overtaken: a slow reader delays nobody, however many topics it watches.
I1: at most `WORKERS` counted when a turn begins; a turn serves all that wait for its topic, however many. I2: no turn waits
longer than `LATE_S` for what began before.
Rejected: slow is who takes longer than a time. A process that was stopped for that time then took all its readers for slow,
and with everything going at once they all were.
Threading: none of its own; one caller.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS: Final = 8
"""Elsewhere unbounded, which leaves nothing to choose from when the process is busy. A send takes about 0.1 ms of the loop
and as long in gRPC's own thread: two or three at once keep both busy, and 8 are 1 ms of work ahead of whoever is next.
A band with fewer subscriptions than its share of these cannot use all of its share."""
OVERTAKEN: Final = 2 * WORKERS
"""Sends that began later and are done, of one that is slow."""
STILL_S: Final = 0.010
"""Where nothing at all was sent for so long, whoever is under way since then is slow: the process waits for nobody else."""
LATE_S: Final = 0.050
"""No longer does anything count: a turn of 500 subscriptions takes so long."""
MOMENT_S: Final = 1e-6
"""What is left of a wait and is none: a timer may fire a hair before it is due."""


class ReaderSpeed:
    """Whether a stream's reader is slow: one for all of its subscriptions."""

    __slots__ = ("slow",)

    def __init__(self) -> None:
        self.slow = False


class PendingRead:
    """One subscription as the dispatcher knows it: how to wake it, what it has, and the pace of its stream."""

    __slots__ = ("began_s", "overtaken_at", "pace", "seq", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.pace = ReaderSpeed()
        self.seq = 0
        self.began_s: float | None = None
        self.overtaken_at = 0


class InFlight:
    """What counts now; see the module."""

    def __init__(self) -> None:
        self._counted: OrderedDict[PendingRead, None] = OrderedDict()
        self._done = 0
        """Counted sends that are done, since the start."""
        self._sent_s = 0.0

    def __len__(self) -> int:
        return len(self._counted)

    def begin(self, waiter: PendingRead, now_s: float) -> None:
        """A turn serves it."""
        self.forget(waiter)
        waiter.began_s = now_s
        waiter.overtaken_at = self._done + len(self._counted) + OVERTAKEN
        if not waiter.pace.slow:
            self._counted[waiter] = None

    def end(self, waiter: PendingRead, now_s: float) -> bool:
        """What the turn gave it is sent; True = it counted until now."""
        if waiter.began_s is None:
            return False
        self._sent_s = now_s
        waiter.pace.slow = self._done >= waiter.overtaken_at
        counted = self.forget(waiter)
        self._done += counted
        return counted

    def forget(self, waiter: PendingRead) -> bool:
        """It is gone; True = it counted until now."""
        waiter.began_s = None
        if waiter not in self._counted:
            return False
        del self._counted[waiter]
        return True

    def room_in_s(self, now_s: float) -> float:
        """0 = a turn may begin; else the time after which one may, whatever is not sent until then."""
        while len(self._counted) >= WORKERS:
            oldest = next(iter(self._counted))
            assert oldest.began_s is not None, "what counts has begun"
            pace = oldest.pace
            pace.slow = pace.slow or self._done >= oldest.overtaken_at
            if not pace.slow:
                still_s = max(self._sent_s, oldest.began_s) + STILL_S - now_s
                late_s = oldest.began_s + LATE_S - now_s
                if min(still_s, late_s) > MOMENT_S:
                    return min(still_s, late_s)
                pace.slow = late_s > MOMENT_S
            del self._counted[oldest]
        return 0.0
