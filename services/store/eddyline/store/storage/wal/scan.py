"""Reading a whole WAL file at start: every frame in order, the cut-or-corruption rule, and its successor's word.

S is the highest `synced_to` of any valid frame in the file, wherever it lies; a file with a successor was complete before
the successor got its name, so there S is its size. A bad frame below S is corruption: it is named, never skipped. At or
above S no completed fdatasync covered it: everything from it on is cut, whatever verifies behind it.

I1: a frame that was fdatasynced, and is followed by one that knows it, is replayed or the start is refused. I2: a frame that
verifies but cannot be read (a later version's) is never cut. I3: a file that its successor remembers longer is corruption.
Threading: none; blocking. Frames lie in the buffer they were read into: whoever keeps a batch keeps the whole file's bytes.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt, NewerFormat, Throttled
from eddyline.core.runtime.logging import fields
from eddyline.store.storage.layout import wal_file
from eddyline.store.storage.wal.frame import HEADER, MAGIC, BadFrame, FrameType, parse, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.wal.frame import Frame

logger = logging.getLogger(__name__)

_ZEROS: Final = bytes(1 << 20)
SHORTAGE_RETRY_AFTER_MS: Final = 1_000
"""Descriptors come back when callers leave: not within a group commit."""

MARK_BYTES_MAX: Final = 144
"""A mark: header, a body of at most 88 bytes, checksum."""


class Location(NamedTuple):
    """Where a frame lies: file, first byte, length in bytes."""

    file_number: int
    offset: int
    length: int


class WalEnd(NamedTuple):
    """Where a log ends: the newest file and the bytes of its frames."""

    file_number: int
    file_bytes: int


class Tail(NamedTuple):
    """What was cut from a log's end. `is_cut` = other bytes than zeros: a frame was there. `last_seqs` = by topic id, the
    highest seq that valid frames in it speak of."""

    is_cut: bool
    last_seqs: dict[int, int]


NO_TAIL: Final = Tail(is_cut=False, last_seqs={})


class FileReplay:
    """One file at start: replayed, held against its successor's mark, and cut where it is the newest."""

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        shard: int,
        *,
        number: int,
        complete: bool,
        before: WalEnd | None,
        on_mark: Callable[[int], None],
        synced_to: int = 0,
    ) -> None:
        """`synced_to` = what the catalog knows to be durable of the file: a bad frame below it is corruption."""
        self._fs = fs
        self._directory = directory
        self._shard = shard
        self._number = number
        self._complete = complete
        self._before = before
        self._on_mark = on_mark
        self._synced_to = synced_to
        self._data = b""

    def replay(self, on_frame: Callable[[Frame, Location], None]) -> WalEnd:
        """Give every frame to `on_frame`, but a mark's checkpoint number to `on_mark`; where they end."""
        path = wal_file(self._directory, self._number)
        file = self._fs.open(path)
        try:
            self._data = file.pread(file.size(), 0)
        finally:
            file.close()

        def take(frame: Frame, location: Location) -> None:
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
            raise corrupt(path, end, f"it ends there, the catalog knows {self._synced_to} bytes of it")
        return WalEnd(self._number, end)

    def tail(self, end: WalEnd) -> Tail:
        """What lies behind its frames."""
        if _all_zero(self._data, end.file_bytes):
            return NO_TAIL
        last_seqs = last_seqs_behind(self._data, end.file_bytes, shard=self._shard, file_number=self._number)
        return Tail(is_cut=True, last_seqs=last_seqs)

    def cut(self, end: WalEnd) -> Tail:
        """Cut the newest file at its end, durably; what was cut."""
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

    def _check_mark(self, frame: Frame) -> None:
        before, control = self._before, frame.control
        if control is None:
            return
        self._on_mark(int(control.get("checkpoint", 0)))
        if before is None or "previous_bytes" not in control:
            return
        if control["previous_bytes"] != before.file_bytes:
            raise corrupt(
                wal_file(self._directory, before.file_number),
                min(before.file_bytes, int(control["previous_bytes"])),
                f"it has {before.file_bytes} bytes of frames, its successor says {control['previous_bytes']}",
            )


def first_mark(fs: Fs, directory: Path, shard: int, number: int) -> int | None:
    """What the mark at a file's beginning says of the last completed checkpoint; None where it has none. Blocking."""
    file = fs.open(wal_file(directory, number))
    try:
        data = file.pread(MARK_BYTES_MAX, 0)
    finally:
        file.close()
    try:
        frame = parse(data, 0, shard=shard, file_number=number, offset=0)
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
    on_frame: Callable[[Frame, Location], None],
    synced_to: int = 0,
) -> int:
    """Give each frame of a file to `on_frame`; the offset where they end. `complete` = the file has a successor;
    `synced_to` = where it has none, what is known to be durable.

    Raises:
        DataCorrupt: a bad frame below S. NewerFormat: one that a later version wrote.
    """
    view = memoryview(data)
    synced_to = len(data) if complete else synced_to
    offset = 0
    while offset < len(data):
        try:
            frame = parse(view, offset, shard=shard, file_number=file_number, offset=offset)
        except BadFrame as bad:
            if bad.newer:
                raise NewerFormat(f"{path}, offset {offset}: {bad}", file=str(path), offset=offset) from None
            if bad.verified or offset < synced_to:
                raise corrupt(path, offset, str(bad)) from None
            if _synced_behind(data, offset, shard=shard, file_number=file_number):
                raise corrupt(path, offset, f"{bad}, and a later frame knows that these bytes were synced") from None
            break
        synced_to = max(synced_to, frame.synced_to)
        on_frame(frame, Location(file_number, offset, frame.frame_len))
        offset += frame.frame_len
    return offset


def corrupt(path: Path, offset: int, why: str) -> DataCorrupt:
    """The error that names the place."""
    return DataCorrupt(f"{path} is corrupt at offset {offset}: {why}", file=str(path), offset=offset)


def short_of(error: OSError) -> Throttled:
    """The refusal of work that the process is too short of descriptors or memory for, and not the disk too damaged."""
    return Throttled(
        f"the store is short of a resource: {error.strerror}. It goes on by itself once there is some",
        retryAfterMs=SHORTAGE_RETRY_AFTER_MS,
    )


def _all_zero(data: bytes, start: int) -> bool:
    """True = nothing but zeros from `start` on: what a file is filled with. Compared a megabyte at a time: counting them
    takes fifty times as long."""
    return all(data.startswith(_ZEROS[: len(data) - at], at) for at in range(start, len(data), len(_ZEROS)))


def _synced_behind(data: bytes, bad: int, *, shard: int, file_number: int) -> bool:
    """True = a valid frame behind `bad` says that the byte at `bad` was synced.

    Looks at every place where one may begin. Only a header that would say so is worth a checksum.
    """
    if _all_zero(data, bad):
        return False
    view = memoryview(data)
    at = data.find(MAGIC, bad + 1)
    while at >= 0:
        if at % 8 == 0 and len(data) - at >= HEADER.size and bad < HEADER.unpack_from(data, at)[-1] <= at:
            try:
                verify(view, at, shard=shard, file_number=file_number, offset=at)
                return True
            except BadFrame:
                pass
        at = data.find(MAGIC, at + 1)
    return False


def last_seqs_behind(data: bytes, start: int, *, shard: int, file_number: int) -> dict[int, int]:
    """By topic id the highest seq that valid frames from `start` on append or reserve. Looks at every place where a frame
    may begin, until twice the file's bytes went through checksums: payloads may be made to look like frames."""
    view, found, budget = memoryview(data), dict[int, int](), 2 * len(data)
    at = data.find(MAGIC, start)
    while at >= 0 and budget > 0:
        size = 0
        if at % 8 == 0 and len(data) - at >= HEADER.size:
            frame_len = min(HEADER.unpack_from(data, at)[1], len(data) - at)
            budget -= frame_len
            with suppress(BadFrame):
                header = verify(view, at, shard=shard, file_number=file_number, offset=at)
                size = header.frame_len
                if header.type in (FrameType.APPEND, FrameType.HEAD_WATERMARK):
                    last_seq = header.first_seq + (header.count - 1 if header.type == FrameType.APPEND else 0)
                    found[header.topic_id] = max(found.get(header.topic_id, 0), last_seq)
        at = data.find(MAGIC, at + max(size, 1))
    return found
