"""Every path of a data directory. Nobody else knows a file's name.

<data_dir>/   identity  LOCK  catalog/  fold/  wal/<shard, 2 hex>/{<number, 16 hex>.wal, spare}  topics/  orphans/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.storage.fs import Fs

_WAL_NAME: Final = re.compile(r"([0-9a-f]{16})\.wal")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one data directory."""

    data_dir: Path

    @property
    def identity(self) -> Path:
        """Which directory this is; see `identity.py`."""
        return self.data_dir / "identity"

    @property
    def identity_temporary(self) -> Path:
        """The next identity, until it is renamed."""
        return self.data_dir / "identity.tmp"

    @property
    def lock(self) -> Path:
        """Held by the one process that may touch anything here."""
        return self.data_dir / "LOCK"

    @property
    def fold(self) -> Path:
        """The fold's RocksDB."""
        return self.data_dir / "fold"

    @property
    def wal(self) -> Path:
        """One directory a WAL shard."""
        return self.data_dir / "wal"

    def wal_shard(self, shard: int) -> Path:
        """Where one WAL shard's files lie."""
        return self.wal / f"{shard:02x}"

    def make_directories(self, fs: Fs, *, shard: int = 0) -> None:
        """Make what is missing down to the WAL shard's directory, durably. The data directory's parent must exist."""
        for directory in (self.data_dir, self.wal, self.wal_shard(shard)):
            if not fs.exists(directory):
                fs.mkdir(directory)
            fs.fsync_dir(directory.parent)


def wal_file(directory: Path, number: int) -> Path:
    """A WAL file of a shard's directory."""
    return directory / f"{number:016x}.wal"


def wal_spare(directory: Path) -> Path:
    """The zero-filled file that becomes the next WAL file."""
    return directory / "spare"


def wal_numbers(names: list[str]) -> list[int]:
    """The numbers of the WAL files among a directory's names, ascending; whatever else lies there is let alone."""
    return sorted(int(match[1], 16) for name in names if (match := _WAL_NAME.fullmatch(name)))
