"""Time moved by hand: the clock of every test that waits."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

START_MS: Final = 1_700_000_000_000
SETTLE_TURNS: Final = 50


class ManualTimer:
    """A call scheduled on a `ManualClock`."""

    __slots__ = ("callback", "cancelled", "due_us")

    def __init__(self, due_us: int, callback: Callable[[], object]) -> None:
        self.due_us = due_us
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A `Clock` that stands still until `advance`. Microseconds inside, so that sums of parts are exact."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._wall_us = now_ms * 1000
        self._now_us = 0
        self._timers: list[tuple[int, int, ManualTimer]] = []
        self._scheduled = 0

    def now_ms(self) -> int:
        return self._wall_us // 1000

    def monotonic_s(self) -> float:
        return self._now_us / 1_000_000

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> ManualTimer:
        timer = ManualTimer(self._now_us + max(0, round(delay_s * 1_000_000)), callback)
        self._scheduled += 1
        heapq.heappush(self._timers, (timer.due_us, self._scheduled, timer))
        return timer

    @property
    def pending(self) -> int:
        """Timers that wait and were not taken back."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Move on and fire what falls due, in order of time, ties in order of scheduling."""
        self._move_to(self._now_us + round(seconds * 1_000_000))

    async def pass_time(self, seconds: float) -> None:
        """Move on from timer to timer, letting the loop settle at each, so that what they wake may set new ones."""
        end_us = self._now_us + round(seconds * 1_000_000)
        await settle()
        while (due_us := self._next_due_us()) is not None and due_us <= end_us:
            self._move_to(due_us)
            await settle()
        self._move_to(end_us)
        await settle()

    def set_wall_ms(self, now_ms: int) -> None:
        """Set the wall clock, either way, as an administrator would; no timer notices."""
        self._wall_us = now_ms * 1000

    def _move_to(self, end_us: int) -> None:
        while (due_us := self._next_due_us()) is not None and due_us <= end_us:
            _, _, timer = heapq.heappop(self._timers)
            self._set_now_us(max(self._now_us, due_us))
            timer.callback()
        self._set_now_us(end_us)

    def _set_now_us(self, now_us: int) -> None:
        self._wall_us += now_us - self._now_us
        self._now_us = now_us

    def _next_due_us(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None


async def pass_time_until(done: asyncio.Future[Any], clock: ManualClock, step_s: float) -> None:
    """Let time pass in steps until something is done over a real network, which gets a moment of real time at each."""
    while not done.done():
        await clock.pass_time(step_s)
        await asyncio.sleep(0.001)


async def settle(turns: int = SETTLE_TURNS) -> None:
    """Let tasks that are ready run until they wait again, as far as `turns` rounds of the loop go."""
    for _ in range(turns):
        await asyncio.sleep(0)
