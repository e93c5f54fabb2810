"""Timer wheel: any number of coarse deadlines on one timer.

Heartbeats of 10 000 idle streams, retries and expiries each have a deadline, and the process has one armed timer. A
deadline fires up to one tick late, never early. Source: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing
Wheels", 1987; here one level, its slots in a dict ordered by a heap, since there are few kinds of deadlines, far apart.
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
"""Half of the shortest heartbeat: at most 20 wake-ups a second, and none while no call is due."""
IDLE_MIN: Final = 1_024
"""Cancelled calls that may stay in the wheel."""
_TOLERANCE_TICKS: Final = 0.001
"""A clock in floating point may be slightly before the requested time."""


class ScheduledCall:
    """One call scheduled for a later tick."""

    __slots__ = ("_callback", "_wheel")

    def __init__(self, callback: Callable[[], object], wheel: TimerWheel) -> None:
        self._callback: Callable[[], object] | None = callback
        self._wheel = wheel

    @property
    def is_due(self) -> bool:
        """False = it was cancelled, or has fired."""
        return self._callback is not None

    def cancel(self) -> None:
        """Cancel the call, and drop the reference to its callback. No effect after it fired."""
        if self._callback is not None:
            self._callback = None
            self._wheel.forget()

    def fire(self) -> None:
        """Call the callback, unless it was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class TimerWheel:
    """Scheduled calls by tick."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[int, list[ScheduledCall]] = {}
        self._ticks: list[int] = []
        self._timer: Timer | None = None
        self._armed_tick = 0
        self._done_tick = -1
        self._held_count = 0
        self._idle_count = 0
        """Of those held: cancelled."""

    def schedule(self, delay_s: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call `callback` after `delay_s`, up to one tick later."""
        # a tick that has passed would never come again, or repeat at once without end
        tick = max(math.ceil((self._clock.monotonic_s() + delay_s) / TICK_S), self._done_tick + 1)
        call = ScheduledCall(callback, self)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = []
            heapq.heappush(self._ticks, tick)
        slot.append(call)
        self._held_count += 1
        self._arm()
        return call

    def forget(self) -> None:
        """Count a cancelled call.

        A stream's last deadline is half an hour ahead, so calls of closed streams are removed when they are the
        majority.
        """
        self._idle_count += 1
        if self._idle_count > max(IDLE_MIN, self._held_count // 2):
            for tick in list(self._slots):
                due = [call for call in self._slots[tick] if call.is_due]
                if due:
                    self._slots[tick] = due
                else:
                    del self._slots[tick]
            self._ticks = sorted(self._slots)
            self._held_count = sum(map(len, self._slots.values()))
            self._idle_count = 0

    def close(self) -> None:
        """Drop every scheduled call."""
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
            calls = self._slots.pop(heapq.heappop(self._ticks))
            self._held_count -= len(calls)
            self._idle_count -= sum(not call.is_due for call in calls)
            for call in calls:
                call.fire()
        if self._ticks and self._timer is None:
            self._arm()
