"""Group commit: joins staged appends into frames, makes the frames durable, and passes them on.

A lone append starts at once. While one group is written, the next gathers; once it has `AHEAD_BYTES_MIN` it queues behind
the first, so that the disk does not wait for the event loop between them. Under pressure a group gathers for a window that
grows with the pressure, so that fewer and larger groups do the work. Appends of one topic in one group are joined into one
frame that keeps each append's identity. Frames whose class is met by the write are passed on after it, all others after the
fdatasync that covers them; appends of EPHEMERAL topics keep their turn and are not written.

I1: frames of one topic are passed on in the order they were staged. I2: after a failure of the disk nothing more is
written: appends already passed to the kernel get `CommitUnknown`, appends only staged get `ReadOnly`.
Threading: event loop; write and fdatasync run on the shard's one writer thread, which gets immutable buffers. While the disk
is fast (`loop_writes`) and that thread is idle, the event loop writes small groups without sync itself, and syncs lone
appends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import CommitUnknown
from eddyline.core.model.topic import Durability
from eddyline.core.records.batch import Batch
from eddyline.store.storage.wal.frame import FrameBody, append_body
from eddyline.store.storage.wal.wal import Wal, WalFailed, failure_reason
from eddyline.store.write.loop_writes import LoopWrites
from eddyline.store.write.staged import (
    STOPPED,
    CommitFrame,
    StagedAppend,
    StagedControl,
    fail_frames,
    fail_future,
    read_only,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.stats import ShardMetrics
    from eddyline.store.storage.wal.wal import WriteGroup

JOINED_BYTES_MAX: Final = 1 << 20
JOINED_RECORDS_MAX: Final = 4096
"""Bounds of a joined frame, from the format. A single append may be larger."""
JOINED_APPEND_BYTES_MAX: Final = 32 << 10
"""Larger appends get frames of their own: joining copies every column, and saves only a frame's fixed cost (about 10 µs),
which matters for small appends alone. `make bench ROWS=P1`: +20 % at 100 KB an append."""
GROUP_BYTES_MAX: Final = 32 << 20
"""Bytes of one group: half a WAL file, and 0.1 s of a slow disk, so that no append waits longer behind others."""
WINDOW_PRESSURE: Final = 0.4
WINDOW_S_MIN: Final = 0.000_5
WINDOW_S_MAX: Final = 0.010
"""Above this pressure (0 to 1) a group gathers for a window, linear from the smallest at 0.4 to the largest at 1. 10 ms is
what a slow fdatasync takes anyway, and ten times the cost of a group of small appends without its records."""
AHEAD_BYTES_MIN: Final = 256 << 10
"""Staged bytes with which a second group begins while one is being written. Fewer do better in one group, since each group
is one fdatasync more: from 90 KB on AppendStream lost a quarter of its rate (`tests/bench/README.md`)."""
HERE_BYTES_MAX: Final = 32 << 10
"""Bytes of a group that may be written on the event loop: a write to the page cache takes 5 to 10 us, and the hand-over to
the writer's thread and back 40 us of processor time and 70 of a lone append's (`tests/bench/small/README.md`, P21)."""
LONE_GROUPS_MIN: Final = 4
"""Groups of one append, one after the other, from which on such a group is synced on the event loop too: their callers wait
for each other's answers, so the loop has nothing else to do."""
GROUPS_UNDER_WAY_MAX: Final = 2
"""Together they have at most `GROUP_BYTES_MAX`."""


class _GroupStep(NamedTuple):
    """Frames of a group that are passed on together, once `done`.

    The first step of a group writes all of it; the second one syncs the frames that need it. A group without written frames
    is one step, which is done at once and keeps its turn."""

    frames: list[CommitFrame]
    done: asyncio.Future[float]
    is_written: bool
    is_first: bool
    is_last: bool
    bytes: int
    begun_s: float


class GroupCommitter:
    """Group commit of one WAL shard; see the module's invariants."""

    def __init__(
        self,
        wal: Wal,
        worker: Worker,
        clock: Clock,
        *,
        hand_on: Callable[[Sequence[CommitFrame]], None],
        pressure: Callable[[], float],
        measures: ShardMetrics,
    ) -> None:
        self.wal = wal
        self._worker = worker
        self._clock = clock
        self._hand_on = hand_on
        self._pressure = pressure
        self._measures = measures
        self.staged: list[StagedAppend | StagedControl] = []
        """Appends and control frames that wait for a group, in order."""
        self._is_due = False
        self._gathers = False
        self._broken: asyncio.Future[None] | None = None
        """Ends `run` with the error that is set; None while it does not run."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._between = asyncio.Event()
        self._between.set()
        self._holds = 0
        self._under_way: deque[_GroupStep] = deque()
        self._taken: list[CommitFrame] = []
        """Frames of a group that has no place in the WAL yet."""
        self._groups = 0
        """Groups in flight."""
        self._bytes = 0
        """Bytes of the records in them."""
        self._was_written = True
        """Whether the write of the current group began."""
        self._lone_groups = 0
        """Groups of one append since the last other one."""
        self._paces = {sync: LoopWrites() for sync in (False, True)}
        """By whether the write is synced."""
        self.staged_bytes = 0
        self.failed_reason = ""
        self.spare_wanted = asyncio.Event()

    def stage(self, item: StagedAppend | StagedControl) -> None:
        """Queue an append or a control frame."""
        self.staged.append(item)
        if isinstance(item, StagedAppend):
            self.staged_bytes += item.bytes
        self._idle.clear()
        if self._may_begin():
            self._schedule()

    async def drain(self) -> None:
        """Wait until nothing is staged or in flight."""
        await self._idle.wait()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Let the groups in flight end, and begin none while the context is open: staged appends wait."""
        self._holds += 1
        try:
            await self._between.wait()
            yield
        finally:
            self._holds -= 1
            self._schedule()

    async def run(self) -> None:
        """Commit group after group, until cancelled; callers that still wait then get CommitUnknown or ReadOnly."""
        self._broken = asyncio.get_running_loop().create_future()
        self._schedule()
        try:
            await self._broken
        finally:
            self._broken = None
            self._between.set()
            for step in self._under_way:
                step.done.cancel()  # jobs that the worker has not begun are dropped
            frames = [*(frame for step in self._under_way for frame in step.frames), *self._taken]
            self._fail(self.failed_reason or STOPPED, RuntimeError("stopped"), frames)

    def _schedule(self) -> None:
        """Schedule a turn behind all callbacks that are ready now: appends of one moment go in one group."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _end_window(self) -> None:
        """End the window: the gathered group begins."""
        self._gathers = False
        self._turn(is_gathered=True)

    def _turn(self, *, is_gathered: bool = False) -> None:
        """Begin groups, and pass on those that are done. A callback and not a task: each task costs one more turn of the
        loop."""
        self._is_due = False
        if self._broken is None or self._broken.done():
            return
        try:
            self._take_turn(is_gathered)
        except BaseException as error:
            self._broken.set_exception(error)

    def _take_turn(self, is_gathered: bool) -> None:
        ended = self._count_ended()
        window_s = 0.0 if self._gathers or is_gathered else self._window_s()
        if window_s:
            self._gathers = True
            self._clock.call_later(window_s, self._end_window)
        if self._gathers or self.wal.failed:
            self._end(ended)
            ended = 0
        while not self._gathers and self._may_begin():
            self._begin()
        self._end(ended)  # behind the begin of the next group: the disk does not wait
        if not self._groups:
            self._between.set()
            if not self.staged:
                self._idle.set()

    def _may_begin(self) -> bool:
        if not self.staged or self._holds:
            return False
        if not self._groups:
            return True
        fits = self._groups < GROUPS_UNDER_WAY_MAX and self._bytes + self.staged_bytes <= GROUP_BYTES_MAX
        return fits and self.staged_bytes >= AHEAD_BYTES_MIN

    def _window_s(self) -> float:
        """Return how long the next group gathers: 0 without pressure, and for a lone append of any size."""
        if self._groups or len(self.staged) < 2:
            return 0.0
        pressure = self._pressure()
        if pressure <= WINDOW_PRESSURE:
            return 0.0
        share = (min(pressure, 1.0) - WINDOW_PRESSURE) / (1.0 - WINDOW_PRESSURE)
        return WINDOW_S_MIN + share * (WINDOW_S_MAX - WINDOW_S_MIN)

    def _begin(self) -> None:
        """Give a group its places in the WAL, and submit it to the worker."""
        begun_s = self._clock.monotonic_s()
        self._taken = frames = self._take_group()
        self._measures.group_frames.observe(len(frames))
        written = [frame for frame in frames if frame.is_written]
        group = self.wal.place([self._body(frame) for frame in written])
        for frame, location in zip(written, group.locations, strict=True):
            frame.location = location
        for frame in frames:
            if not frame.is_written:
                self._body(frame)
        self._groups += 1
        self._between.clear()
        now, synced = [frame for frame in frames if not frame.sync], [frame for frame in frames if frame.sync]
        if not group.slices:
            done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            done.set_result(0.0)
            self._add(frames, done, begun_s, is_written=False)
        elif not now:
            self._add(synced, self._write(group, frames, sync=True), begun_s)
        else:
            self._add(now, self._write(group, frames, sync=False), begun_s, is_last=not synced)
            if synced:
                self._add(synced, self._submit(self.wal.sync), begun_s, is_first=False)
        self._taken = []

    def _write(self, group: WriteGroup, frames: Sequence[CommitFrame], *, sync: bool) -> asyncio.Future[float]:
        """Write a group on the writer's thread, or here; return the seconds that it took."""
        is_lone = len(frames) == 1 and len(frames[0].appends) == 1
        self._lone_groups = self._lone_groups + 1 if is_lone else 0
        pace = self._paces[sync]
        is_small = sum(part.bytes for part in group.slices) <= HERE_BYTES_MAX
        may_wait = is_small and (not sync or self._lone_groups > LONE_GROUPS_MIN)
        began_s = self._clock.monotonic_s()
        if may_wait and self._worker.is_idle and pace.may_write(began_s):
            done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
            try:
                if self.wal.write_now(group, sync=sync):
                    ended_s = self._clock.monotonic_s()
                    pace.wrote_here(ended_s - began_s, ended_s)
                    done.set_result(ended_s - began_s)
                    return done
            except (OSError, WalFailed) as error:
                done.set_exception(error)
                return done
        done = self._submit(partial(self.wal.write, group, sync=sync))
        if is_small:
            done.add_done_callback(partial(_record_away, pace))
        return done

    def _submit(self, job: Callable[[], None]) -> asyncio.Future[float]:
        """Run `job` on the writer's thread; return the seconds that it took there."""

        def timed() -> float:
            began_s = self._clock.monotonic_s()
            job()
            return self._clock.monotonic_s() - began_s

        return self._worker.submit(timed)

    def _add(
        self,
        frames: list[CommitFrame],
        done: asyncio.Future[float],
        begun_s: float,
        *,
        is_written: bool = True,
        is_first: bool = True,
        is_last: bool = True,
    ) -> None:
        size = sum([frame.bytes for frame in frames])
        self._bytes += size
        self._under_way.append(_GroupStep(frames, done, is_written, is_first, is_last, size, begun_s))
        done.add_done_callback(self._on_step_done)

    def _on_step_done(self, done: asyncio.Future[float]) -> None:
        if not done.cancelled():
            done.exception()  # read by `_end`; not retrieved by any caller if the committer was stopped
        self._turn()

    def _count_ended(self) -> int:
        """Return how many steps are done, in order; their groups are no longer counted."""
        ended = 0
        for step in self._under_way:
            if not step.done.done():
                break
            ended += 1
            self._groups -= step.is_last
            self._bytes -= step.bytes
        return ended

    def _end(self, count: int) -> None:
        """Pass on the first `count` steps, in their order, or fail them."""
        for _ in range(count):
            step = self._under_way[0]
            if step.is_first:
                self._was_written = True
            try:
                took_s = step.done.result()
                if self.failed_reason and not step.is_written:
                    raise WalFailed("an earlier write in the log failed")
            except (OSError, WalFailed) as error:
                if step.is_first and isinstance(error, WalFailed):
                    self._was_written = False  # the group before it failed
                self._fail(failure_reason(error), error, step.frames, were_written=self._was_written)
            else:
                self._hand_on(step.frames)
                if step.is_written:
                    self._measures.sync_s.observe(took_s)
                if step.is_last:
                    self._measures.commit_s.observe(self._clock.monotonic_s() - step.begun_s)
            self._under_way.popleft()
            if step.is_last and not self.wal.spare_ready:
                self.spare_wanted.set()

    async def sync(self) -> None:
        """Fdatasync the bytes that are written and not yet synced."""
        if self.failed_reason or not self.wal.unsynced_bytes:
            return
        try:
            await self._worker.submit(self.wal.sync)
        except (OSError, WalFailed) as error:
            self._fail(failure_reason(error), error, ())

    def _take_group(self) -> list[CommitFrame]:
        """Return the frames of the next group: in staged order, appends of one topic joined, bounded in bytes."""
        frames: list[CommitFrame] = []
        open_frames: dict[int, CommitFrame] = {}
        synced_topics: set[int] = set()
        group_bytes = taken = 0
        for item in self.staged:
            if frames and group_bytes >= GROUP_BYTES_MAX:
                break
            taken += 1
            if isinstance(item, StagedControl):
                if item.topic is not None:
                    open_frames.pop(item.topic.id, None)
                frames.append(CommitFrame(item.topic, item))
                continue
            topic, size, count = item.topic, item.bytes, item.batch.count
            self.staged_bytes -= size
            group_bytes += size
            frame = open_frames.get(topic.id)
            if (
                frame is None
                or max(size, frame.appends[-1].bytes) > JOINED_APPEND_BYTES_MAX
                or frame.bytes + size > JOINED_BYTES_MAX
                or frame.record_count + count > JOINED_RECORDS_MAX
            ):
                frame = CommitFrame(topic, None)
                frames.append(frame)
                open_frames[topic.id] = frame
            frame.appends.append(item)
            frame.bytes += size
            frame.record_count += count
            frame.record_bytes += item.record_bytes
            if item.sync or topic.config.durability is Durability.FSYNC:
                synced_topics.add(topic.id)
        del self.staged[:taken]
        for frame in frames:
            if frame.topic is not None and frame.topic.id in synced_topics:
                frame.sync = True
        return frames

    def _body(self, frame: CommitFrame) -> FrameBody:
        """Give the frame's batch its place and time; return the frame's body."""
        if frame.control is not None:
            return frame.control.body
        topic, appends = frame.topic, frame.appends
        assert topic is not None
        frame.ts_ms = topic.last_ts_ms = max(topic.last_ts_ms, self._clock.now_ms())
        marks = [append.mark for append in appends]
        joined = appends[0].batch if len(appends) == 1 else Batch.concat([append.batch for append in appends])
        frame.batch = joined.with_seqs(appends[0].first_seq, frame.ts_ms)
        frame.last_seq = appends[0].first_seq + joined.count - 1
        return append_body(topic.id, frame.batch, marks)

    def _fail(self, reason: str, error: Exception, frames: Sequence[CommitFrame], *, were_written: bool = True) -> None:
        """Turn read-only; fail every caller that waits."""
        self.failed_reason = reason
        if were_written:
            unknown = "the disk failed during this write; a restart of the store decides the outcome"
            fail_frames(frames, CommitUnknown(unknown, cause=type(error).__name__))
        else:
            fail_frames(frames, read_only(reason))
        for item in self.staged:
            fail_future(item.ack if isinstance(item, StagedAppend) else item.done, read_only(reason))
        self.staged.clear()
        self.staged_bytes = 0


def _record_away(pace: LoopWrites, written: asyncio.Future[float]) -> None:
    if not written.cancelled() and written.exception() is None:
        pace.wrote_away(written.result())
