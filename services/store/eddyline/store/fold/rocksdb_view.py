"""Ordered reads of the fold's RocksDB: a scan of a family, and the view that pages through it.

I1: a scan shows the moment of its creation. I2: a scan ended by a damaged block is distinguished from a complete one:
`items` is a third cheaper than an `RdictIter`'s steps but has no status, so a second iterator of the same moment is
checked at the end.
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
from eddyline.core.runtime.fs import is_shortage_text
from eddyline.store.fold.entries import entries_to_batch
from eddyline.store.fold.fold import FoldFailed, FoldShort, FoldStalled
from eddyline.store.fold.meta_codec import TOPIC_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record

_CHUNK_ENTRIES: Final = 64
_LARGE_BYTES: Final = 16 << 10
"""Entries are read from RocksDB in runs of 64 that end at a large one, and the rest of a run waits for the next page: 1
MiB and one entry at most. Runs of 16 cost a tenth more."""


class EntryLists(NamedTuple):
    """Keys and values as two lists: lists of bytes cost the garbage collector nothing, pairs do."""

    keys: list[bytes]
    values: list[bytes]


class Scan:
    """Two iterators of one moment, `items` for the entries and the other for the status at the end; and their options,
    which must live as long, because they own the upper bound that both read.

    It is closed explicitly: as long as an iterator lives, perhaps in the frames of a stored exception, the directory stays
    locked.
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
        """Raise RocksDB's error if a damaged block ended `items` after `last_key` (None = before the first)."""
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
        """Release the iterators and what they pin."""
        self.items = iter(())
        self._iterator = self._options = None


def scan_of(family: Rdict, first: bytes, end: bytes) -> Scan:
    """Open a scan from the first key at or above `first` up to `end` (exclusive; b"" = none)."""
    options = ReadOptions()
    # A thread that drops the iterator, perhaps the event loop, must not unlink files.
    options.set_background_purge_on_iterator_cleanup(True)
    if end:
        options.set_iterate_upper_bound(end)
    items = family.items(from_key=first, read_opt=options)
    # raw mode: bytes only
    return Scan(items, family.iter(options), first=first, options=options)  # type: ignore[arg-type]


class RocksView:
    """A view: one scan, entries read ahead for the next page, and the lock that keeps `close` out of a page."""

    def __init__(self, scan: Scan, *, on_close: Callable[[RocksView], None], on_damage: Callable[[], None]) -> None:
        self._scan: Scan | None = scan
        self._on_close = on_close
        self._on_damage = on_damage
        self._lock = Lock()
        self._read_ahead = EntryLists([], [])
        self._last_key: bytes | None = None
        self._ended = False

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        keys, values = self._next(entries_max, bytes_max)
        return [decode_entry(key[TOPIC_BYTES:], value) for key, value in zip(keys, values, strict=True)]

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        keys, values = self._next(entries_max, bytes_max)
        return entries_to_batch(keys, values, key_start=TOPIC_BYTES)

    def _next(self, entries_max: int, bytes_max: int) -> EntryLists:
        assert entries_max > 0
        with self._lock, translated(self._on_damage):
            if self._scan is None:
                raise FoldFailed("the view is closed")
            keys, values = page = self._read_ahead
            self._read_ahead = EntryLists([], [])
            bytes_left = bytes_max - _size(page, 0)
            while bytes_left > 0 and len(keys) < entries_max and not self._ended:
                previous_count = len(keys)
                for key, value in islice(self._scan.items, min(_CHUNK_ENTRIES, entries_max - previous_count)):
                    keys.append(key)
                    values.append(value)
                    if len(value) > _LARGE_BYTES:
                        break
                if len(keys) == previous_count:
                    self._scan.check_end(self._last_key)
                    self._ended = True
                    break
                self._last_key = keys[-1]
                bytes_left -= _size(page, previous_count)
            end = len(keys)
            while end > 1 and (end > entries_max or bytes_left < 0):
                end -= 1
                bytes_left += len(keys[end]) - TOPIC_BYTES + len(values[end])
            self._read_ahead = EntryLists(keys[end:], values[end:])
            del keys[end:], values[end:]
        return page

    def close(self) -> None:
        with self._lock:
            if self._scan is not None:
                self._scan.close()
            self._scan = None
            self._read_ahead = EntryLists([], [])
        self._on_close(self)


def _size(entries: EntryLists, start: int) -> int:
    keys, values = entries.keys[start:], entries.values[start:]
    return sum(map(len, keys)) + sum(map(len, values)) - TOPIC_BYTES * len(keys)


@contextmanager
def translated(on_damage: Callable[[], None]) -> Iterator[None]:
    """Translate the binding's errors. It raises bare `Exception`s, so only the exact type distinguishes them.

    `on_damage` is called if the engine found its own files damaged.
    """
    try:
        yield
    except DataCorrupt:
        on_damage()
        raise
    except Exception as error:
        message = str(error)
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        if "Write stall" in message:
            raise FoldStalled(message) from error
        if message.startswith("Corruption"):
            on_damage()
            raise DataCorrupt(f"fold: {message}", file="fold", offset=0) from error
        raise (FoldShort if is_shortage_text(message) else FoldFailed)(message) from error
