"""VerifyFold: checks a fold of a running store against its base and log (`check.py`).

    view of the fold, with its applied seq S     while no delete of the topic runs
    source of base and log up to S               of the same moment
    second fold, comparison                      in small jobs, with a pause after each as long as the job

I1: the verdict is of one moment, S: neither side has later writes. I2: one check at a time in a store. I3: a check takes a
quarter of the interpreter at most, whatever else runs.
Failure: damage is DataCorrupt, without a verdict; a base or segments replaced during the check are ScanExpired. If a
second fold cannot be made (no room), the error is DiskFloor.
Threading: event loop; jobs on a reader thread, one after the other.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt, DiskFloor, NotKv, NotYet, ScanExpired, TooManyScans, TopicNotFound
from eddyline.core.runtime.clock import sleep
from eddyline.store.fold.fold import FoldFailed, FoldStalled
from eddyline.store.fold_repair.check import CHECK_ROWS, FoldCheck
from eddyline.store.fold_repair.source import FoldSource
from eddyline.store.read.fold_reader import WAIT_S_MAX, PendingView
from eddyline.store.storage.layout import wal_numbers
from eddyline.store.write.engine import completed
from eddyline.store.write.validation import check_fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.fold_check import FoldCheckProgress, FoldVerdict
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.fold.fold import Fold, FoldView, TemporaryFold
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.retention.retention import Retention
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout

STEPS_AT_ONCE: Final = 64
WORK_S: Final = 0.01
"""A job ends after so many steps or so long: its thread requests the interpreter twenty times meanwhile."""
PROGRESS_S: Final = 1.0
CHECK_S_MAX: Final = 4 * 3600.0
"""Longest duration of a check: 1e9 entries. Its view pins files of the fold, at most as many bytes as the fold has at
the start."""
RETRY_AFTER_MS: Final = 60_000


class VerifyFold:
    """Checks folds of one store."""

    def __init__(
        self,
        *,
        fold: Fold,
        fold_worker: Worker,
        worker: Worker,
        clock: Clock,
        files: LogFiles,
        layout: Layout,
        retention: Retention,
        entries: FoldReader,
        scratch: TemporaryFold | None,
    ) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._worker = worker
        self._clock = clock
        self._files = files
        self._layout = layout
        self._retention = retention
        self._entries = entries
        self._scratch = scratch
        self._is_busy = False

    async def run(self, topic: Topic) -> AsyncGenerator[FoldCheckProgress | FoldVerdict, None]:
        """Check a topic's fold; yield progress, then the verdict.

        Raises:
            NotKv, FoldLost, TopicNotFound (deleted meanwhile), TooManyScans (another check runs), ScanExpired,
                DataCorrupt, DiskFloor.
        """
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        check_fold(topic)
        if self._is_busy:
            raise TooManyScans("another fold is being checked; one at a time", scansMax=1, retryAfterMs=RETRY_AFTER_MS)
        self._is_busy = True
        base = topic.base
        try:
            async with AsyncExitStack() as stack:
                check = await self._begin(topic, stack)
                async for progress in self._steps(check):
                    yield progress
                yield check.verdict()
        except DataCorrupt as error:
            if topic.deleted:
                raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name) from error
            if topic.base is not base:
                raise ScanExpired(f"topic {topic.name} got a new base during the check: check it again") from error
            if _is_left(topic, error):
                raise ScanExpired(
                    f"the log of topic {topic.name} was sealed during the check: check it again"
                ) from error
            with self._entries.counting_damage():
                raise
        except (FoldFailed, FoldStalled, OSError) as error:
            raise DiskFloor(f"a second fold cannot be created: {error}", retryAfterMs=RETRY_AFTER_MS) from error
        finally:
            self._is_busy = False

    async def _begin(self, topic: Topic, stack: AsyncExitStack) -> FoldCheck:
        pending = PendingView(self._fold, topic.id)
        stack.callback(pending.close)
        async with self._retention.hold(topic):
            view, fold_seq = await self._fold_worker.submit(partial(pending.run, b"", b""))
            await topic.wait_head(fold_seq, self._clock, WAIT_S_MAX)
            if topic.deleted or topic.head_seq < fold_seq:
                raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
            source = FoldSource(self._files, self._layout, topic, through_seq=fold_seq, rows_max=CHECK_ROWS)
        stack.callback(source.close)
        return await self._with_scratch(topic, source, view, stack)

    async def _with_scratch(self, topic: Topic, source: FoldSource, view: FoldView, stack: AsyncExitStack) -> FoldCheck:
        scratch, worker = self._scratch, self._worker
        if scratch is None:
            raise NotYet("this store cannot create a second fold to compare with")

        async def removed() -> None:
            await completed(worker.submit(scratch.close))

        stack.push_async_callback(removed)
        opening = worker.submit(scratch.open)
        await completed(opening)
        return FoldCheck(topic.id, source=source, actual=view, scratch=opening.result())

    async def _steps(self, check: FoldCheck) -> AsyncGenerator[FoldCheckProgress, None]:
        """Run all steps of a check; yield its progress at most once a second."""
        clock = self._clock
        end_s, reported_s = clock.monotonic_s() + CHECK_S_MAX, clock.monotonic_s()
        yield check.progress
        while True:
            begin_s = clock.monotonic_s()
            if begin_s > end_s:
                raise ScanExpired(
                    f"the check took longer than {CHECK_S_MAX:.0f} s", scanMsMax=round(CHECK_S_MAX * 1000)
                )
            job = self._worker.submit(partial(self._work, check))
            # A cancelled caller waits for the job, which uses the folds that are closed next.
            await completed(job)
            if not job.result():
                return
            now_s = clock.monotonic_s()
            if now_s - reported_s >= PROGRESS_S:
                reported_s = now_s
                yield check.progress
            if now_s > begin_s:
                await sleep(clock, now_s - begin_s)

    def _work(self, check: FoldCheck) -> bool:
        """Run some steps; return False if the check is complete."""
        end_s = self._clock.monotonic_s() + WORK_S
        for _ in range(STEPS_AT_ONCE):
            if not check.step():
                return False
            if self._clock.monotonic_s() >= end_s:
                break
        return True


def _is_left(topic: Topic, error: DataCorrupt) -> bool:
    """Whether the error is of a WAL file that holds no frame of the topic any more: a checkpoint may have removed it."""
    numbers = wal_numbers([PurePath(str(error.metadata["file"])).name])
    oldest = topic.index.first_file
    return bool(numbers) and (not oldest or numbers[0] < oldest)
