"""Fetch job: the request of one subscription to the store, at most one at a time.

A job is retried after a delay if the store is unreachable; any other error is kept, and ends the stream.
I1: a dropped job changes nothing when it ends; it releases its own resources.
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
"""A store that restarts is back in about a second; meanwhile a fetch is retried every second on average."""

_PASSING: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)


class FetchJob:
    """One subscription's job at the store. `wake` requests a step of the subscription."""

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
        """True = a job is running, or its retry waits."""
        return self.running or self._retry is not None

    def start(self, job: Callable[[Callable[[], bool]], Awaitable[bool]]) -> None:
        """Run `job` on the fetcher.

        It receives a function that returns whether the job is still wanted, and returns True if it fetched something;
        False = retry after a delay.
        """
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
                self.retry_later()

        self.running = True
        self._fetcher.submit(run)

    def submit(self, job: Callable[[], Awaitable[None]]) -> None:
        """Release resources on the fetcher, without a caller that waits."""
        self._fetcher.submit(job, is_read=False)

    def drop(self) -> None:
        """Drop the running job and the waiting retry."""
        self._generation += 1
        self.running = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _failed(self, error: EddylineError) -> None:
        self.running = False
        if error.code in _PASSING or isinstance(error, TopicNotFound):
            # a deleted topic: the tail reports it in its turn
            self.retry_later(minimum_s=int(error.metadata.get("retryAfterMs", "0")) / 1000)
        else:
            self.failure = error
            self._wake()

    def retry_later(self, *, minimum_s: float = 0.0) -> None:
        """Wait for a delay, then request a step of the subscription."""
        assert not self.busy
        self._retry = self._wheel.schedule(self._backoff.next_delay_s(minimum_s=minimum_s), self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._wake()
