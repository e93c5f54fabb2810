"""Fetching: what one subscription has under way at the store, at most one job at a time.

A job that finds the store away is tried again after a while; any other error is kept, and ends the stream.
I1: a job that was dropped changes nothing when it ends; it lets go of what it holds by itself.
Threading: event loop only; jobs run on the fetcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Code, EddylineError, TopicNotFound
from eddyline.core.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from eddyline.delivery.fetch.fetcher import Fetcher
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel

RETRY_S_MAX: Final = 2.0
"""A store that restarts is back in about a second; a fetch every second on average while it is not."""

_PASSING: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)


class FetchJob:
    """One subscription's job at the store; see the module. `wake` asks for a turn of the subscription."""

    def __init__(self, fetcher: Fetcher, *, wheel: TimerWheel, random: Random, wake: Callable[[], None]) -> None:
        self._fetcher = fetcher
        self._wheel = wheel
        self._wake = wake
        self._backoff = Backoff(random, cap_s=RETRY_S_MAX)
        self._retry: ScheduledCall | None = None
        self._generation = 0
        self.running = False
        self.failure: EddylineError | None = None

    @property
    def busy(self) -> bool:
        """True = a job is under way, or the next one has to wait for a while."""
        return self.running or self._retry is not None

    def start(self, job: Callable[[Callable[[], bool]], Awaitable[bool]]) -> None:
        """Run `job` on the fetcher. It is given a function that says whether it is still wanted, and says whether it got
        something; False = come again after a while."""
        assert not self.busy
        generation = self._generation

        def wanted() -> bool:
            return generation == self._generation

        async def run() -> None:
            try:
                got = await job(wanted)
            except EddylineError as error:
                if wanted():
                    self._failed(error)
                return
            if not wanted():
                return
            self.running = False
            if got:
                self._backoff.reset()
                self._wake()
            else:
                self.rest()

        self.running = True
        self._fetcher.submit(run)

    def submit(self, job: Callable[[], Awaitable[None]]) -> None:
        """Let go of something beside it, which nobody waits for."""
        self._fetcher.submit(job, is_read=False)

    def drop(self) -> None:
        """Forget the job under way."""
        self._generation += 1
        self.running = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _failed(self, error: EddylineError) -> None:
        self.running = False
        if error.code in _PASSING or isinstance(error, TopicNotFound):
            # a topic that is not there any more: the tail says so in its turn
            self.rest(asked_s=int(error.metadata.get("retryAfterMs", "0")) / 1000)
        else:
            self.failure = error
            self._wake()

    def rest(self, *, asked_s: float = 0.0) -> None:
        """No job for a while, then a turn of the subscription."""
        assert not self.busy
        self._retry = self._wheel.schedule(self._backoff.next_delay_s(minimum_s=asked_s), self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._wake()
