"""A share of the event loop for answers that are large: one at a time, and a rest after each.

gRPC copies an answer on the loop, 768 KiB in 0.3 ms and more; a few streams that are ready at once would keep appends
waiting for all of them. So after an answer was begun the next one waits `RESTS` times as long as the loop was busy with it:
with other calls' work in between this is longer, and who has a million records to read gives way to who appends ten.
I1: large answers have at most one part in `RESTS` + 1 of the loop's time, and none of them is more than one answer long;
but each rests at most `REST_S_MAX`, so that a loop that is always late does not stop them.
Threading: event loop.

How many range scans clients may have open, whichever call they come by.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import TooManyScans
from eddyline.core.runtime.clock import sleep
from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY
from eddyline.store.fold.fold import RETRY_AFTER_MS, VIEWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.server.deadline import CallContext


RESTS: Final = 9
"""[none] A tenth of the loop: 2 M records a second with one stream, twice what a scan engine takes on the same machine. With
4 appends beside eight streams waited a fifth to a half longer."""
REST_S_MAX: Final = 0.06
"""Of a loop that is 7 ms late or more: answers of 7 000 rows are still 100 000 records a second, a hundredth of the loop."""


class LoopThrottle:
    """Gives turns to all who send large answers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._rest_end_s = 0.0

    async def turn(self) -> None:
        """Wait for a turn: the answer is begun before the caller waits for anything else."""
        await self._turn.acquire()
        try:
            rest_s = self._rest_end_s - self._clock.monotonic_s()
            if rest_s > 0:
                await sleep(self._clock, rest_s)
        except BaseException:
            self._turn.release()
            raise
        # When the loop comes to it the answer is begun, and what else was ready has run.
        asyncio.get_running_loop().call_soon(self._begun, self._clock.monotonic_s())

    def _begun(self, begin_s: float) -> None:
        now_s = self._clock.monotonic_s()
        self._rest_end_s = now_s + min(RESTS * (now_s - begin_s), REST_S_MAX)
        self._turn.release()


CLIENT_SCANS_MAX: Final = VIEWS_MAX - 24
"""Scans of callers that are no roles: clients that stand still, for 300 s each, leave 24 of the 64 to the snapshots of
delivery and the resyncs of ingest, on which many others wait."""


class ScanLimit:
    """Counts the open scans of clients."""

    def __init__(self) -> None:
        self._client_scans = 0

    @contextmanager
    def of(self, context: CallContext) -> Iterator[None]:
        """Room for a call's scan; a role says its cluster with each call, and is not counted.

        Raises:
            TooManyScans.
        """
        of_client = all(key != CLUSTER_ID_KEY for key, _ in context.invocation_metadata() or ())
        if of_client and self._client_scans >= CLIENT_SCANS_MAX:
            raise TooManyScans(
                f"{CLIENT_SCANS_MAX} scans of clients are open", scansMax=CLIENT_SCANS_MAX, retryAfterMs=RETRY_AFTER_MS
            )
        self._client_scans += of_client
        try:
            yield
        finally:
            self._client_scans -= of_client
