"""Snapshot phase: delivers the current values of one subscription's topic, across interrupted scans.

Progress is a seq and a key: the subscriber has the values, as they are at `seq`, of all keys up to `after_key`. After
an interrupted scan, or with a token of an earlier stream, the phase continues from there: the changes of those keys
since then are read from the log, up to the point of a new scan, which begins after the key. So the subscriber has the
fold at that one point again, as far as the phase has come, and at its end all of it.
Rejected: to finish the scan first and deliver the changes at the end. A token would need two seqs and a key, and a
cursor between them would repeat the values of the second scan.
If the request does not allow it, if a filter uses more than the key (a newer value that it hides could not be
reported), or if the log has lost records since then, the phase starts over: its next snapshot replaces all of the
unfinished one.

I1: `seq` and `after_key` describe exactly the frames delivered so far; empty = none.
I2: a scan is held only while its slot is; of the changes at most one read is kept.
Failure: `eddyline.delivery.fetch.job` defines the retries. Threading: event loop only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.errors import EddylineError
from eddyline.core.model.read import READ_LIMIT_MAX
from eddyline.core.records.batch import Batch
from eddyline.core.records.cells import cells_of
from eddyline.core.records.record import Gap
from eddyline.delivery.feed.encode import (
    EncodedFrame,
    FramePosition,
    item_frame,
    snapshot_begin_frame,
    snapshot_end_frame,
    snapshot_resume_frame,
)
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.feed.oversize import NO_LIMIT, fit_frames
from eddyline.delivery.fetch.snapshot import Snapshot
from eddyline.delivery.resume_token import AFTER_KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.read import ReadResult
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.feed.encode import TopicView
    from eddyline.delivery.feed.oversize import MessageLimit
    from eddyline.delivery.fetch.job import FetchJob
    from eddyline.delivery.fetch.scan_slots import ScanSlots
    from eddyline.delivery.fetch.snapshot import FoldPoint, SnapshotPart


class SnapshotStep(NamedTuple):
    """Frames of one step. `ended` = the snapshot is complete, at the phase's epoch and seq."""

    frames: tuple[EncodedFrame, ...]
    ended: bool = False


class SnapshotDeps(NamedTuple):
    """Dependencies of a snapshot phase. `resumes` = an interrupted snapshot may continue."""

    link: StoreLink
    slots: ScanSlots
    fetching: FetchJob
    wake: Callable[[], None]
    resumes: bool


class SnapshotPhase:
    """Snapshot of one subscription.

    `position` is the cursor in its frames, constant within a snapshot; None = the topic's start.
    """

    def __init__(
        self,
        topic: str,
        view: TopicView,
        sources: SnapshotDeps,
        *,
        limit: MessageLimit = NO_LIMIT,
        epoch: int,
        position: FramePosition | None = None,
        seq: int = 0,
        after_key: bytes = b"",
    ) -> None:
        by_key_alone = not (view.record_filter.tags or view.record_filter.exclude_nodes or view.record_filter.ops)
        self._resumes = sources.resumes and by_key_alone
        self._topic = topic
        self._view = view
        self._limit = limit
        self._link, self._slots = sources.link, sources.slots
        self._fetching, self._wake = sources.fetching, sources.wake
        self._position = position
        self._scan: Snapshot | None = None
        self._reading_scan = False
        self._changes: ReadResult | None = None
        self._revoked_count = 0
        self._count = 0
        self._has_announced = False  # the frame of its beginning, or continuation, is sent
        self._changes_done = False  # the changes are delivered up to a head
        self._is_joined = False  # and up to the point of the scan
        self.epoch = epoch
        self.seq = seq
        self.after_key = after_key if self._resumes else b""

    def step(self) -> SnapshotStep | None:
        """Take a step; None = nothing to send: a job is running, or the scan waits for its slot."""
        if self._fetching.running:
            return None
        changes, self._changes = self._changes, None
        if changes is not None:
            return self._deliver_changes(changes)
        if self.after_key and not self._has_announced:
            self._has_announced = True
            return SnapshotStep((snapshot_resume_frame(self._current_position(), self.seq, self.after_key),))
        if self._fetching.busy:
            return None
        if self._scan is None:
            if self.after_key and not self._changes_done:
                self._fetch_changes()
                return None
            self._scan = self._open_scan()
        scan = self._scan
        if self.after_key and not self._is_joined and scan.point is not None and not self._join(scan, scan.point):
            return None
        part = scan.take()
        if part is not None:
            return self._deliver_part(part)
        if scan.slot.held:
            self._fetch_part(scan)
        return None

    def interrupt(self) -> None:
        """Close the scan and drop the running job. Delivered values stay valid if the phase can continue."""
        scan, reading = self._scan, self._reading_scan
        self._fetching.drop()
        self._forget_scan()
        self._changes = None
        if scan is None or reading:
            return  # the job that reads it closes it
        if scan.started:
            self._fetching.submit(scan.close)
        else:
            scan.slot.release()

    # the scan ----------------------------------------------------------------------------------------------------

    def _open_scan(self) -> Snapshot:
        slot = self._slots.request(granted=self._wake, revoked=self._on_revoked, revoked_count=self._revoked_count)
        return Snapshot(
            self._link,
            self._topic,
            self._view.record_filter,
            slot,
            after_key=self.after_key,
            min_seq=self.seq if self.after_key else 0,
        )

    def _join(self, scan: Snapshot, point: FoldPoint) -> bool:
        """Return True if the delivered values are at the scan's point; otherwise fetch the changes up to there."""
        if point.epoch != self.epoch or point.seq < self.seq:
            # another topic of this name, or a store that is behind: the tail reports it in its turn
            self.interrupt()
            self._fetching.retry_later()
            return False
        if point.seq > self.seq:
            scan.slot.pause_idle()
            self._fetch_changes(up_to_seq=point.seq)
            return False
        self._is_joined = True
        return True

    def _fetch_part(self, scan: Snapshot) -> None:
        async def read(wanted: Callable[[], bool]) -> bool:
            try:
                if wanted():
                    await scan.read()
            except EddylineError:
                if wanted():
                    self._forget_scan()
                await scan.close()
                raise
            if not wanted():
                await scan.close()
                return False
            self._reading_scan = False
            return True

        scan.slot.pause_idle()
        self._reading_scan = True
        self._fetching.start(read)

    def _forget_scan(self) -> None:
        self._scan = None
        self._reading_scan = False
        self._has_announced = self._changes_done = self._is_joined = False

    def _on_revoked(self) -> None:
        """Give up the scan: its subscriber is stalled, and its slot goes to the next one that waits."""
        self._revoked_count += 1
        self.interrupt()
        self._wake()

    def _deliver_part(self, part: SnapshotPart) -> SnapshotStep:
        frames: list[EncodedFrame] = []
        if part.begins and not self.after_key:
            self._has_announced = self._is_joined = True
            self._count = 0
            self.epoch, self.seq = part.epoch, part.fold_seq
            frames.append(snapshot_begin_frame(self._current_position(), part.fold_seq))
        if part.values is not None:
            # its filter has been applied
            frames += self._frames(part.values)
            self._count += part.values.count
            self._record_progress(part.values)
        if part.ends:
            self._scan = None
            position = FramePosition(self._topic, part.epoch, part.fold_seq, batch_end=True)
            frames.append(snapshot_end_frame(position, part.fold_seq, self._count))
        return SnapshotStep(tuple(frame for frame in frames if frame.data), part.ends)

    def _record_progress(self, values: Batch) -> None:
        if not self._resumes or values.count == 0:
            return
        last = values.slice(values.count - 1, values.count)
        assert last.key is not None, "an entry has a key"
        key = bytes(last.key.values)
        # after a key that does not fit into a token, the snapshot continues from the previous key, and says so
        if len(key) <= AFTER_KEY_BYTES_MAX:
            self.after_key = key

    def _current_position(self) -> FramePosition:
        return self._position if self._position is not None else FramePosition(self._topic, self.epoch, 0)

    # the changes -------------------------------------------------------------------------------------------------

    def _fetch_changes(self, *, up_to_seq: int | None = None) -> None:
        epoch, after_seq, scan = self.epoch, self.seq, self._scan

        async def read(wanted: Callable[[], bool]) -> bool:
            if not wanted():
                return False
            try:
                result = await self._link.read_records(
                    self._topic,
                    after_seq=after_seq,
                    epoch=epoch,
                    limit=READ_LIMIT_MAX,
                    max_bytes=FRAME_BYTES,
                    record_filter=self._view.record_filter,
                )
            except EddylineError:
                if wanted() and scan is not None:
                    self._forget_scan()
                    await scan.close()
                raise
            if not wanted() or result.epoch != epoch or not (result.next_after_seq > after_seq or result.caught_up):
                return False
            if scan is not None:
                scan.slot.start_idle()
            self._changes = result if up_to_seq is None else _up_to_seq(result, up_to_seq)
            return True

        self._fetching.start(read)

    def _deliver_changes(self, result: ReadResult) -> SnapshotStep:
        """Deliver changes of keys that were delivered before.

        If the log has lost any the phase starts over: the lost ones may be of these keys, or may be the delivered
        values themselves.
        """
        batches = [item for item in result.items if isinstance(item, Batch)]
        if len(batches) < len(result.items):
            self.after_key = b""
            self.interrupt()
            return SnapshotStep(())
        kept = (_up_to_key(batch, self.after_key) for batch in batches)
        frames = [frame for batch in kept if batch is not None for frame in self._frames(batch)]
        self.seq = result.next_after_seq
        self._changes_done = self._changes_done or result.caught_up
        return SnapshotStep(tuple(frames))

    def _frames(self, batch: Batch) -> tuple[EncodedFrame, ...]:
        position = self._current_position()
        frame = item_frame(position, batch, self._view)
        return fit_frames(frame, position, batch, self._view, self._limit, in_snapshot=True)


def _up_to_seq(result: ReadResult, last_seq: int) -> ReadResult:
    """Return a read without its records above `last_seq`."""
    if result.next_after_seq <= last_seq:
        return result
    items: list[Batch | Gap] = []
    for item in result.items:
        if isinstance(item, Gap):
            items.append(item)
        elif kept := item.index_after(last_seq):
            items.append(item.slice(0, kept))
    return replace(result, items=tuple(items), next_after_seq=last_seq)


def _up_to_key(batch: Batch, last_key: bytes) -> Batch | None:
    """Return the records of keys up to `last_key`; None = none."""
    if batch.key is None:
        return None
    cells = cells_of(batch.key, batch.count)
    indices = np.flatnonzero(np.array([cell is not None and cell <= last_key for cell in cells], dtype=np.bool_))
    if len(indices) == 0:
        return None
    return batch if len(indices) == batch.count else batch.select(indices)
