"""Reads of WAL files: one frame at its location; at a start whole files, every frame in order, with the cut-or-corruption
rule and the successor's mark.

S is the highest `synced_to` of any valid frame in the file, wherever it lies; a file with a successor was complete before
the successor got its name, so there S is its size. A bad frame below S is corruption: it is reported, never skipped. At or
above S no completed fdatasync covered the bytes: everything from the bad frame on is cut, whether later frames verify or
not.

I1: a frame that was fdatasynced, and is followed by a frame that records it, is replayed or the start is refused. I2: a
frame that verifies but cannot be read (a later version's) is never cut. I3: a file that is shorter than its successor
recorded is corruption.
Threading: none; blocking. Frames of a whole file reference its buffer: a caller that keeps a batch keeps all its bytes.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt, NewerFormat, Throttled
from eddyline.core.runtime.fs import is_shortage
from eddyline.core.runtime.logging import fields
from eddyline.store.storage.layout import wal_file
from eddyline.store.storage.wal.frame import HEADER, MAGIC, BadFrame, FrameType, parse_frame, verify_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.wal.frame import WalFrame

logger = logging.getLogger(__name__)

_ZEROS: Final = bytes(1 << 20)
SHORTAGE_RETRY_AFTER_MS: Final = 1_000
"""Descriptors become free when callers leave, not within a group commit."""

MARK_BYTES_MAX: Final = 144
"""A mark: header, a body of at most 88 bytes, checksum."""


class Location(NamedTuple):
    """Position of a frame: file, first byte, length in bytes."""

    file_number: int
    offset: int
    length: int


class WalEnd(NamedTuple):
    """End of a log: the newest file and the bytes of its frames."""

    file_number: int
    file_bytes: int


class Tail(NamedTuple):
    """Bytes cut from a log's end. `is_cut` = they were not all zeros, so there was a frame. `last_seqs` = by topic id,
    the highest seq in the valid frames among them."""

    is_cut: bool
    last_seqs: dict[int, int]


NO_TAIL: Final = Tail(is_cut=False, last_seqs={})


class FileReplay:
    """Replay of one file at a start: scanned, checked against its successor's mark, and truncated if it is the newest."""

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        shard: int,
        *,
        number: int,
        complete: bool,
        previous: WalEnd | None,
        on_mark: Callable[[int], None],
        synced_to: int = 0,
    ) -> None:
        """`synced_to` = the bytes of the file that the catalog records as durable: a bad frame below it is corruption."""
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._number = number
        self._complete = complete
        self._previous = previous
        self._on_mark = on_mark
        self._synced_to = synced_to
        self._data = b""

    def replay(self, on_frame: Callable[[WalFrame, Location], None]) -> WalEnd:
        """Pass every frame to `on_frame`, but a mark's checkpoint number to `on_mark`; return the end of the frames."""
        path = wal_file(self._directory, self._number)
        file = self._fs.open(path)
        try:
            self._data = file.pread(file.size(), 0)
        finally:
            file.close()

        def take(frame: WalFrame, location: Location) -> None:
            if frame.type is FrameType.CHECKPOINT_MARK:
                self._check_mark(frame)
            else:
                on_frame(frame, location)

        end = scan(
            self._data,
            path,
            shard=self._shard,
            file_number=self._number,
            complete=self._complete,
            on_frame=take,
            synced_to=self._synced_to,
        )
        if end < self._synced_to:
            raise corrupt(path, end, f"it ends there, and the catalog recorded {self._synced_to} bytes")
        return WalEnd(self._number, end)

    def tail(self, end: WalEnd) -> Tail:
        """Return the bytes after the frames."""
        if _all_zero(self._data, end.file_bytes):
            return NO_TAIL
        last_seqs = last_seqs_behind(self._data, end.file_bytes, shard=self._shard, file_number=self._number)
        return Tail(is_cut=True, last_seqs=last_seqs)

    def cut(self, end: WalEnd) -> Tail:
        """Truncate the newest file at its end, durably; return the bytes cut."""
        path, data, tail = wal_file(self._directory, self._number), self._data, self.tail(end)
        if tail.is_cut:
            logger.warning("wal_tail_cut", extra=fields(file=str(path), offset=end.file_bytes))
        file = self._fs.open(path)
        try:
            if end.file_bytes < len(data):
                file.truncate(end.file_bytes)
            file.fsync()
        finally:
            file.close()
        return tail

    def _check_mark(self, frame: WalFrame) -> None:
        previous, control = self._previous, frame.control
        if control is None:
            return
        self._on_mark(int(control.get("checkpoint", 0)))
        if previous is None or "previous_bytes" not in control:
            return
        if control["previous_bytes"] != previous.file_bytes:
            raise corrupt(
                wal_file(self._directory, previous.file_number),
                min(previous.file_bytes, int(control["previous_bytes"])),
                f"it has {previous.file_bytes} bytes of frames, and {control['previous_bytes']} by the next file",
            )


def first_mark(fs: Fs, directory: Path, shard: int, number: int) -> int | None:
    """Return the last completed checkpoint from the mark at a file's beginning; None if it has no mark. Blocking."""
    file = fs.open(wal_file(directory, number))
    try:
        data = file.pread(MARK_BYTES_MAX, 0)
    finally:
        file.close()
    try:
        frame = parse_frame(data, 0, shard=shard, file_number=number, offset=0)
    except BadFrame:
        return None
    if frame.type is not FrameType.CHECKPOINT_MARK or frame.control is None:
        return None
    return int(frame.control.get("checkpoint", 0))


def scan(
    data: bytes,
    path: Path,
    *,
    shard: int,
    file_number: int,
    complete: bool,
    on_frame: Callable[[WalFrame, Location], None],
    synced_to: int = 0,
) -> int:
    """Pass each frame of a file to `on_frame`; return the offset of their end. `complete` = the file has a successor;
    `synced_to` = if it has none, the bytes known to be durable.

    Raises:
        DataCorrupt: a bad frame below S. NewerFormat: a later version wrote a frame.
    """
    view = memoryview(data)
    synced_to = len(data) if complete else synced_to
    offset = 0
    while offset < len(data):
        try:
            frame = parse_frame(view, offset, shard=shard, file_number=file_number, offset=offset)
        except BadFrame as bad:
            if bad.newer:
                raise NewerFormat(f"{path}, offset {offset}: {bad}", file=str(path), offset=offset) from None
            if bad.verified or offset < synced_to:
                raise corrupt(path, offset, str(bad)) from None
            if _synced_behind(data, offset, shard=shard, file_number=file_number):
                raise corrupt(path, offset, f"{bad}, and a later frame records that these bytes were synced") from None
            break
        synced_to = max(synced_to, frame.synced_to)
        on_frame(frame, Location(file_number, offset, frame.frame_len))
        offset += frame.frame_len
    return offset


def read_frame(fs: Fs, directory: Path, shard: int, location: Location) -> WalFrame:
    """Read and verify the frame at a location of a shard's directory. Its batch references its own bytes only. Blocking.

    Raises:
        DataCorrupt: it is missing, invalid, or the disk cannot read it. Throttled: the process is short of descriptors.
    """
    number, offset, length = location
    path = wal_file(directory, number)
    try:
        file = fs.open(path)
        try:
            data = file.pread(length, offset)
        finally:
            file.close()
        return parse_frame(data, 0, shard=shard, file_number=number, offset=offset)
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


def corrupt(path: Path, offset: int, why: str) -> DataCorrupt:
    """Return the error that names file and offset."""
    return DataCorrupt(f"{path} is corrupt at offset {offset}: {why}", file=str(path), offset=offset)


def short_of(error: OSError) -> Throttled:
    """Return the error for a shortage of descriptors or memory in the process, as opposed to a damaged disk."""
    return Throttled(
        f"the store lacks a resource: {error.strerror}. It continues automatically once it is available",
        retryAfterMs=SHORTAGE_RETRY_AFTER_MS,
    )


def _all_zero(data: bytes, start: int) -> bool:
    """Whether only zeros, the filling of a file, follow from `start` on. Compares a megabyte at a time: counting zeros
    takes fifty times as long."""
    return all(data.startswith(_ZEROS[: len(data) - offset], offset) for offset in range(start, len(data), len(_ZEROS)))


def _synced_behind(data: bytes, bad: int, *, shard: int, file_number: int) -> bool:
    """Whether a valid frame after `bad` records that the byte at `bad` was synced.

    Tries every offset where one may begin. The checksum is computed only for headers that would record it.
    """
    if _all_zero(data, bad):
        return False
    view = memoryview(data)
    offset = data.find(MAGIC, bad + 1)
    while offset >= 0:
        if (
            offset % 8 == 0
            and len(data) - offset >= HEADER.size
            and bad < HEADER.unpack_from(data, offset)[-1] <= offset
        ):
            try:
                verify_frame(view, offset, shard=shard, file_number=file_number, offset=offset)
                return True
            except BadFrame:
                pass
        offset = data.find(MAGIC, offset + 1)
    return False


def last_seqs_behind(data: bytes, start: int, *, shard: int, file_number: int) -> dict[int, int]:
    """Return, by topic id, the highest seq that valid frames from `start` on append or reserve.

    Tries every offset where a frame may begin, until twice the file's bytes went through checksums: payloads may imitate
    frames.
    """
    view, last_seqs, budget = memoryview(data), dict[int, int](), 2 * len(data)
    offset = data.find(MAGIC, start)
    while offset >= 0 and budget > 0:
        size = 0
        if offset % 8 == 0 and len(data) - offset >= HEADER.size:
            frame_len = min(HEADER.unpack_from(data, offset)[1], len(data) - offset)
            budget -= frame_len
            with suppress(BadFrame):
                header = verify_frame(view, offset, shard=shard, file_number=file_number, offset=offset)
                size = header.frame_len
                if header.type in (FrameType.APPEND, FrameType.HEAD_WATERMARK):
                    last_seq = header.first_seq + (header.count - 1 if header.type == FrameType.APPEND else 0)
                    last_seqs[header.topic_id] = max(last_seqs.get(header.topic_id, 0), last_seq)
        offset = data.find(MAGIC, offset + max(size, 1))
    return last_seqs
