"""What a store does by itself, one job at a time: seal, checkpoint, and whatever else keeps its files small and few.

Every round looks at what is due, most urgent first, and does one thing; so jobs never compete, and a store that is told to
stop waits for one of them at most. Each job is a class of its own; here is only their order.
Failure: a job that fails is said in the log and tried again after a pause that grows; what it was about stays as it was.
Threading: one task on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.clock import wait_event
from eddyline.core.errors import DataCorrupt, EddylineError
from eddyline.core.telemetry import fields
from eddyline.store.burst import Burst
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.figures import Stage
from eddyline.store.fold.fold import FoldFailed, FoldStalled

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from eddyline.core.clock import Clock
    from eddyline.store.checkpoint import Checkpointer
    from eddyline.store.config import StoreSettings
    from eddyline.store.engine import Engine
    from eddyline.store.garbage import Garbage
    from eddyline.store.log.topic import Topic
    from eddyline.store.seal import Sealer

logger = logging.getLogger(__name__)

ROUND_S: Final = 0.25
"""How often due work is looked for: a quarter of what a fast producer takes to fill a segment."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""After a failed job. A full or sick disk gets better within minutes, if at all."""


class Maintenance:
    """The order of a store's own jobs."""

    def __init__(
        self,
        *,
        engine: Engine,
        checkpointer: Checkpointer,
        sealer: Sealer,
        garbage: Garbage,
        clock: Clock,
        settings: StoreSettings,
    ) -> None:
        self._engine = engine
        self._checkpointer = checkpointer
        self._sealer = sealer
        self._garbage = garbage
        self._clock = clock
        self._settings = settings
        self._burst = Burst(engine, clock, unsegmented_bytes_max=settings.unsegmented_bytes_max)
        self._wake = asyncio.Event()
        self._checkpoint_s = clock.monotonic_s()
        self.stage = Stage.IDLE
        """What is being done."""
        self.corrupt_count = 0
        """Pieces of files found damaged since the start."""

    async def run(self) -> None:
        """Look and work, for ever."""
        pause_s = PAUSE_S
        while True:
            if await self.round():
                await wait_event(self._clock, self._wake, ROUND_S)
                self._wake.clear()
                pause_s = PAUSE_S
            else:
                await wait_event(self._clock, self._wake, pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def round(self) -> bool:
        """Do all that is due now; False = something failed."""
        if self._engine.read_only_reason:
            return True
        try:
            await self._garbage.sweep()
            if self._burst.lasts():
                return True
            for topic in self._engine.table.with_frames():
                if self._sealer.is_full(topic) or self._is_old(topic):
                    await self._doing(Stage.SEAL, self._sealer.seal(topic, topic.head_seq))
            if self._checkpoint_is_due():
                await self._doing(Stage.CHECKPOINT, self._checkpointer.run())
                self._checkpoint_s = self._clock.monotonic_s()
        except DataCorrupt as error:
            self.corrupt_count += 1
            logger.error("maintenance_found_corruption", extra=fields(error=error.message, **error.metadata))
            return False
        except (EddylineError, OSError, CatalogFailed, FoldFailed, FoldStalled) as error:
            logger.warning("maintenance_failed", extra=fields(stage=self.stage.name, error=str(error)))
            return False
        finally:
            self.stage = Stage.IDLE
        self._engine.gate.unsegmented_bytes = sum(c.wal.bytes_total for c in self._engine.committers)
        return True

    async def _doing(self, stage: Stage, job: Awaitable[None]) -> None:
        self.stage = stage
        await job
        self.stage = Stage.IDLE

    def _is_old(self, topic: Topic) -> bool:
        """By age, spread by id over a tenth of it, so that 100 000 topics do not become due at once."""
        age_ms = self._settings.seal_age_ms
        spread_ms = topic.id * 7919 % (age_ms // 10 + 1)
        return self._clock.now_ms() - topic.index.first_ts_ms > age_ms + spread_ms

    def _checkpoint_is_due(self) -> bool:
        if self._checkpointer.bytes_since >= self._settings.checkpoint_bytes:
            return True
        passed_ms = (self._clock.monotonic_s() - self._checkpoint_s) * 1000
        return bool(self._engine.table.dirty) and passed_ms >= self._settings.checkpoint_interval_ms
