"""A catalog in memory with RocksDB's crash contract, for crash sweeps and seeded simulations.

What it holds lies on the simulated disk itself, as the state of an engine that is not made of our files: so it goes from one
life to the next with the disk's own reboot, and each outcome of one crash has a copy of its own. Every write is synced: one
that returned survives kill and power. Opening, loading and writing are one call of the disk each, at which the machine may
stop: the write in hand is then there wholly or not at all.
`fail` is the way in which the real one refuses a write. Bytes are those of the real one, through the same codec.
Threading: one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.core.errors import CatalogLost
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.codec import HEAD_KEY, decode_head
from eddyline.store.catalog.diff import CatalogDiff, KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.store.catalog.catalog import CatalogHead, TopicEntry


class SimDisk(Protocol):
    """What it needs of a simulated disk: calls that count, and room for an engine's content by its directory."""

    engines: dict[Path, dict[bytes, bytes]]

    def step(self) -> bool:
        """Count a call; True = the machine stops in it."""

    def takes_effect(self, stops: bool) -> bool:
        """Whether a call that may be the last one still does its work."""

    def stop(self, stops: bool) -> None:
        """Stop the machine, if this is the call."""


class SimCatalog:
    """`eddyline.store.catalog.catalog.Catalog` in memory."""

    def __init__(self, fs: SimDisk, path: Path, *, must_exist: bool = False) -> None:
        """Open, or create, the catalog of this path on this disk.

        Raises:
            CatalogLost: `must_exist`, and there is none, or one that was never written.
        """
        self._fs = fs
        self._file = str(path)
        self._ledger = CatalogDiff(self._file)
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
        return (None if head is None else decode_head(head, self._file)), self._ledger.read(stored)

    def write(self, head: CatalogHead, changed: Sequence[TopicEntry], gone: Sequence[int]) -> None:
        self._check_open()
        changes = self._ledger.changes(head, changed, gone)
        stops = self._fs.step()
        if self._fs.takes_effect(stops) and self._fails is not False:
            self._content.update(changes.puts)
            for key in changes.deletes:
                self._content.pop(key, None)
        self._fs.stop(stops)
        if self._fails is not None:
            self._refusal = "the catalog's disk failed"
            raise CatalogFailed(self._refusal)
        self._ledger.settle(changes)

    def close(self) -> None:
        self._refusal = self._refusal or "the catalog is closed"

    def fail(self, *, stored: bool) -> None:
        """Fail the next write with `CatalogFailed`, stored all the same or not, and everything behind it."""
        self._fails = stored

    def _check_open(self) -> None:
        if self._refusal:
            raise CatalogFailed(self._refusal)
