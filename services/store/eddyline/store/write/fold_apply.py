"""Fold applier: applies committed frames of KV topics to the fold, in order, in batches that span topics.

A WriteBatch holds whole frames, as many as fit the bounds and at least one: RocksDB's write holds the GIL for about 1 µs an
entry, so a batch stops the process for some milliseconds at most. A small batch is written on the event loop itself if the
fold's thread has nothing to do: the loop would wait for the GIL as long, and two hand-overs between threads are saved.

I1: frames are published in the order they were added, each after the write that holds it. I2: while the fold stalls, or the
process is short of descriptors or memory, nothing is published and the write is repeated with growing pauses. After a
permanent failure neither the failed frames nor any later ones are applied or acknowledged: a restart applies them, and
would take an earlier frame for applied if a later one were.
Threading: event loop; writes run on the fold's one thread, or on the loop while no job of that thread is queued or running.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.erase import erase_entries
from eddyline.store.fold.fold import FoldFailed, FoldShort, FoldStalled, FoldWrite, WriterState
from eddyline.store.storage.wal.frame import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.fold.fold import Fold
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.stats import ShardMetrics
    from eddyline.store.write.staged import CommitFrame

logger = logging.getLogger(__name__)

WRITE_ENTRIES_MAX: Final = 4096
WRITE_BYTES_MAX: Final = 1 << 20
INLINE_ENTRIES_MAX: Final = 256
INLINE_BYTES_MAX: Final = 64 << 10
"""Bounds of a batch that is written on the event loop: about half a millisecond, as long as a few calls. Two hand-overs
between threads are 0.1 to 0.2 ms on a busy machine (`make bench ROWS=P4`)."""
STALL_PAUSE_S: Final = 0.01
STALL_PAUSE_S_MAX: Final = 1.0


class FoldApplier:
    """The queue between commit and fold; see the module's invariants."""

    def __init__(
        self,
        fold: Fold,
        worker: Worker,
        clock: Clock,
        *,
        publish: Callable[[CommitFrame], None],
        on_failure: Callable[[Sequence[CommitFrame], Exception], None],
        measures: ShardMetrics,
    ) -> None:
        self._fold = fold
        self._worker = worker
        self._clock = clock
        self._publish = publish
        self._on_failure = on_failure
        self._measures = measures
        self._queue: deque[CommitFrame] = deque()
        self._taken: list[CommitFrame] = []
        """The frames being written."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.lag_bytes = 0
        self.lag_records = 0
        self.stalled = False
        self._failure: Exception | None = None
        self._is_running = False

    def add(self, frames: Sequence[CommitFrame]) -> None:
        """Queue committed frames, or apply them at once if they are few and nothing is before them. Not bounded here: the
        engine bounds the lag before it stages."""
        self._queue.extend(frames)
        for frame in frames:
            self.lag_bytes += frame.bytes
            self.lag_records += frame.record_count
        if self._may_apply_inline():
            self._apply_inline()
        if self._queue:
            self._idle.clear()
            self._wake.set()

    @property
    def lag_s(self) -> float:
        """Age of the oldest committed record that is not in the fold; 0 = there is none."""
        for frame in chain(self._taken, self._queue):
            if frame.control is None:
                return max(0, self._clock.now_ms() - frame.ts_ms) / 1000
        return 0.0

    async def drain(self) -> None:
        """Wait until every added frame is published or failed."""
        await self._idle.wait()

    async def run(self) -> None:
        """Apply until cancelled; callers that still wait then get CommitUnknown."""
        self._is_running = True
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    self._taken = self._take()
                    await self._apply(self._taken)
                    self._taken = []
                self._idle.set()
        finally:
            self._is_running = False
            if waiting := [*self._taken, *self._queue]:
                self._on_failure(waiting, FoldFailed("stopped"))

    def _may_apply_inline(self) -> bool:
        """Return True if all queued frames are one small batch, and nothing that was queued earlier is still to be done."""
        return (
            self.lag_records <= INLINE_ENTRIES_MAX
            and self.lag_bytes <= INLINE_BYTES_MAX
            and self._is_running
            and not (self._taken or self.stalled)
            and self._failure is None
            and self._worker.is_idle
            and all(frame.control is None for frame in self._queue)
        )

    def _apply_inline(self) -> None:
        """Apply all queued frames on the event loop. A write that has to be repeated is left to the task."""
        frames, started_s = list(self._queue), self._clock.monotonic_s()
        try:
            apply_frames(self._fold, frames)
        except (FoldStalled, FoldShort):
            self.stalled = True
            return
        except (FoldFailed, DataCorrupt) as error:
            self._failure = error
        self._queue.clear()
        self._finish(frames, started_s)

    def _take(self) -> list[CommitFrame]:
        taken = [self._queue.popleft()]
        entries, size = taken[0].record_count, taken[0].bytes
        while self._queue and taken[-1].control is None and self._queue[0].control is None:
            following = self._queue[0]
            entries, size = entries + following.record_count, size + following.bytes
            if entries > WRITE_ENTRIES_MAX or size > WRITE_BYTES_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _apply(self, frames: list[CommitFrame]) -> None:
        pause_s, started_s = STALL_PAUSE_S, self._clock.monotonic_s()
        while self._failure is None:
            try:
                await self._worker.submit(partial(apply_frames, self._fold, frames))
                break
            except FoldStalled:
                self.stalled = True
                await sleep(self._clock, pause_s)
                pause_s = min(pause_s * 2, STALL_PAUSE_S_MAX)
            except FoldShort as error:  # the next attempt opens the fold again, which is expensive
                self.stalled = True
                logger.warning("fold_waits", extra=fields(error=str(error)))
                await sleep(self._clock, STALL_PAUSE_S_MAX)
            except (FoldFailed, DataCorrupt) as error:
                self._failure = error
                break
        self.stalled = False
        self._finish(frames, started_s)

    def _finish(self, frames: Sequence[CommitFrame], started_s: float) -> None:
        """Publish frames whose write is done, or fail them."""
        self._release(frames)
        self._measures.apply_s.observe(self._clock.monotonic_s() - started_s)
        if self._failure is not None:
            self._on_failure(frames, self._failure)
            return
        for frame in frames:
            self._publish(frame)

    def _release(self, frames: Sequence[CommitFrame]) -> None:
        for frame in frames:
            self.lag_bytes -= frame.bytes
            self.lag_records -= frame.record_count


def apply_frames(fold: Fold, frames: Sequence[CommitFrame]) -> None:
    """Write frames to the fold in one batch; a deletion, of a topic or of records, is a batch of its own."""
    first = frames[0]
    if first.control is not None:
        assert first.topic is not None
        if first.control.body.type == FrameType.TOPIC_DELETE:
            fold.delete_topic(first.topic.id)
        elif first.control.erase is not None:
            erase_entries(fold, first.topic.id, first.control.erase.match, first.control.erase.through_seq)
        return
    fold.apply([_fold_write(frame) for frame in frames])


def _fold_write(frame: CommitFrame) -> FoldWrite:
    topic, batch = frame.topic, frame.batch
    assert topic is not None
    assert batch is not None
    writers = {
        append.mark.writer: WriterState(append.mark.fence, append.mark.new)
        for append in frame.appends
        if append.mark.writer
    }
    return FoldWrite(topic.id, frame.last_seq, entries_of(batch) if batch.count else [], list(writers.items()))
