"""The wheel: any number of coarse deadlines on one timer.

Heartbeats of 10 000 idle streams, retries and expiries each have a deadline, and the process one armed timer. A deadline
fires up to one tick late, never early. Source: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", 1987;
here one level, its slots in a dict ordered by a heap, since deadlines are few kinds and far apart.
Threading: event loop only.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock, Timer

TICK_S: Final = 0.05
"""Half of the shortest heartbeat: at most 20 wake-ups a second, and none while nothing is due."""
IDLE_MIN: Final = 1_024
"""Deadlines taken back that nobody minds."""
_TOLERANCE_TICKS: Final = 0.001
"""A clock in floating point may be a hair before the moment it was asked to wait for."""


class ScheduledCall:
    """One call to come."""

    __slots__ = ("_callback", "_wheel")

    def __init__(self, callback: Callable[[], object], wheel: TimerWheel) -> None:
        self._callback: Callable[[], object] | None = callback
        self._wheel = wheel

    @property
    def is_due(self) -> bool:
        """False = it was taken back, or fired."""
        return self._callback is not None

    def cancel(self) -> None:
        """Take it back, and let go of what it would have called. Harmless after it fired."""
        if self._callback is not None:
            self._callback = None
            self._wheel.forget()

    def fire(self) -> None:
        """Call, unless it was taken back."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class TimerWheel:
    """Deadlines by tick; see the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, list[ScheduledCall]] = {}
        self._ticks: list[int] = []
        self._timer: Timer | None = None
        self._armed_tick = 0
        self._done_tick = -1
        self._held_count = 0
        self._idle_count = 0
        """Of those held: taken back."""

    def schedule(self, delay_s: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call `callback` after `delay_s`, up to one tick later."""
        # a tick that has had its turn would never come again, or at once for ever
        tick = max(math.ceil((self._clock.monotonic_s() + delay_s) / TICK_S), self._done_tick + 1)
        deadline = ScheduledCall(callback, self)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = []
            heapq.heappush(self._ticks, tick)
        slot.append(deadline)
        self._held_count += 1
        self._arm()
        return deadline

    def forget(self) -> None:
        """One was taken back. A stream's last deadline is half an hour ahead, so those of streams that are gone are cleared
        away when they are the most."""
        self._idle_count += 1
        if self._idle_count > max(IDLE_MIN, self._held_count // 2):
            for tick in list(self._slots):
                due = [deadline for deadline in self._slots[tick] if deadline.is_due]
                if due:
                    self._slots[tick] = due
                else:
                    del self._slots[tick]
            self._ticks = sorted(self._slots)
            self._held_count = sum(map(len, self._slots.values()))
            self._idle_count = 0

    def close(self) -> None:
        """Forget every deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._slots.clear()
        self._ticks.clear()
        self._held_count = self._idle_count = 0

    def _arm(self) -> None:
        tick = self._ticks[0]
        if self._timer is not None:
            if self._armed_tick <= tick:
                return
            self._timer.cancel()
        self._armed_tick = tick
        self._timer = self._clock.call_later(max(0.0, tick * TICK_S - self._clock.monotonic_s()), self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._done_tick = now = math.floor(self._clock.monotonic_s() / TICK_S + _TOLERANCE_TICKS)
        while self._ticks and self._ticks[0] <= now:
            deadlines = self._slots.pop(heapq.heappop(self._ticks))
            self._held_count -= len(deadlines)
            self._idle_count -= sum(not deadline.is_due for deadline in deadlines)
            for deadline in deadlines:
                deadline.fire()
        if self._ticks and self._timer is None:
            self._arm()
