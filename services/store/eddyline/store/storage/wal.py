"""One WAL shard: frames get their places, are written, synced, read back, and recovered.

I1: a file gets its first frame only after its predecessor was fdatasynced, cut to its last frame and fsynced, and its own
name was made durable. So a numbered successor proves a file complete. I2: files are never reused: every start opens the
next number. I3: after a failed write, fdatasync or rotation nothing is written any more (`failed`): what the kernel still
holds of it is unknown, and a second fdatasync would lie. Reads go on.
Threading: `place`, `unsynced_bytes` and `bytes_total` on the event loop, which owns positions; `write` and `sync` on one
writer thread, which gets sealed, immutable buffers; `prepare_spare` on a background thread; `read` on any. The writer
tells the loop what is synced by replacing one tuple.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.telemetry import fields
from eddyline.store.storage.frame import BadFrame, parse, seal
from eddyline.store.storage.fs import write_all
from eddyline.store.storage.layout import wal_file, wal_numbers
from eddyline.store.storage.scan import Location, corrupt, scan
from eddyline.store.storage.spare import Spare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.store.storage.frame import Frame, FrameBody
    from eddyline.store.storage.fs import File, Fs

__all__ = ["Location", "Wal", "WalFailed", "WriteGroup"]

logger = logging.getLogger(__name__)


class WalFailed(Exception):
    """The WAL failed before; only a restart settles what it holds."""


class _Piece:
    """What goes to one file in one write: sealed frames one behind the other."""

    __slots__ = ("buffers", "bytes", "file_bytes", "number", "offset")

    def __init__(self, number: int, offset: int, file_bytes: int) -> None:
        self.number = number
        self.offset = offset
        self.file_bytes = file_bytes
        self.buffers: list[bytes] = []
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
        self, fs: Fs, directory: Path, shard: int, *, file_bytes: int, spare: Spare, number: int, bytes_before: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._file_bytes = file_bytes
        self._spare = spare
        self._bytes_before = bytes_before
        # the loop's: where the next frame goes
        self._next = _Mark(number, 0, 0)
        self._next_file_bytes = file_bytes
        # the writer's: where the last written one ends
        self._file: File = spare.take(number, file_bytes)
        # told by the writer, read by the loop
        self._written = self._synced = _Mark(number, 0, 0)
        self.failed = False

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
    ) -> Wal:
        """Replay every frame in order, cut the newest file at its end, and open the next number.

        `directory` exists; its files are those from `first_number` on. Blocking.

        Raises:
            DataCorrupt: by the cut-or-corruption rule, or where a file is missing.
            OSError: the disk failed; nothing was served or lost, the next start recovers again.
        """
        numbers = wal_numbers(fs.listdir(directory))
        for expected, number in enumerate(numbers, first_number):
            if number != expected:
                raise corrupt(wal_file(directory, expected), 0, f"the file is missing, {number:016x} is there")
        bytes_before = 0
        for number in numbers:
            bytes_before += _replay(
                fs, directory, shard, number=number, complete=number != numbers[-1], on_frame=on_frame
            )
        return cls(
            fs,
            directory,
            shard,
            file_bytes=file_bytes,
            spare=Spare(fs, directory, file_bytes),
            number=first_number + len(numbers),
            bytes_before=bytes_before,
        )

    # the loop's ---------------------------------------------------------------------------------------------------

    @property
    def bytes_total(self) -> int:
        """Bytes of all frames that have a place, older runs' included."""
        return self._bytes_before + self._next.total

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written that no completed fdatasync covers yet."""
        return self._written.total - self._synced.total

    @property
    def spare_ready(self) -> bool:
        """False = the next rotation would have to fill a file itself: call `prepare_spare` soon."""
        return self._spare.ready

    def place(self, bodies: Sequence[FrameBody]) -> WriteGroup:
        """Give each body the next place and seal it there. Groups must be written in the order they were placed."""
        locations, pieces = list[Location](), list[_Piece]()
        number, offset, total = self._next
        synced = self._synced
        for body in bodies:
            length = body.length_bytes
            if offset + length > self._next_file_bytes:
                number, offset = number + 1, 0
                self._next_file_bytes = max(self._file_bytes, length)
            if not pieces or pieces[-1].number != number:
                pieces.append(_Piece(number, offset, self._next_file_bytes))
            synced_to = synced.offset if synced.file_number == number else 0
            pieces[-1].buffers.append(
                seal(body, shard=self._shard, file_number=number, offset=offset, synced_to=synced_to)
            )
            pieces[-1].bytes += length
            locations.append(Location(number, offset, length))
            offset, total = offset + length, total + length
        self._next = _Mark(number, offset, total)
        return WriteGroup(locations, pieces)

    # the writer thread's ------------------------------------------------------------------------------------------

    def write(self, group: WriteGroup) -> None:
        """Hand a group to the kernel, rotating files where it says so.

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
                write_all(self._file, piece.buffers, piece.offset)
                self._written = _Mark(piece.number, piece.offset + piece.bytes, self._written.total + piece.bytes)
            done = True
        finally:
            self.failed = not done

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
        self._synced = self._written

    def _rotate(self, piece: _Piece) -> None:
        """I1, in its order."""
        old, end = self._file, self._written
        old.fdatasync()
        old.truncate(end.offset)
        old.fsync()
        self._file = self._spare.take(piece.number, piece.file_bytes)
        old.close()
        self._written = self._synced = _Mark(piece.number, 0, end.total)

    def _check(self) -> None:
        if self.failed:
            raise WalFailed("the WAL failed before; restart the store")

    # anybody's ----------------------------------------------------------------------------------------------------

    def read(self, location: Location) -> Frame:
        """The frame at a place that is written, verified. Its batch keeps its own bytes only.

        Raises:
            DataCorrupt: it is not there, not right, or the disk cannot read it.
        """
        number, offset, length = location
        path = wal_file(self._directory, number)
        try:
            file = self._fs.open(path)
            try:
                data = file.pread(length, offset)
            finally:
                file.close()
            return parse(data, 0, shard=self._shard, file_number=number, offset=offset)
        except BadFrame as bad:
            raise corrupt(path, offset, str(bad)) from None
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            raise corrupt(path, offset, f"it cannot be read ({errno.errorcode[error.errno]})") from error

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


def _replay(
    fs: Fs, directory: Path, shard: int, *, number: int, complete: bool, on_frame: Callable[[Frame, Location], None]
) -> int:
    """Scan one file; cut and fsync it where it is the newest. The bytes of its frames."""
    path = wal_file(directory, number)
    file = fs.open(path)
    try:
        data = file.pread(file.size(), 0)
        end = scan(data, path, shard=shard, file_number=number, complete=complete, on_frame=on_frame)
        if not complete:
            if data.count(b"\0", end) != len(data) - end:
                logger.warning("wal_tail_cut", extra=fields(file=str(path), offset=end))
            if end < len(data):
                file.truncate(end)
            file.fsync()
        return end
    finally:
        file.close()
