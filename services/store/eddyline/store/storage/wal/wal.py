"""One WAL shard: assigns positions to frames, writes and syncs them, reads them back, recovers them at a start.

I1: a file gets its first frame only after its predecessor was fdatasynced, truncated to its last frame and fsynced, and
its own name was made durable. So a successor proves that a file is complete, and the successor's first frame records the
file's length, which detects a shortened file. I2: files are never reused: every start opens the next number. I3: after a
failed write, fdatasync or rotation the WAL writes nothing more (`failed`): the state of the kernel's pages is unknown, and
a second fdatasync would report success for lost pages. Reads continue. A shortage of descriptors or memory is not such a
failure: the open or write is retried until it succeeds or until `give_up`; meanwhile `short_of` names the shortage.
Threading: `place`, `unsynced_bytes` and `bytes_total` on the event loop, which owns positions; `write` and `sync` on one
writer thread, which gets sealed, immutable buffers, or `write_now` on the event loop while that thread has no job;
`prepare_spare` on a background thread; `read` on any. The writer publishes the synced position by replacing one tuple.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from eddyline.core.runtime.fs import BUFFERS_MAX, is_shortage, write_all
from eddyline.core.runtime.logging import fields
from eddyline.store.storage.layout import wal_file, wal_numbers
from eddyline.store.storage.wal.frame import FrameType, control_body, sealed_parts
from eddyline.store.storage.wal.scan import MARK_BYTES_MAX, NO_TAIL, FileReplay, Location, WalEnd, corrupt, read_frame
from eddyline.store.storage.wal.spare_file import SpareFile
from eddyline.store.storage.wal.written_mark import WrittenEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import Buffer, File, Fs
    from eddyline.store.storage.wal.frame import FrameBody, WalFrame
    from eddyline.store.storage.wal.scan import Tail

T = TypeVar("T")

logger = logging.getLogger(__name__)

__all__ = ["Location", "Wal", "WalEnd", "WalFailed", "WriteGroup", "failure_reason"]

FILLED_GROUP_BYTES_MAX: Final = 64 << 10
"""Bytes a group (a file's bytes divided by its fdatasyncs) up to which the next file is zero-filled ahead. Above it the
second write of every byte costs more than it saves: at 800 KB a group, sparse files gained 25 % of P1 (`make bench
ROWS=P1`)."""
JOINED_FRAME_BYTES_MAX: Final = 16 << 10
"""Larger frames are written from the batch's buffers: for frames of 100 KB that took the event loop 19 us instead of 25
(`tests/bench/README.md`)."""
SHORTAGE_PAUSE_S: Final = 0.05
"""Pause between two attempts during a shortage of descriptors or memory. 20 attempts a second cost nothing."""


class WalFailed(Exception):
    """The WAL failed before; only a restart can determine what it holds. `reason` is the shard's status."""

    reason = "SYNC_FAILED"


def failure_reason(error: OSError | WalFailed) -> str:
    """Return the reason for the shard's status after a failed write or sync."""
    return error.reason if isinstance(error, WalFailed) else WalFailed.reason


class _WalSlice:
    """The part of a group that goes to one file in one write: consecutive sealed frames."""

    __slots__ = ("buffers", "bytes", "file_bytes", "number", "offset")

    def __init__(self, number: int, offset: int, file_bytes: int) -> None:
        self.number = number
        self.offset = offset
        self.file_bytes = file_bytes
        self.buffers: list[Buffer] = []
        self.bytes = 0


class WriteGroup(NamedTuple):
    """Sealed frames and their locations, in the order of their bodies."""

    locations: list[Location]
    slices: list[_WalSlice]


class _LogPoint(NamedTuple):
    """A point of the log: in a file, and in bytes of frames since this start."""

    file_number: int
    offset: int
    total: int


class Wal:
    """One shard's log; see the module's invariants. Made by `recover`."""

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        shard: int,
        *,
        file_bytes: int,
        spare: SpareFile,
        number: int,
        ends: dict[int, int],
        checkpoint: int,
        tail: Tail = NO_TAIL,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._file_bytes = file_bytes
        self._spare = spare
        # Owned by the event loop: the position of the next frame, and the bytes of frames of the files before that one.
        self._ends = ends
        self._next = _LogPoint(number, 0, 0)
        self._next_file_bytes = file_bytes
        self._predecessor = WalEnd(number - 1, ends[number - 1]) if number - 1 in ends else None
        self.checkpoint = checkpoint
        """Number of the last completed checkpoint, written to the mark of each file opened from now on."""
        # Owned by the writer: the end of the last written frame.
        # A start does not wait for 64 MiB of zeros; later files are filled while this one is in use.
        spare.fills = False
        self._file: File = spare.take(number, file_bytes)
        spare.fills = True
        # Set by the writer, read by the event loop.
        self._written = self._synced = _LogPoint(number, 0, 0)
        self._syncs = 0
        self.failed = False
        self.guard: Callable[[], None] | None = None
        """Called before every write and sync; a `WalFailed` that it raises stops this log for good."""
        self.tail = tail
        """Bytes that recovery cut from the log's end."""
        self.on_written: Callable[[WrittenEnd], None] | None = None
        """Called on the writer thread after each write and sync, before either counts."""
        self.short_of = ""
        """The shortage the writer waits for, in the system's words; "" = none. The event loop reads it."""
        self._gives_up = Event()

    @classmethod
    def recover(
        cls,
        fs: Fs,
        directory: Path,
        shard: int,
        file_bytes: int,
        on_frame: Callable[[WalFrame, Location], None],
        *,
        first_number: int = 1,
        closed_end: WalEnd | None = None,
        expected: WalEnd | None = None,
        replayed: WalEnd | None = None,
        checkpoint: int = 0,
        on_mark: Callable[[int], None] = lambda number: None,
    ) -> Wal:
        """Replay every frame in order, truncate the newest file at its end, and open the next number.

        `directory` exists; its files are those from `first_number` on, and older ones that a checkpoint no longer needs,
        which are removed. `replayed` = the durable position of a replay that was interrupted. `closed_end` = the end of a
        file that a checkpoint closed. `on_mark` gets the number of the checkpoint that was the last one when each file was
        opened. `expected` = the end of the log at a clean stop: any other end is corruption, and nothing is cut; with 0
        bytes, a file of at least this number must exist. Files without a frame do not move the end: a start that stopped
        after opening one leaves them. Blocking.

        Raises:
            DataCorrupt: by the cut-or-corruption rule, or because a file is missing. Any error of `on_mark`.
            OSError: the disk failed; nothing was served or lost, and the next start recovers again.
        """
        present = wal_numbers(fs.listdir(directory))
        numbers = [number for number in present if number >= first_number]
        _check_all_there(directory, numbers, first_number, closed_end=closed_end, expected=expected)
        ends, end, previous, tail = dict[int, int](), WalEnd(0, 0), None, NO_TAIL
        for number in numbers:
            is_newest = number == numbers[-1]
            scanned = FileReplay(
                fs,
                directory,
                shard,
                number=number,
                complete=not is_newest,
                previous=previous,
                on_mark=on_mark,
                synced_to=replayed.file_bytes if replayed is not None and replayed.file_number == number else 0,
            )
            previous = scanned.replay(on_frame)
            ends[number] = previous.file_bytes
            if closed_end is not None and closed_end.file_number == number and closed_end != previous:
                raise corrupt(
                    wal_file(directory, number),
                    previous.file_bytes,
                    f"it has {previous.file_bytes} bytes of frames, and had {closed_end.file_bytes} at the checkpoint",
                )
            end = previous if previous.file_bytes else end
            if is_newest:
                _check_end(directory, end, expected)
                tail = scanned.cut(previous)
        for number in present:
            if number < first_number:
                fs.unlink(wal_file(directory, number))
        return cls(
            fs,
            directory,
            shard,
            file_bytes=file_bytes,
            spare=SpareFile(fs, directory, file_bytes),
            number=first_number + len(numbers),
            ends=ends,
            checkpoint=checkpoint,
            tail=tail,
        )

    # event loop -----------------------------------------------------------------------------------------------------

    @property
    def bytes_total(self) -> int:
        """Bytes of all frames that have a position and are kept, older runs' included."""
        return sum(self._ends.values()) + self._next.offset

    @property
    def placed_bytes(self) -> int:
        """Bytes of all frames that got a position in this run."""
        return self._next.total

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written that no completed fdatasync covers yet."""
        return self._written.total - self._synced.total

    @property
    def all_synced(self) -> bool:
        """Whether a completed fdatasync covers every frame that has a position."""
        return self._synced.total == self._next.total and not self.failed

    @property
    def spare_ready(self) -> bool:
        """Whether a spare file is ready. If not, the next rotation has to fill one: call `prepare_spare` soon."""
        return self._spare.file is not None

    @property
    def end(self) -> WalEnd:
        """End of the last frame that has a position."""
        return WalEnd(self._next.file_number, self._next.offset)

    def place(self, bodies: Sequence[FrameBody]) -> WriteGroup:
        """Assign the next position to each body and seal it there. Groups must be written in the order of their `place`
        calls."""
        locations, slices = list[Location](), list[_WalSlice]()
        for body in bodies:
            if self._next.offset == 0:
                self._put_mark(body.ts_ms, slices)
            if self._next.offset + body.length_bytes > self._next_file_bytes:
                self._predecessor = self.end
                self._ends[self.end.file_number] = self.end.file_bytes
                self._next = _LogPoint(self._next.file_number + 1, 0, self._next.total)
                self._next_file_bytes = max(self._file_bytes, MARK_BYTES_MAX + body.length_bytes)
                self._put_mark(body.ts_ms, slices)
            locations.append(self._put(body, slices))
        return WriteGroup(locations, slices)

    def cut(self) -> WalEnd:
        """Make the next frame begin a new file; return the end of the last frame that has a position.

        The next frame goes to the file after the returned one; if the current file has no frame yet, to the current file.
        `file_bytes` -1 = there is no earlier file.
        """
        if self._next.offset:
            self._next_file_bytes = self._next.offset
            return self.end
        return self._predecessor or WalEnd(self._next.file_number - 1, -1)

    def holds(self, end: WalEnd) -> bool:
        """Whether the log reaches `end` in that file, or a checkpoint has removed the file."""
        number = end.file_number
        return number < self.oldest_number or self._ends.get(number, -1) >= end.file_bytes

    @property
    def written(self) -> WrittenEnd:
        """End of the written frames, and the synced bytes of that file."""
        number, offset, _ = self._written
        synced = self._synced
        return WrittenEnd(number, offset, synced.offset if synced.file_number == number else 0)

    @property
    def oldest_number(self) -> int:
        """Number of the oldest file that is kept."""
        return min(self._ends, default=self._next.file_number)

    def forget_below(self, number: int) -> list[int]:
        """Forget the files below `number`, which are no longer needed; return their numbers, for `unlink`."""
        gone = sorted(one for one in self._ends if one < number)
        for one in gone:
            del self._ends[one]
        return gone

    def _put_mark(self, ts_ms: int, slices: list[_WalSlice]) -> None:
        """Place a file's first frame: its predecessor's length, if there is one, and the last completed checkpoint."""
        if self._predecessor is not None:
            body = {"checkpoint": self.checkpoint, "previous_bytes": self._predecessor.file_bytes}
            mark = control_body(FrameType.CHECKPOINT_MARK, 0, body, ts_ms=ts_ms)
            assert mark.length_bytes <= MARK_BYTES_MAX
            self._put(mark, slices)

    def _put(self, body: FrameBody, slices: list[_WalSlice]) -> Location:
        number, offset, total = self._next
        if not slices or slices[-1].number != number:
            slices.append(_WalSlice(number, offset, self._next_file_bytes))
        synced = self._synced
        synced_to = synced.offset if synced.file_number == number else 0
        parts = sealed_parts(body, shard=self._shard, file_number=number, offset=offset, synced_to=synced_to)
        if body.length_bytes > JOINED_FRAME_BYTES_MAX:
            slices[-1].buffers.extend(parts)
        else:
            slices[-1].buffers.append(b"".join(parts))
        slices[-1].bytes += body.length_bytes
        self._next = _LogPoint(number, offset + body.length_bytes, total + body.length_bytes)
        return Location(number, offset, body.length_bytes)

    # writer thread --------------------------------------------------------------------------------------------------

    def write(self, group: WriteGroup, *, sync: bool = False) -> None:
        """Write a group to the kernel, rotating files where it requires; `sync` = then make all written frames durable.

        Raises:
            WalFailed: it failed before. OSError: this write failed; how much of the group is in the file is unknown.
        """
        self._check()
        done = False
        try:
            for part in group.slices:
                if part.number != self._written.file_number:
                    self._rotate(part)
                assert (part.number, part.offset) == self._written[:2]
                # A durable write does not cover earlier writes, so there must be no unsynced ones.
                durable = sync and part is group.slices[-1] and self._synced.total == self._written.total
                durable = durable and len(part.buffers) <= BUFFERS_MAX  # one call: each waits for the disk
                self._retry(partial(write_all, self._file, part.buffers, part.offset, durable=durable))
                self._written = _LogPoint(part.number, part.offset + part.bytes, self._written.total + part.bytes)
                if durable:
                    self._syncs += 1
                    self._synced = self._written
            self._report_written()
            done = True
        finally:
            self.failed = not done
        if sync:
            self.sync()

    def write_now(self, group: WriteGroup, *, sync: bool = False) -> bool:
        """As `write`, but return False where that would wait for a new file or a missing resource: nothing is written then
        that `write` does not write again. On the event loop, while the writer thread has no job.

        Raises:
            as `write`.
        """
        self._check()
        part = group.slices[0]
        if len(group.slices) != 1 or part.number != self._written.file_number:
            return False
        durable = sync and self._synced.total == self._written.total
        try:
            write_all(self._file, part.buffers, part.offset, durable=durable)
        except BaseException as error:
            self.failed = not (isinstance(error, OSError) and is_shortage(error))
            if self.failed:
                raise
            return False
        self._written = _LogPoint(part.number, part.offset + part.bytes, self._written.total + part.bytes)
        if durable:
            self._syncs += 1
            self._synced = self._written
        self._report_written()
        if sync:
            self.sync()
        return True

    def sync(self) -> None:
        """Make all written frames durable.

        Raises:
            WalFailed: it failed before. OSError: this sync failed, for good.
        """
        self._check()
        if self._synced.total == self._written.total:
            return
        done = False
        try:
            self._file.fdatasync()
            done = True
        finally:
            self.failed = not done
        self._syncs += 1
        self._synced = self._written
        self._report_written()

    def _report_written(self) -> None:
        if self.on_written is not None:
            self.on_written(self.written)

    def _rotate(self, part: _WalSlice) -> None:
        """Switch to the next file, in the order of I1."""
        old, end = self._file, self._written
        old.fdatasync()
        old.truncate(end.offset)
        old.fsync()
        self._spare.fills = end.offset <= FILLED_GROUP_BYTES_MAX * max(self._syncs, 1)
        self._syncs = 0
        self._file = self._spare.take(part.number, part.file_bytes, self._retry)
        old.close()
        self._written = self._synced = _LogPoint(part.number, 0, end.total)

    def _retry(self, job: Callable[[], T]) -> T:
        """Run a repeatable job until the process has the resources for it; see `short_of` and `give_up`."""
        while True:
            try:
                result = job()
            except OSError as error:
                if not is_shortage(error):
                    raise
                if not self.short_of:
                    logger.warning("wal_waits", extra=fields(shard=self._shard, error=str(error)))
                self.short_of = error.strerror or "a resource"
                if self._gives_up.wait(SHORTAGE_PAUSE_S):
                    raise
            else:
                if self.short_of:
                    logger.warning("wal_goes_on", extra=fields(shard=self._shard))
                self.short_of = ""
                return result

    def give_up(self) -> None:
        """Treat every shortage as a failure from now on, because the store is stopping. Any thread."""
        self._gives_up.set()

    def _check(self) -> None:
        if self.failed:
            raise WalFailed("the WAL failed before; restart the store")
        if self.guard is not None:
            try:
                self.guard()
            except WalFailed:
                self.failed = True
                raise

    # any thread -----------------------------------------------------------------------------------------------------

    def read(self, location: Location) -> WalFrame:
        """Read and verify a written frame. Its batch references its own bytes only.

        Raises:
            DataCorrupt: it is missing, invalid, or the disk cannot read it.
        """
        return read_frame(self._fs, self._directory, self._shard, location)

    def unlink(self, numbers: Sequence[int]) -> None:
        """Remove forgotten files; a missing file (a start removed it) counts as removed.

        Raises:
            OSError: the next start removes the rest.
        """
        for number in numbers:
            with suppress(FileNotFoundError):
                self._fs.unlink(wal_file(self._directory, number))

    def prepare_spare(self) -> None:
        """Prepare the next file. A failure is harmless: the rotation tries again.

        Raises:
            OSError: the file could not be filled.
        """
        self._spare.prepare()

    def close(self) -> None:
        """Close the files; call `sync` first to keep unsynced frames. No other call may run meanwhile."""
        self._spare.close()
        self._file.close()


def _check_all_there(
    directory: Path, numbers: Sequence[int], first_number: int, *, closed_end: WalEnd | None, expected: WalEnd | None
) -> None:
    """Raise DataCorrupt if a file is missing: between others, or one that a checkpoint or the last stop recorded."""
    for due, number in enumerate(numbers, first_number):
        if number != due:
            raise corrupt(wal_file(directory, due), 0, f"the file is missing, and {number:016x} exists")
    if closed_end is not None and first_number <= closed_end.file_number and closed_end.file_number not in numbers:
        raise corrupt(wal_file(directory, closed_end.file_number), 0, "the file is missing")
    if expected is not None and (not numbers or numbers[-1] < expected.file_number):
        raise corrupt(wal_file(directory, expected.file_number), 0, "the file is missing")


def _check_end(directory: Path, end: WalEnd, expected: WalEnd | None) -> None:
    """Raise DataCorrupt if a clean stop left the log at another end."""
    if expected is not None and expected.file_bytes and end != expected:
        raise corrupt(
            wal_file(directory, max(end.file_number, expected.file_number)),
            end.file_bytes if end.file_number >= expected.file_number else 0,
            f"the last clean stop ended the log at {expected.file_bytes} bytes of file {expected.file_number:016x}",
        )
