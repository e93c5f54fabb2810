"""Blocking iterator over a watch: each `next` fetches one event.

I1: `positions` never lies behind an event that `next` has not returned, so nothing is read ahead; an event has many
records, and one hand-over each costs little. I2: an interrupted `next` loses no event: one that came meanwhile is the
next one's.
Threading: read by one thread at a time; `_EventReader` lives on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from eddyline.client.sync.loop_thread import LoopThread
    from eddyline.client.watch.events import Position, WatchEvent
    from eddyline.client.watch.watch import Watch as AioWatch


class Watch:
    """An endless iterator of events; `close` or leaving its `with` block ends it, and so does dropping it."""

    def __init__(self, loop: LoopThread, watch: AioWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._closed = False
        self._reader = _EventReader(watch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent:
        """Return the next event, however long it takes to come.

        Raises:
            EddylineError: what another try cannot mend. RuntimeError: the client is closed, or was made before a fork.
        """
        self._loop.check()
        if self._closed:
            raise StopIteration
        if not self._reader.events:
            self._loop.run(self._reader.fetch)
        if not self._reader.events:
            raise StopIteration
        return self._reader.events.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without `_reader` where `__init__` was interrupted.
        if hasattr(self, "_reader"):
            self.close()

    def close(self) -> None:
        """End the watch. Idempotent; does nothing once the client is closed or in a forked child."""
        if not self._closed:
            self._closed = True
            self._loop.spawn(self._watch.aclose)

    @property
    def positions(self) -> dict[str, Position]:
        """Per topic the place behind the newest event that `next` returned, to start another watch at."""
        return self._reader.positions if self._reader.events else self._watch.positions

    @property
    def resume_count(self) -> int:
        """How often it went on after a break."""
        return self._watch.resume_count

    @property
    def move_count(self) -> int:
        """How often a replica handed it to another one."""
        return self._watch.move_count

    @property
    def heard_s(self) -> float | None:
        """When the newest frame came, heartbeats too, by `time.monotonic`; None = none came yet."""
        return self._watch.heard_s

    @property
    def on_progress(self) -> Callable[[str, Position], None] | None:
        """Called on the client's event loop for a place that moved past hidden records, between two events."""
        return self._watch.on_progress

    @on_progress.setter
    def on_progress(self, call: Callable[[str, Position], None] | None) -> None:
        self._watch.on_progress = call

    def settle(self) -> None:
        """Fix where topics without a place begin, however long it takes; before the first event is read.

        Raises:
            EddylineError: what another try cannot mend.
        """
        self._loop.run(self._watch.settle)


class _EventReader:
    def __init__(self, watch: AioWatch) -> None:
        self.events: deque[WatchEvent] = deque()
        """At most one: an event that came while its `next` was interrupted."""
        self.positions: dict[str, Position] = {}
        """The watch's positions before that event."""
        self._watch = watch
        # An interrupted fetch is still being cancelled when the next one starts.
        self._reading = asyncio.Lock()

    async def fetch(self) -> None:
        """Fetch an event unless there is one; return without one at the watch's end."""
        async with self._reading:
            if self.events:
                return
            self.positions = self._watch.positions
            async for event in self._watch:
                self.events.append(event)
                return
