"""Dispatch: dirty topics, first in first out, each queued at most once; its turn wakes who watches it.

The tail of a topic marks it when there is something new; any number of frames that arrive before its turn are one
wake-up a subscriber. Subscribers then take what they want from the ring, each at its own pace.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from eddyline.delivery.tail import TopicTail

WAKES_A_TURN: Final = 256
"""Wake-ups before others get the loop: about 0.1 ms."""


class Dispatcher:
    """The queue of dirty topics."""

    def __init__(self) -> None:
        self._dirty: deque[TopicTail] = deque()
        self._wake = asyncio.Event()

    def mark(self, tail: TopicTail) -> None:
        """Queue a topic, unless it is queued."""
        if not tail.dirty:
            tail.dirty = True
            self._dirty.append(tail)
            self._wake.set()

    async def run(self) -> NoReturn:
        """Serve the queue until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            woken = 0
            while self._dirty:
                tail = self._dirty.popleft()
                tail.dirty = False
                for wake in tuple(tail.listeners):
                    wake()
                    woken += 1
                    if woken % WAKES_A_TURN == 0:
                        await asyncio.sleep(0)
