"""Scheduler of the store's background jobs, one at a time: seal, checkpoint, erase, compact, remove garbage, scrub.

Every round runs the due jobs, most urgent first: full or old logs are sealed, so that the WAL stays short; a checkpoint; one
step of an erasure; some compaction (`compaction/planner.py`); garbage removal; some scrubbing. So jobs never compete, and a
stopping store waits for one of them at most. Each job is a class of its own; this module holds only their order.
Failure: a failed job is logged and tried again after a growing pause; its subject stays as it was, and the other jobs go on.
Threading: one task on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt, EddylineError
from eddyline.core.runtime.clock import wait_event
from eddyline.core.runtime.logging import fields
from eddyline.store.background.cooldown import PAUSE_S, PAUSE_S_MAX, Cooldown
from eddyline.store.background.write_burst import WriteBurst
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.compaction.seal_schedule import SealSchedule
from eddyline.store.fold.fold import FoldFailed, FoldStalled
from eddyline.store.stats import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.background.checkpoint import Checkpointer
    from eddyline.store.background.erasure_queue import ErasureQueue
    from eddyline.store.background.scrub import Scrubber
    from eddyline.store.compaction.planner import CompactionPlanner
    from eddyline.store.compaction.seal import Sealer
    from eddyline.store.config import StoreSettings
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)

ROUND_S: Final = 0.25
"""Interval of rounds: a quarter of the time in which a fast producer fills a segment."""
CORRUPT_PIECES_MAX: Final = 10_000
"""Damaged pieces that are logged and counted one by one; so many mean that the disk fails."""


class CorruptionLog:
    """Damaged pieces of files since the start, each logged and counted once."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()
        self.count = 0

    def record(self, error: DataCorrupt) -> None:
        """Log and count a damaged piece, unless its file and offset are known already."""
        piece = (str(error.metadata.get("file", "")), int(error.metadata.get("offset", 0)))
        if piece in self._known or len(self._known) >= CORRUPT_PIECES_MAX:
            return
        self._known.add(piece)
        self.count += 1
        logger.error("corruption_found", extra=fields(error=error.message, **error.metadata))


class Maintenance:
    """Runs the store's background jobs in their order."""

    def __init__(
        self,
        *,
        engine: Engine,
        checkpointer: Checkpointer,
        sealer: Sealer,
        garbage: Garbage,
        erasures: ErasureQueue,
        planner: CompactionPlanner,
        scrubber: Scrubber,
        corruption_log: CorruptionLog,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        self._engine = engine
        self._checkpointer = checkpointer
        self._sealer = sealer
        self._garbage = garbage
        self.erasures = erasures
        self._planner = planner
        self._scrubber = scrubber
        self.corruption_log = corruption_log
        self._clock = clock
        self._settings = settings
        self._seal_schedule = SealSchedule(engine.table, sealer, clock, seal_age_ms=settings.seal_age_ms)
        self._burst = WriteBurst(engine, clock, unsegmented_bytes_max=settings.unsegmented_bytes_max)
        self._one_round = asyncio.Lock()
        self._wake = asyncio.Event()
        erasures.on_request = self._wake.set
        self._cooldown = Cooldown(clock)
        self._checkpoint_s = clock.monotonic_s()
        self._has_more = False
        """True = the last round left work that can be done at once; False after a round skipped for a write burst."""
        self.stage = Stage.IDLE
        """Stage of the running job."""

    @property
    def corrupt_count(self) -> int:
        """Damaged pieces of files since the start."""
        return self.corruption_log.count

    async def run(self) -> None:
        """Run rounds until cancelled, then end the running erasure and scrub."""
        pause_s = PAUSE_S
        try:
            while True:
                good = await self.round()
                if good and self._has_more:
                    await asyncio.sleep(0)
                else:
                    await wait_event(self._clock, self._wake, ROUND_S if good else pause_s)
                    self._wake.clear()
                pause_s = PAUSE_S if good else min(2 * pause_s, PAUSE_S_MAX)
        finally:
            await self._scrubber.close()
            await self.erasures.close()

    @property
    def between_rounds(self) -> asyncio.Lock:
        """Lock for work that must not run during a background job, above all a checkpoint."""
        return self._one_round

    async def round(self) -> bool:
        """Run the due jobs; False = a job failed. Waits for a running round."""
        async with self._one_round:
            return await self._round()

    async def _round(self) -> bool:
        self._has_more = False
        if self._engine.read_only_reason:
            await self.erasures.refuse(self._engine.read_only_reason)
            return True
        if self._burst.is_active():
            return await self._attempt(Stage.IDLE, "garbage", self._garbage.sweep)
        good = True
        for topic in self._seal_schedule.due():
            good &= await self._attempt(Stage.SEAL, topic, partial(self._sealer.seal, topic, topic.head_seq))
        if self._checkpoint_is_due():
            good &= await self._attempt(Stage.CHECKPOINT, "checkpoint", self._checkpoint)
        self.erasures.find_due()
        if self.erasures.are_due:
            good &= await self._attempt(self.erasures.stage, None, self.erasures.step)
        good &= await self._planner.round(self._attempt, self._cooldown.is_active)
        good &= await self._attempt(Stage.IDLE, "garbage", self._garbage.sweep)
        if self._scrubber.is_due:
            good &= await self._attempt(Stage.SCRUB, "scrub", self._scrubber.round)
        self._engine.gate.unsegmented_bytes = sum(c.wal.bytes_total for c in self._engine.committers)
        self._has_more = self._planner.has_more or self.erasures.has_more
        return good

    async def _attempt(self, stage: Stage, subject: Hashable | None, job: Callable[[], Awaitable[None]]) -> bool:
        """Run a job, unless its subject is in a cool-down (None = jobs without one); False = the job failed."""
        if self._cooldown.is_active(subject):
            return True
        self.stage = stage
        try:
            await job()
        except DataCorrupt as error:
            self.corruption_log.record(error)
        except (EddylineError, OSError, CatalogFailed, FoldFailed, FoldStalled) as error:
            logger.warning("maintenance_failed", extra=fields(stage=stage.name, error=str(error)))
        else:
            self._cooldown.record_success(subject)
            return True
        finally:
            self.stage = Stage.IDLE
        if subject is not None:
            self._cooldown.record_failure(subject)
        return False

    async def _checkpoint(self) -> None:
        await self._checkpointer.run()
        self._checkpoint_s = self._clock.monotonic_s()

    def _checkpoint_is_due(self) -> bool:
        if self._checkpointer.bytes_since >= self._settings.checkpoint_bytes:
            return True
        passed_ms = (self._clock.monotonic_s() - self._checkpoint_s) * 1000
        return bool(self._engine.table.dirty) and passed_ms >= self._settings.checkpoint_interval_ms
