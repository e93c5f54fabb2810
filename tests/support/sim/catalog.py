"""A catalog in memory with RocksDB's crash contract, for crash sweeps and seeded simulations.

Its content is stored in the simulated disk, in `SimFs.engines`: the disk's own reboot passes it on to the next process, and
each outcome of a crash has its own copy. Every write is synced: a write that returned survives kill and power. Opening,
loading and writing are one call of the disk each, at which the machine may stop: the write in progress is then stored
completely or not at all.
`fail` makes the next write fail as RocksDB would. Keys and values have the bytes of the real catalog: the codec is the same.
Threading: one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import CatalogLost
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.codec import HEAD_KEY, decode_head
from eddyline.store.catalog.diff import CatalogDiff, KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.store.catalog.catalog import CatalogHead, TopicEntry
    from tests.support.sim.fs import SimFs


class SimCatalog:
    """`eddyline.store.catalog.catalog.Catalog` in memory."""

    def __init__(self, fs: SimFs, path: Path, *, must_exist: bool = False) -> None:
        """Open the catalog at `path` of this disk, or create it.

        Raises:
            CatalogLost: `must_exist`, and the catalog is missing or was never written.
        """
        self._fs = fs
        self._file = str(path)
        self._diff = CatalogDiff(self._file)
        self._refusal = ""
        self._fails: bool | None = None
        stops = fs.step()
        content = fs.engines.get(path)
        if content is None:
            content = {}
            if not must_exist and fs.takes_effect(stops):
                fs.engines[path] = content
        fs.stop(stops)
        if must_exist and HEAD_KEY not in content:
            raise CatalogLost(f"the catalog {path} is missing")
        self._content = content

    def load(self) -> tuple[CatalogHead | None, Iterator[TopicEntry]]:
        self._check_open()
        self._fs.stop(self._fs.step())
        head = self._content.get(HEAD_KEY)
        stored = [KeyValue(key, self._content[key]) for key in sorted(self._content)]
        return (None if head is None else decode_head(head, self._file)), self._diff.read(stored)

    def write(self, head: CatalogHead, changed: Sequence[TopicEntry], removed: Sequence[int]) -> None:
        self._check_open()
        changes = self._diff.changes(head, changed, removed)
        stops = self._fs.step()
        if self._fs.takes_effect(stops) and self._fails is not False:
            self._content.update(changes.puts)
            for key in changes.deletes:
                self._content.pop(key, None)
        self._fs.stop(stops)
        if self._fails is not None:
            self._refusal = "the catalog's disk failed"
            raise CatalogFailed(self._refusal)
        self._diff.commit(changes)

    def close(self) -> None:
        self._refusal = self._refusal or "the catalog is closed"

    def fail(self, *, stored: bool) -> None:
        """Fail the next write, stored or not, and every later one with `CatalogFailed`."""
        self._fails = stored

    def _check_open(self) -> None:
        if self._refusal:
            raise CatalogFailed(self._refusal)
