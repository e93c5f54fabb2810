"""Written mark: the written end of each WAL shard, kept outside the data directory and valid within one boot.

A killed process loses nothing: the kernel still has every byte that was written. A volume that was detached, or replaced
by a snapshot, loses its unsynced bytes, in the same boot and often without a trace: they read as zeros. The mark
distinguishes the two. The writer updates it after each write, before any record of it is acknowledged. A start whose log
ends before the mark has lost acknowledged bytes; a start whose log reaches the mark has lost none, even if a torn write
follows.

The mark is a memory-mapped page in the directory for temporary files (`TMPDIR`), which must outlive the process: if the
mark is missing although the last run kept one, nothing proves that the log is complete. It lives in the page cache alone,
so it is never synced, and a later boot ignores it. (In the data directory it would be lost together with the bytes it
describes. It is mapped, because a write call would make the writer thread wait for the interpreter once more for each
write.)

    off  0  u64 xxh3_64 of the run's name (UTF-8): boot id, "/", instance
        64  32 bytes a WAL shard: u64 file number, u64 bytes written, u64 of them synced, u64 xxh3_64 of those 24 bytes,
            seeded with the first word

Threading: `put` of one shard on its writer thread; the other calls while no writer runs.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BYTES: Final = 4096
_FIRST: Final = 64
_WORD: Final = struct.Struct("<Q")
_ENDS: Final = struct.Struct("<QQQ")
_SLOT: Final = struct.Struct("<QQQQ")


class WrittenEnd(NamedTuple):
    """Written end of a WAL shard: its newest file, the bytes of frames in it, and how many of those are synced."""

    file_number: int
    file_bytes: int
    synced_bytes: int


class WrittenMark(Protocol):
    """Record of a store's written bytes; see the module."""

    def read(self, run: str, shards: int) -> list[WrittenEnd] | None:
        """Return the written end of each shard in a run; None if there is no valid record."""

    def begin(self, run: str, written: Sequence[WrittenEnd]) -> None:
        """Begin the record of a run; it replaces the last one.

        Raises:
            OSError: there is no record.
        """

    def put(self, shard: int, written: WrittenEnd) -> None:
        """Record a shard's written end. No effect before `begin`."""

    def close(self) -> None:
        """Close the record and keep it."""

    def remove(self) -> None:
        """Remove the record after a clean stop, which needs none."""


def run_name(boot_id: str, instance: int) -> str:
    """Return the name of a run: one start of a data directory, in one boot."""
    return f"{boot_id}/{instance}"


class MappedMark:
    """`WrittenMark` as a memory-mapped file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._seed = 0

    def read(self, run: str, shards: int) -> list[WrittenEnd] | None:
        seed = _seed_of(run)
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
                return None
            data = os.pread(fd, _BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(fd)
        return decode_mark(data, seed, shards)

    def begin(self, run: str, written: Sequence[WrittenEnd]) -> None:
        self.close()
        seed = _seed_of(run)
        page = bytearray(_BYTES)
        _WORD.pack_into(page, 0, seed)
        for shard, one in enumerate(written):
            _pack(page, shard, one, seed)
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.write(fd, page) != _BYTES:  # allocates all blocks: a mapped page without one kills the process
                raise OSError("a write was short")
            mapped = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        os.replace(temporary, self._path)
        self._seed, self._map = seed, mapped

    def put(self, shard: int, written: WrittenEnd) -> None:
        if self._map is not None:
            _pack(self._map, shard, written, self._seed)

    def close(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()

    def remove(self) -> None:
        self.close()
        with suppress(OSError):
            os.unlink(self._path)


def decode_mark(data: bytes, seed: int, shards: int) -> list[WrittenEnd] | None:
    """Decode the first `shards` slots of a mark; None if it belongs to another run or a slot fails its checksum."""
    if len(data) != _BYTES or _WORD.unpack_from(data)[0] != seed:
        return None
    slots = list[WrittenEnd]()
    for shard in range(shards):
        *ends, checksum = _SLOT.unpack_from(data, _FIRST + shard * _SLOT.size)
        if checksum != xxh3_64_intdigest(_ENDS.pack(*ends), seed):
            return None
        slots.append(WrittenEnd(*ends))
    return slots


def _pack(page: bytearray | mmap.mmap, shard: int, written: WrittenEnd, seed: int) -> None:
    checksum = xxh3_64_intdigest(_ENDS.pack(*written), seed)
    _SLOT.pack_into(page, _FIRST + shard * _SLOT.size, *written, checksum)


def _seed_of(run: str) -> int:
    return xxh3_64_intdigest(run.encode())
