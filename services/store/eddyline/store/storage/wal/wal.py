"""One WAL shard: frames get their places, are written, synced, read back, and recovered.

I1: a file gets its first frame only after its predecessor was fdatasynced, cut to its last frame and fsynced, and its own
name was made durable. So a numbered successor proves a file complete, and its first frame says how long that file was: a
file that was shortened is noticed. I2: files are never reused: every start opens the
next number. I3: after a failed write, fdatasync or rotation nothing is written any more (`failed`): what the kernel still
holds of it is unknown, and a second fdatasync would lie. Reads go on. A shortage of descriptors or memory is no such
failure: what was not opened, or not written, is tried again until it is, or until `give_up`; meanwhile `short_of` says so.
Threading: `place`, `unsynced_bytes` and `bytes_total` on the event loop, which owns positions; `write` and `sync` on one
writer thread, which gets sealed, immutable buffers; `prepare_spare` on a background thread; `read` on any. The writer
tells the loop what is synced by replacing one tuple.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from eddyline.core.runtime.fs import BUFFERS_MAX, is_shortage, write_all
from eddyline.core.runtime.logging import fields
from eddyline.store.storage.layout import wal_file, wal_numbers
from eddyline.store.storage.wal.frame import BadFrame, FrameType, control_body, parse, sealed_parts
from eddyline.store.storage.wal.scan import MARK_BYTES_MAX, NO_TAIL, FileReplay, Location, WalEnd, corrupt, short_of
from eddyline.store.storage.wal.spare_file import Spare
from eddyline.store.storage.wal.written_mark import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import Buffer, File, Fs
    from eddyline.store.storage.wal.frame import Frame, FrameBody
    from eddyline.store.storage.wal.scan import Tail

T = TypeVar("T")

logger = logging.getLogger(__name__)

__all__ = ["Location", "Wal", "WalEnd", "WalFailed", "WriteGroup", "reason_of"]

FILLED_GROUP_BYTES_MAX: Final = 64 << 10
"""Bytes a group (a file's bytes by its fdatasyncs) up to which the next file is zero-filled ahead. Above it the second write
of every byte costs more than it saves: at 800 KB a group holes brought +25 % of P1 (`make bench ROWS=P1`)."""


JOINED_FRAME_BYTES_MAX: Final = 16 << 10
"""Larger frames are written from where their columns are: of 100 KB that took the loop 19 us in place of 25
(`tests/bench/README.md`)."""


SHORTAGE_PAUSE_S: Final = 0.05
"""Between two tries of what the process is too short of descriptors or memory for. 20 a second cost nothing."""


class WalFailed(Exception):
    """The WAL failed before; only a restart settles what it holds. `reason` is what the shard's status says of it."""

    reason = "SYNC_FAILED"


def reason_of(error: OSError | WalFailed) -> str:
    """What the shard's status says of a write or sync that failed."""
    return error.reason if isinstance(error, WalFailed) else WalFailed.reason


class _Piece:
    """What goes to one file in one write: sealed frames one behind the other."""

    __slots__ = ("buffers", "bytes", "file_bytes", "number", "offset")

    def __init__(self, number: int, offset: int, file_bytes: int) -> None:
        self.number = number
        self.offset = offset
        self.file_bytes = file_bytes
        self.buffers: list[Buffer] = []
        self.bytes = 0


class WriteGroup(NamedTuple):
    """Sealed frames and their places, in the order of the bodies they were made of."""

    locations: list[Location]
    pieces: list[_Piece]


class _Mark(NamedTuple):
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
        spare: Spare,
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
        # the loop's: where the next frame goes, and the bytes of frames of the files before that one
        self._ends = ends
        self._next = _Mark(number, 0, 0)
        self._next_file_bytes = file_bytes
        self._predecessor = WalEnd(number - 1, ends[number - 1]) if number - 1 in ends else None
        self.checkpoint = checkpoint
        """Number of the last completed checkpoint: what the marks of files opened from now on say."""
        # the writer's: where the last written one ends
        spare.fills = (
            False  # a start does not wait for 64 MiB of zeros; the files behind this one are filled while it is used
        )
        self._file: File = spare.take(number, file_bytes)
        spare.fills = True
        # told by the writer, read by the loop
        self._written = self._synced = _Mark(number, 0, 0)
        self._syncs = 0
        self.failed = False
        self.guard: Callable[[], None] | None = None
        """Asked before anything is written or synced; what it raises, a `WalFailed`, is the end of the log's life here."""
        self.tail = tail
        """What recovery cut from the log's end."""
        self.tell_written: Callable[[Written], None] | None = None
        """Called on the writer thread after each write and sync, before either counts."""

        self.short_of = ""
        """What the writer waits for, a shortage in the system's words; "" = nothing. The loop reads it."""
        self._gives_up = Event()

    @classmethod
    def recover(
        cls,
        fs: Fs,
        directory: Path,
        shard: int,
        file_bytes: int,
        on_frame: Callable[[Frame, Location], None],
        *,
        first_number: int = 1,
        settled: WalEnd | None = None,
        expected: WalEnd | None = None,
        replayed: WalEnd | None = None,
        checkpoint: int = 0,
        on_mark: Callable[[int], None] = lambda number: None,
    ) -> Wal:
        """Replay every frame in order, cut the newest file at its end, and open the next number.

        `directory` exists; its files are those from `first_number` on, and older ones that a checkpoint has left: those
        go. `replayed` = how far a replay that was cut off has come: it is durable. `settled` = where a file ended that a
        checkpoint has closed. `on_mark` gets the number of the checkpoint that was the last one when each file was opened.
        `expected` = where a clean stop left the log: any other end is corruption, and nothing is cut; a file number alone
        (0 bytes) = a file there must be, at least that. Files without a frame do not move the end: a start that went no
        further than opening one leaves them. Blocking.

        Raises:
            DataCorrupt: by the cut-or-corruption rule, or where a file is missing. Whatever `on_mark` raises.
            OSError: the disk failed; nothing was served or lost, the next start recovers again.
        """
        found = wal_numbers(fs.listdir(directory))
        numbers = [number for number in found if number >= first_number]
        _check_all_there(directory, numbers, first_number, settled=settled, expected=expected)
        ends, end, before, tail = dict[int, int](), WalEnd(0, 0), None, NO_TAIL
        for number in numbers:
            is_newest = number == numbers[-1]
            scanned = FileReplay(
                fs,
                directory,
                shard,
                number=number,
                complete=not is_newest,
                before=before,
                on_mark=on_mark,
                synced_to=replayed.file_bytes if replayed is not None and replayed.file_number == number else 0,
            )
            before = scanned.replay(on_frame)
            ends[number] = before.file_bytes
            if settled is not None and settled.file_number == number and settled != before:
                raise corrupt(
                    wal_file(directory, number),
                    before.file_bytes,
                    f"it has {before.file_bytes} bytes of frames, a checkpoint closed it with {settled.file_bytes}",
                )
            end = before if before.file_bytes else end
            if is_newest:
                _check_end(directory, end, expected)
                tail = scanned.cut(before)
        for number in found:
            if number < first_number:
                fs.unlink(wal_file(directory, number))
        return cls(
            fs,
            directory,
            shard,
            file_bytes=file_bytes,
            spare=Spare(fs, directory, file_bytes),
            number=first_number + len(numbers),
            ends=ends,
            checkpoint=checkpoint,
            tail=tail,
        )

    # the loop's ---------------------------------------------------------------------------------------------------

    @property
    def bytes_total(self) -> int:
        """Bytes of all frames that have a place and are kept, older runs' included."""
        return sum(self._ends.values()) + self._next.offset

    @property
    def placed_bytes(self) -> int:
        """Bytes of all frames that got a place in this run."""
        return self._next.total

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written that no completed fdatasync covers yet."""
        return self._written.total - self._synced.total

    @property
    def all_synced(self) -> bool:
        """Whether a completed fdatasync covers everything that has a place."""
        return self._synced.total == self._next.total and not self.failed

    @property
    def spare_ready(self) -> bool:
        """False = the next rotation would have to fill a file itself: call `prepare_spare` soon."""
        return self._spare.ready

    @property
    def end(self) -> WalEnd:
        """Where all that has a place ends."""
        return WalEnd(self._next.file_number, self._next.offset)

    def place(self, bodies: Sequence[FrameBody]) -> WriteGroup:
        """Give each body the next place and seal it there. Groups must be written in the order they were placed."""
        locations, pieces = list[Location](), list[_Piece]()
        for body in bodies:
            if self._next.offset == 0:
                self._put_mark(body.ts_ms, pieces)
            if self._next.offset + body.length_bytes > self._next_file_bytes:
                self._predecessor = self.end
                self._ends[self.end.file_number] = self.end.file_bytes
                self._next = _Mark(self._next.file_number + 1, 0, self._next.total)
                self._next_file_bytes = max(self._file_bytes, MARK_BYTES_MAX + body.length_bytes)
                self._put_mark(body.ts_ms, pieces)
            locations.append(self._put(body, pieces))
        return WriteGroup(locations, pieces)

    def cut(self) -> WalEnd:
        """Let the next frame begin a new file; where all that has a place ends. The file of the next frame is the one
        after that, or, where that file has no frame yet, the same. `file_bytes` -1 = there is no file before that."""
        if self._next.offset:
            self._next_file_bytes = self._next.offset
            return self.end
        return self._predecessor or WalEnd(self._next.file_number - 1, -1)

    def holds(self, end: WalEnd) -> bool:
        """Whether the log goes as far as `end` in that file, or a checkpoint has taken the file."""
        number = end.file_number
        return number < self.oldest_number or self._ends.get(number, -1) >= end.file_bytes

    @property
    def written(self) -> Written:
        """Where what is written ends, and what of that file is synced."""
        number, offset, _ = self._written
        synced = self._synced
        return Written(number, offset, synced.offset if synced.file_number == number else 0)

    @property
    def oldest_number(self) -> int:
        """Number of the oldest file that is kept."""
        return min(self._ends, default=self._next.file_number)

    def forget_below(self, number: int) -> list[int]:
        """Files below `number` are not needed any more: their numbers, for `unlink`."""
        gone = sorted(one for one in self._ends if one < number)
        for one in gone:
            del self._ends[one]
        return gone

    def _put_mark(self, ts_ms: int, pieces: list[_Piece]) -> None:
        """A file's first frame: how long its predecessor was, where it has one, and the last completed checkpoint."""
        if self._predecessor is not None:
            body = {"checkpoint": self.checkpoint, "previous_bytes": self._predecessor.file_bytes}
            mark = control_body(FrameType.CHECKPOINT_MARK, 0, body, ts_ms=ts_ms)
            assert mark.length_bytes <= MARK_BYTES_MAX
            self._put(mark, pieces)

    def _put(self, body: FrameBody, pieces: list[_Piece]) -> Location:
        number, offset, total = self._next
        if not pieces or pieces[-1].number != number:
            pieces.append(_Piece(number, offset, self._next_file_bytes))
        synced = self._synced
        synced_to = synced.offset if synced.file_number == number else 0
        parts = sealed_parts(body, shard=self._shard, file_number=number, offset=offset, synced_to=synced_to)
        if body.length_bytes > JOINED_FRAME_BYTES_MAX:
            pieces[-1].buffers.extend(parts)
        else:
            pieces[-1].buffers.append(b"".join(parts))
        pieces[-1].bytes += body.length_bytes
        self._next = _Mark(number, offset + body.length_bytes, total + body.length_bytes)
        return Location(number, offset, body.length_bytes)

    # the writer thread's ------------------------------------------------------------------------------------------

    def write(self, group: WriteGroup, *, sync: bool = False) -> None:
        """Hand a group to the kernel, rotating files where it says so; `sync` = and make all that is written durable.

        Raises:
            WalFailed: it failed before. OSError: it fails now; what of the group is in the file is unknown.
        """
        self._check()
        done = False
        try:
            for piece in group.pieces:
                if piece.number != self._written.file_number:
                    self._rotate(piece)
                assert (piece.number, piece.offset) == self._written[:2]
                # What a durable write leaves out is what was written before it: there must be nothing of that.
                durable = sync and piece is group.pieces[-1] and self._synced.total == self._written.total
                durable = durable and len(piece.buffers) <= BUFFERS_MAX  # one call: each waits for the disk
                self._patiently(partial(write_all, self._file, piece.buffers, piece.offset, durable=durable))
                self._written = _Mark(piece.number, piece.offset + piece.bytes, self._written.total + piece.bytes)
                if durable:
                    self._syncs += 1
                    self._synced = self._written
            self._tell_written()
            done = True
        finally:
            self.failed = not done
        if sync:
            self.sync()

    def sync(self) -> None:
        """Make all that is written durable.

        Raises:
            WalFailed: it failed before. OSError: it fails now, for good.
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
        self._tell_written()

    def _tell_written(self) -> None:
        if self.tell_written is not None:
            self.tell_written(self.written)

    def _rotate(self, piece: _Piece) -> None:
        """I1, in its order."""
        old, end = self._file, self._written
        old.fdatasync()
        old.truncate(end.offset)
        old.fsync()
        self._spare.fills = end.offset <= FILLED_GROUP_BYTES_MAX * max(self._syncs, 1)
        self._syncs = 0
        self._file = self._spare.take(piece.number, piece.file_bytes, self._patiently)
        old.close()
        self._written = self._synced = _Mark(piece.number, 0, end.total)

    def _patiently(self, job: Callable[[], T]) -> T:
        """Do what may be done again, however often the process is short of something; see `short_of` and `give_up`."""
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
        """From now on a shortage is a failure: the store ends, and waits for nothing. From any thread."""
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

    # anybody's ----------------------------------------------------------------------------------------------------

    def read(self, location: Location) -> Frame:
        """The frame at a place that is written, verified. Its batch keeps its own bytes only.

        Raises:
            DataCorrupt: it is not there, not right, or the disk cannot read it.
        """
        return read_frame(self._fs, self._directory, self._shard, location)

    def unlink(self, numbers: Sequence[int]) -> None:
        """Remove files that were forgotten; those that are not there (a start removed them) count as removed.

        Raises:
            OSError: the next start removes what is left.
        """
        for number in numbers:
            with suppress(FileNotFoundError):
                self._fs.unlink(wal_file(self._directory, number))

    def prepare_spare(self) -> None:
        """Have the next file ready. A failure harms nothing yet: the rotation tries again itself.

        Raises:
            OSError: it could not be filled.
        """
        self._spare.prepare()

    def close(self) -> None:
        """Close the files; `sync` first what is to last. Nothing else may run meanwhile."""
        self._spare.close()
        self._file.close()


def _check_all_there(
    directory: Path, numbers: Sequence[int], first_number: int, *, settled: WalEnd | None, expected: WalEnd | None
) -> None:
    """Raises DataCorrupt where a file is missing: between others, or one that a checkpoint or the last stop tells of."""
    for due, number in enumerate(numbers, first_number):
        if number != due:
            raise corrupt(wal_file(directory, due), 0, f"the file is missing, {number:016x} is there")
    if settled is not None and first_number <= settled.file_number and settled.file_number not in numbers:
        raise corrupt(wal_file(directory, settled.file_number), 0, "the file is missing")
    if expected is not None and (not numbers or numbers[-1] < expected.file_number):
        raise corrupt(wal_file(directory, expected.file_number), 0, "the file is missing")


def _check_end(directory: Path, end: WalEnd, expected: WalEnd | None) -> None:
    """Raises DataCorrupt where a clean stop left the log at another end."""
    if expected is not None and expected.file_bytes and end != expected:
        raise corrupt(
            wal_file(directory, max(end.file_number, expected.file_number)),
            end.file_bytes if end.file_number >= expected.file_number else 0,
            f"a clean stop left the log at {expected.file_bytes} bytes of file {expected.file_number:016x}",
        )


def read_frame(fs: Fs, directory: Path, shard: int, location: Location) -> Frame:
    """The frame at a place of a shard's directory, verified. Its batch keeps its own bytes only. Blocking.

    Raises:
        DataCorrupt: it is not there, not right, or the disk cannot read it. Throttled: the process is short of descriptors.
    """
    number, offset, length = location
    path = wal_file(directory, number)
    try:
        file = fs.open(path)
        try:
            data = file.pread(length, offset)
        finally:
            file.close()
        return parse(data, 0, shard=shard, file_number=number, offset=offset)
    except BadFrame as bad:
        raise corrupt(path, offset, str(bad)) from None
    except FileNotFoundError as error:
        raise corrupt(path, offset, "the file is missing") from error
    except OSError as error:
        if is_shortage(error):
            raise short_of(error) from error
        if error.errno != errno.EIO:
            raise
        raise corrupt(path, offset, "it cannot be read (EIO)") from error
