"""A pass: one subscription's way through the current values of its topic, across scans that break off.

What has been brought is described by a seq and a key: the subscriber has the values, as they are at `seq`, of all keys up
to `after_key`. A scan that breaks off in mid-stream, or a token of an earlier stream, goes on from there: the changes of
those keys since then are read from the log, up to the point of a new scan, which begins behind the key. So the subscriber
has the fold at that one point again, as far as the pass has come, and at its end all of it.
Rejected: to read on first and bring the changes at the end, for which a token would need two seqs and a key, and a cursor
between them would repeat what the second scan had brought.
Where it was not asked for, where a filter goes by more than the key (a newer value that it hides could not be told), or
where the log lost anything since then, the pass begins anew instead: its next snapshot replaces all of the unfinished one.

I1: `seq` and `after_key` say exactly what the frames given so far have brought; empty = nothing.
I2: a scan is held only while its slot is; of the changes at most one read is kept.
Failure: `eddyline.delivery.fetch.job` says what is tried again. Threading: event loop only.
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
    Frame,
    Place,
    item_frame,
    snapshot_begin_frame,
    snapshot_end_frame,
    snapshot_resume_frame,
)
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.feed.oversize import ANY_ROOM, fitted
from eddyline.delivery.fetch.snapshot import Snapshot
from eddyline.delivery.resume_token import AFTER_KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.read import ReadResult
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.feed.encode import View
    from eddyline.delivery.feed.oversize import Room
    from eddyline.delivery.fetch.job import FetchJob
    from eddyline.delivery.fetch.scan_slots import ScanSlots
    from eddyline.delivery.fetch.snapshot import Point, SnapshotPart


class PassStep(NamedTuple):
    """What a turn gave. `ended` = the snapshot is complete, at the pass's epoch and seq."""

    frames: tuple[Frame, ...]
    ended: bool = False


class Sources(NamedTuple):
    """Where a pass gets what it brings, and how it asks for a turn. `resumes` = one that broke off may go on."""

    link: StoreLink
    slots: ScanSlots
    fetching: FetchJob
    wake: Callable[[], None]
    resumes: bool


class SnapshotPhase:
    """One pass; see the module. `place` is the cursor that its frames carry, which does not move within a snapshot; None
    = the beginning of the topic that it is of."""

    def __init__(
        self,
        topic: str,
        view: View,
        sources: Sources,
        *,
        room: Room = ANY_ROOM,
        epoch: int,
        place: Place | None = None,
        seq: int = 0,
        after_key: bytes = b"",
    ) -> None:
        by_key_alone = not (view.record_filter.tags or view.record_filter.exclude_nodes or view.record_filter.ops)
        self._resumes = sources.resumes and by_key_alone
        self._topic = topic
        self._view = view
        self._room = room
        self._link, self._slots = sources.link, sources.slots
        self._fetching, self._wake = sources.fetching, sources.wake
        self._place = place
        self._scan: Snapshot | None = None
        self._reading_scan = False
        self._changes: ReadResult | None = None
        self._given_way = 0
        self._count = 0
        self._said = False  # how it begins, or goes on
        self._level = False  # the changes are brought up to a head
        self._joined = False  # and up to the point of the scan
        self.epoch = epoch
        self.seq = seq
        self.after_key = after_key if self._resumes else b""

    def step(self) -> PassStep | None:
        """Take a turn; None = nothing yet: something is under way, or waits for its slot."""
        if self._fetching.running:
            return None
        changes, self._changes = self._changes, None
        if changes is not None:
            return self._bring_changes(changes)
        if self.after_key and not self._said:
            self._said = True
            return PassStep((snapshot_resume_frame(self._here(), self.seq, self.after_key),))
        if self._fetching.busy:
            return None
        if self._scan is None:
            if self.after_key and not self._level:
                self._fetch_changes()
                return None
            self._scan = self._open_scan()
        scan = self._scan
        if self.after_key and not self._joined and scan.point is not None and not self._join(scan, scan.point):
            return None
        part = scan.take()
        if part is not None:
            return self._bring(part)
        if scan.slot.held:
            self._fetch_part(scan)
        return None

    def break_off(self) -> None:
        """Let go of the scan and of what is under way. What was brought stays, where the pass goes on by it."""
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
        slot = self._slots.ask(granted=self._wake, taken_back=self._give_way, given_way=self._given_way)
        return Snapshot(
            self._link,
            self._topic,
            self._view.record_filter,
            slot,
            after_key=self.after_key,
            min_seq=self.seq if self.after_key else 0,
        )

    def _join(self, scan: Snapshot, point: Point) -> bool:
        """Whether what was brought stands at the scan's point; if not, the changes up to there are asked for."""
        if point.epoch != self.epoch or point.seq < self.seq:
            # another topic of this name, or a store that is behind: the tail says so in its turn
            self.break_off()
            self._fetching.rest()
            return False
        if point.seq > self.seq:
            scan.slot.reading()
            self._fetch_changes(up_to_seq=point.seq)
            return False
        self._joined = True
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

        scan.slot.reading()
        self._reading_scan = True
        self._fetching.start(read)

    def _forget_scan(self) -> None:
        self._scan = None
        self._reading_scan = False
        self._said = self._level = self._joined = False

    def _give_way(self) -> None:
        """Its subscriber stands still: its slot is somebody else's turn."""
        self._given_way += 1
        self.break_off()
        self._wake()

    def _bring(self, part: SnapshotPart) -> PassStep:
        frames: list[Frame] = []
        if part.begins and not self.after_key:
            self._said = self._joined = True
            self._count = 0
            self.epoch, self.seq = part.epoch, part.fold_seq
            frames.append(snapshot_begin_frame(self._here(), part.fold_seq))
        if part.values is not None:
            # its filter has been applied
            frames += self._frames(part.values)
            self._count += part.values.count
            self._keep(part.values)
        if part.ends:
            self._scan = None
            place = Place(self._topic, part.epoch, part.fold_seq, batch_end=True)
            frames.append(snapshot_end_frame(place, part.fold_seq, self._count))
        return PassStep(tuple(frame for frame in frames if frame.data), part.ends)

    def _keep(self, values: Batch) -> None:
        if not self._resumes or values.count == 0:
            return
        last = values.slice(values.count - 1, values.count)
        assert last.key is not None, "an entry has a key"
        key = bytes(last.key.values)
        # behind a key that a token has no room for it goes on from the one before, and says so
        if len(key) <= AFTER_KEY_BYTES_MAX:
            self.after_key = key

    def _here(self) -> Place:
        return self._place if self._place is not None else Place(self._topic, self.epoch, 0)

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
                scan.slot.offered()
            self._changes = result if up_to_seq is None else _up_to_seq(result, up_to_seq)
            return True

        self._fetching.start(read)

    def _bring_changes(self, result: ReadResult) -> PassStep:
        """Changes of keys that were brought. Where the log lost any the pass begins anew: they may be of these keys, or what
        was brought may be lost itself."""
        batches = [item for item in result.items if isinstance(item, Batch)]
        if len(batches) < len(result.items):
            self.after_key = b""
            self.break_off()
            return PassStep(())
        kept = (_up_to_key(batch, self.after_key) for batch in batches)
        frames = [frame for batch in kept if batch is not None for frame in self._frames(batch)]
        self.seq = result.next_after_seq
        self._level = self._level or result.caught_up
        return PassStep(tuple(frames))

    def _frames(self, batch: Batch) -> tuple[Frame, ...]:
        place = self._here()
        frame = item_frame(place, batch, self._view)
        return fitted(frame, place, batch, self._view, self._room, in_snapshot=True)


def _up_to_seq(result: ReadResult, last_seq: int) -> ReadResult:
    """A read without what lies above `last_seq`."""
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
    """The records of keys up to `last_key`; None = none."""
    if batch.key is None:
        return None
    cells = cells_of(batch.key, batch.count)
    indices = np.flatnonzero(np.array([cell is not None and cell <= last_key for cell in cells], dtype=np.bool_))
    if len(indices) == 0:
        return None
    return batch if len(indices) == batch.count else batch.select(indices)
