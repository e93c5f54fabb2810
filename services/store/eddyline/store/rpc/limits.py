"""Limits of calls: the share of the event loop for large answers, and the number of open scans of clients.

gRPC copies an answer on the event loop, 768 KiB in 0.3 ms and more; a few streams that are ready at once would delay
appends by all of them. So `LoopThrottle` sends one large answer at a time, and then waits `RESTS` times as long as the loop
was busy with it: with other calls' work in between this is longer, so a reader of a million records yields to an append of
ten.
I1: large answers take at most one part in `RESTS` + 1 of the loop's time, each at most one answer at a time; but each wait
is at most `REST_S_MAX`, so that a loop that is always late does not stop them.
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
"""[gRPC: none] A tenth of the loop: 2 M records a second with one stream, twice what a scan engine takes on the same
machine. With a fifth, appends next to eight streams waited a fifth to a half longer."""
REST_S_MAX: Final = 0.06
"""For a loop that is 7 ms late or more: answers of 7 000 rows are still 100 000 records a second, a hundredth of the loop.
"""


class LoopThrottle:
    """Gives turns to all senders of large answers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._rest_end_s = 0.0

    async def turn(self) -> None:
        """Wait for a turn: the caller must begin the answer before it awaits anything else."""
        await self._turn.acquire()
        try:
            rest_s = self._rest_end_s - self._clock.monotonic_s()
            if rest_s > 0:
                await sleep(self._clock, rest_s)
        except BaseException:
            self._turn.release()
            raise
        # When the loop runs this, the answer has begun, and the other ready callbacks have run.
        asyncio.get_running_loop().call_soon(self._begun, self._clock.monotonic_s())

    def _begun(self, begin_s: float) -> None:
        now_s = self._clock.monotonic_s()
        self._rest_end_s = now_s + min(RESTS * (now_s - begin_s), REST_S_MAX)
        self._turn.release()


CLIENT_SCANS_MAX: Final = VIEWS_MAX - 24
"""Scans of callers that are not roles. Clients that stop reading, for 300 s each, leave 24 of the 64 scans to delivery's
snapshots and ingest's resyncs, on which many others wait."""


class ScanLimit:
    """Counts the open scans of clients."""

    def __init__(self) -> None:
        self._client_scans = 0

    @contextmanager
    def of(self, context: CallContext) -> Iterator[None]:
        """Reserve a scan for a call; a role, which names its cluster with each call, is not counted.

        Raises:
            TooManyScans.
        """
        of_client = all(key != CLUSTER_ID_KEY for key, _ in context.invocation_metadata() or ())
        if of_client and self._client_scans >= CLIENT_SCANS_MAX:
            raise TooManyScans(
                f"{CLIENT_SCANS_MAX} scans of clients are open, the maximum",
                scansMax=CLIENT_SCANS_MAX,
                retryAfterMs=RETRY_AFTER_MS,
            )
        self._client_scans += of_client
        try:
            yield
        finally:
            self._client_scans -= of_client
