"""Place for a second fold during a check: a directory of its own, outside the data directory.

I1: one fold at a time. I2: the remains of a dead process are removed at the next start, and at each use.
Threading: one thread at a time, blocking.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from eddyline.store.fold.rocksdb import RocksFold

if TYPE_CHECKING:
    from pathlib import Path


class RocksTemporaryFold:
    """`eddyline.store.fold.fold.TemporaryFold` in a dedicated directory."""

    def __init__(self, path: Path, *, memory_bytes: int = 0) -> None:
        self._path = path
        self._memory_bytes = memory_bytes
        self._fold: RocksFold | None = None

    def open(self) -> RocksFold:
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fold = RocksFold(self._path, memory_bytes=self._memory_bytes)
        return self._fold

    def close(self) -> None:
        if self._fold is not None:
            self._fold.close()
            self._fold = None
        shutil.rmtree(self._path, ignore_errors=True)
