"""Reading the fold's RocksDB in order: a scan of a family, and the view that pages through one.

I1: what a scan gives is of the moment of its creation. I2: a scan that a damaged block ended is told from one that is done:
`items` is a third cheaper than an `RdictIter`'s steps but has no status, so a second iterator of the same moment is asked at
the end.
Threading: a view has a lock, held through a page; nothing is acquired under it. Steps hold the GIL.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import Rdict, RdictIter, ReadOptions

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.fold_entry import decode_entry
from eddyline.core.runtime.fs import tells_shortage
from eddyline.store.fold.entries import batch_of
from eddyline.store.fold.fold import FoldFailed, FoldShort, FoldStalled
from eddyline.store.fold.meta_codec import TOPIC_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record

_CHUNK_ENTRIES: Final = 64
_LARGE_BYTES: Final = 16 << 10
"""Entries are taken from RocksDB in runs of 64 that end at a large one, and what a page leaves of a run waits for the next:
1 MiB and one entry at most. A run of 16 costs a tenth more."""


class _Entries(NamedTuple):
    """Keys and values side by side: lists of bytes cost the collector nothing, where pairs do."""

    keys: list[bytes]
    values: list[bytes]


class Scan:
    """Two iterators of one moment, `items` for the way and the other for what happened at its end; and the options that
    must live as long: they own the upper bound that both read.

    It is closed by hand: as long as an iterator lives, in the frames of an error that somebody keeps perhaps, the directory
    stays locked.
    """

    __slots__ = ("_iterator", "_options", "first", "items")

    def __init__(
        self, items: Iterator[tuple[bytes, bytes]], iterator: RdictIter, *, first: bytes, options: ReadOptions
    ) -> None:
        self.items = items
        self.first = first
        self._iterator: RdictIter | None = iterator
        self._options: ReadOptions | None = options

    def check_end(self, last_key: bytes | None) -> None:
        """Raises what RocksDB has to say where a damaged block ended `items` behind `last_key` (None = before the first)."""
        iterator = self._iterator
        assert iterator is not None, "it is open"
        try:
            iterator.seek(self.first if last_key is None else last_key + b"\0")
            if iterator.valid():
                raise DataCorrupt("fold: a scan ended before its last entry", file="fold", offset=0)
            iterator.status()
        finally:
            del iterator

    def close(self) -> None:
        """Let go of what it pins."""
        self.items = iter(())
        self._iterator = self._options = None


def scan_of(family: Rdict, first: bytes, end: bytes) -> Scan:
    """A scan that stands at the first key from `first` (inclusive) to `end` (exclusive; b"" = none)."""
    options = ReadOptions()
    # Whoever drops the iterator, the event loop perhaps, unlinks no files.
    options.set_background_purge_on_iterator_cleanup(True)
    if end:
        options.set_iterate_upper_bound(end)
    items = family.items(from_key=first, read_opt=options)
    # raw mode: nothing but bytes
    return Scan(items, family.iter(options), first=first, options=options)  # type: ignore[arg-type]


class RocksView:
    """A view: one scan, what was taken from it and not given, and the lock that keeps `close` out of a page."""

    def __init__(self, scan: Scan, *, on_close: Callable[[RocksView], None], on_damage: Callable[[], None]) -> None:
        self._scan: Scan | None = scan
        self._on_close = on_close
        self._on_damage = on_damage
        self._lock = Lock()
        self._waiting = _Entries([], [])
        self._last_key: bytes | None = None
        self._ended = False

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        keys, values = self._next(entries_max, bytes_max)
        return [decode_entry(key[TOPIC_BYTES:], value) for key, value in zip(keys, values, strict=True)]

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        keys, values = self._next(entries_max, bytes_max)
        return batch_of(keys, values, key_start=TOPIC_BYTES)

    def _next(self, entries_max: int, bytes_max: int) -> _Entries:
        assert entries_max > 0
        with self._lock, translated(self._on_damage):
            if self._scan is None:
                raise FoldFailed("the view is closed")
            keys, values = taken = self._waiting
            self._waiting = _Entries([], [])
            bytes_left = bytes_max - _size(taken, 0)
            while bytes_left > 0 and len(keys) < entries_max and not self._ended:
                had = len(keys)
                for key, value in islice(self._scan.items, min(_CHUNK_ENTRIES, entries_max - had)):
                    keys.append(key)
                    values.append(value)
                    if len(value) > _LARGE_BYTES:
                        break
                if len(keys) == had:
                    self._scan.check_end(self._last_key)
                    self._ended = True
                    break
                self._last_key = keys[-1]
                bytes_left -= _size(taken, had)
            end = len(keys)
            while end > 1 and (end > entries_max or bytes_left < 0):
                end -= 1
                bytes_left += len(keys[end]) - TOPIC_BYTES + len(values[end])
            self._waiting = _Entries(keys[end:], values[end:])
            del keys[end:], values[end:]
        return taken

    def close(self) -> None:
        with self._lock:
            if self._scan is not None:
                self._scan.close()
            self._scan = None
            self._waiting = _Entries([], [])
        self._on_close(self)


def _size(entries: _Entries, start: int) -> int:
    keys, values = entries.keys[start:], entries.values[start:]
    return sum(map(len, keys)) + sum(map(len, values)) - TOPIC_BYTES * len(keys)


@contextmanager
def translated(on_damage: Callable[[], None]) -> Iterator[None]:
    """The binding's errors as ours. It raises bare `Exception`s, so only their type's exact identity tells them apart.

    `on_damage` is called where the engine found its own files damaged.
    """
    try:
        yield
    except DataCorrupt:
        on_damage()
        raise
    except Exception as error:
        words = str(error)
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        if "Write stall" in words:
            raise FoldStalled(words) from error
        if words.startswith("Corruption"):
            on_damage()
            raise DataCorrupt(f"fold: {words}", file="fold", offset=0) from error
        raise (FoldShort if tells_shortage(words) else FoldFailed)(words) from error
