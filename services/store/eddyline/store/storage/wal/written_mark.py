"""The written mark: how far each WAL shard is written, kept outside the data directory and valid within one boot.

A killed process loses nothing: the kernel still has every byte that was handed to it. A volume that was detached, or a
snapshot put in its place, loses what was not synced, in the same boot and often without a trace: the bytes read as zeros.
The mark tells the two apart. It is told each write before anything of it is acknowledged; a start whose log ends before it
has lost acknowledged bytes, and one whose log reaches it has lost none, whatever a torn write left behind.

It is a mapped page in the directory for temporary files (`TMPDIR`), which must outlive the process: where the mark is gone
although the last run kept one, nothing proves that all is there. Only the kernel keeps it, so it is never synced; after
another boot it is not looked at. (In the data directory it would be lost together with what it tells of. Mapped, since the
writer thread would wait for the interpreter once more at each write.)

    off  0  u64 xxh3_64 of the run's name (UTF-8): boot id, "/", instance
        64  32 bytes a WAL shard: u64 file number, u64 bytes written, u64 of them synced, u64 xxh3_64 of those 24 bytes,
            seeded with the first word

Threading: `put` of one shard on its writer thread; the rest where no writer runs.
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


class Written(NamedTuple):
    """How far a WAL shard is written: its newest file, the bytes of frames in it, and how many of those are synced."""

    file_number: int
    file_bytes: int
    synced_bytes: int


class WrittenMark(Protocol):
    """Where a store leaves word of what it has written; see the module."""

    def read(self, run: str, shards: int) -> list[Written] | None:
        """What a run left of each shard; None = nothing that can be believed."""

    def begin(self, run: str, written: Sequence[Written]) -> None:
        """Begin a run's, in the place of the last one's.

        Raises:
            OSError: there is none.
        """

    def put(self, shard: int, written: Written) -> None:
        """A shard is written so far. Does nothing before `begin`."""

    def close(self) -> None:
        """Let go of it."""

    def remove(self) -> None:
        """The stop was clean: no mark is needed."""


def run_name(boot_id: str, instance: int) -> str:
    """A run of a store: a start of its directory, in a boot."""
    return f"{boot_id}/{instance}"


class MappedMark:
    """A mapped file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._seed = 0

    def read(self, run: str, shards: int) -> list[Written] | None:
        seed = _seed_of(run)
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            data = os.pread(fd, _BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(fd)
        return decode_mark(data, seed, shards)

    def begin(self, run: str, written: Sequence[Written]) -> None:
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
            if os.write(fd, page) != _BYTES:  # every byte has its room: a mapped page without it kills the process
                raise OSError("a write was short")
            mapped = mmap.mmap(fd, _BYTES)
        finally:
            os.close(fd)
        os.replace(temporary, self._path)
        self._seed, self._map = seed, mapped

    def put(self, shard: int, written: Written) -> None:
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


def decode_mark(data: bytes, seed: int, shards: int) -> list[Written] | None:
    """The first `shards` slots of a mark; None where it is another run's, or one of them is not whole."""
    if len(data) != _BYTES or _WORD.unpack_from(data)[0] != seed:
        return None
    found = list[Written]()
    for shard in range(shards):
        *ends, checksum = _SLOT.unpack_from(data, _FIRST + shard * _SLOT.size)
        if checksum != xxh3_64_intdigest(_ENDS.pack(*ends), seed):
            return None
        found.append(Written(*ends))
    return found


def _pack(page: bytearray | mmap.mmap, shard: int, written: Written, seed: int) -> None:
    checksum = xxh3_64_intdigest(_ENDS.pack(*written), seed)
    _SLOT.pack_into(page, _FIRST + shard * _SLOT.size, *written, checksum)


def _seed_of(run: str) -> int:
    return xxh3_64_intdigest(run.encode())
