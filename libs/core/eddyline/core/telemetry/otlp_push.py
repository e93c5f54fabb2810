"""Pushes of one signal, metrics or spans, to an OTLP collector, with one log line at each end of an outage.

Each push runs on a thread of the caller's executor, so a collector that does not answer holds nothing up.
Failure: a push that fails is not repeated. A defect in it is logged with its trace; the next push comes after the interval.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor

    from eddyline.core.runtime.clock import Clock


class PushEvents(NamedTuple):
    """Log events of one signal."""

    failing: str
    restored: str
    broke: str


class OtlpPush:
    """Repeats pushes to one collector, and logs to `log` when it stops taking them and when it takes them again."""

    def __init__(self, url: str, *, threads: Executor, log: logging.Logger, events: PushEvents) -> None:
        self._url = url
        self._threads = threads
        self._log = log
        self._events = events
        self.is_failing = False

    async def run(self, push: Callable[[], Awaitable[None]], *, clock: Clock, interval_s: float) -> NoReturn:
        """Call `push` after each interval, until cancelled."""
        while True:
            await sleep(clock, interval_s)
            await self.once(push)

    async def once(self, push: Callable[[], Awaitable[None]]) -> None:
        """Call `push`, and log what it raises."""
        try:
            await push()
        except Exception:  # the root of the push: a defect of what is measured must not end the role
            self._log.exception(self._events.broke)

    async def export(self, call: Callable[[], str]) -> bool:
        """Run a blocking export, which returns why it failed or "", on a thread; True = the collector took it."""
        failure = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if bool(failure) is not self.is_failing:
            self.is_failing = bool(failure)
            if failure:
                self._log.warning(self._events.failing, extra=fields(url=self._url, reason=failure))
            else:
                self._log.info(self._events.restored, extra=fields(url=self._url))
        return not failure
