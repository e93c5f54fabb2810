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
from eddyline.store.fold.entry import decode_entry
from eddyline.store.fold.fold import FoldFailed, FoldStalled
from eddyline.store.fold.gather import batch_of
from eddyline.store.fold.meta import TOPIC_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.batch import Batch
    from eddyline.core.record import Record

_CHUNK_ENTRIES: Final = 16
"""Entries taken from RocksDB at a time; what a page leaves of them waits for the next. Fewer are taken where entries are
large, so that it is a quarter of a page at most, and once in a view, where sizes jump, 16 of the largest values: 128 MiB."""


class Scan(NamedTuple):
    """Two iterators of one moment, `items` for the way and the other for what happened at its end; and the options that
    must live as long: they own the upper bound that both read."""

    items: Iterator[tuple[bytes, bytes]]
    iterator: RdictIter
    first: bytes
    options: ReadOptions

    def check_end(self, last_key: bytes | None) -> None:
        """Raises what RocksDB has to say where a damaged block ended `items` behind `last_key` (None = before the first)."""
        self.iterator.seek(self.first if last_key is None else last_key + b"\0")
        if self.iterator.valid():
            raise DataCorrupt("fold: a scan ended before its last entry", file="fold", offset=0)
        self.iterator.status()


def scan_of(family: Rdict, first: bytes, end: bytes) -> Scan:
    """A scan that stands at the first key from `first` (inclusive) to `end` (exclusive; b"" = none)."""
    options = ReadOptions()
    # Whoever drops the iterator, the event loop perhaps, unlinks no files.
    options.set_background_purge_on_iterator_cleanup(True)
    if end:
        options.set_iterate_upper_bound(end)
    items = family.items(from_key=first, read_opt=options)
    return Scan(items, family.iter(options), first, options)  # type: ignore[arg-type]  # raw mode: nothing but bytes


class RocksView:
    """A view: one scan, what was taken from it and not given, and the lock that keeps `close` out of a page."""

    def __init__(self, scan: Scan, *, on_close: Callable[[RocksView], None]) -> None:
        self._scan: Scan | None = scan
        self._on_close = on_close
        self._lock = Lock()
        self._waiting: list[tuple[bytes, bytes]] = []
        self._last_key: bytes | None = None
        self._largest_bytes = 0
        self._ended = False

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        return [decode_entry(key[TOPIC_BYTES:], value) for key, value in self._next(entries_max, bytes_max)]

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        entries = self._next(entries_max, bytes_max)
        return batch_of([key[TOPIC_BYTES:] for key, _ in entries], [value for _, value in entries])

    def _next(self, entries_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        assert entries_max > 0
        with self._lock, translated():
            if self._scan is None:
                raise FoldFailed("the view is closed")
            taken: list[tuple[bytes, bytes]] = []
            bytes_left = bytes_max
            while len(taken) < entries_max and (chunk := self._chunk(self._scan, bytes_left)):
                sizes_of_chunk = [len(key) + len(value) - TOPIC_BYTES for key, value in chunk]
                bytes_left -= sum(sizes_of_chunk)
                self._largest_bytes = max(self._largest_bytes, *sizes_of_chunk)
                taken += chunk
                if bytes_left < 0 or len(taken) > entries_max:
                    while len(taken) > 1 and (bytes_left < 0 or len(taken) > entries_max):
                        self._waiting.append(taken.pop())
                        bytes_left += sizes_of_chunk.pop()
                    self._waiting.reverse()
                    break
        return taken

    def _chunk(self, scan: Scan, bytes_left: int) -> list[tuple[bytes, bytes]]:
        """The next entries, whose last may be too many; none = the end."""
        if self._waiting:
            chunk, self._waiting = self._waiting, []
            return chunk
        if self._ended:
            return []
        fitting = bytes_left // (4 * self._largest_bytes) if self._largest_bytes else 0
        chunk = list(islice(scan.items, max(1, min(_CHUNK_ENTRIES, fitting))))
        if chunk:
            self._last_key = chunk[-1][0]
        else:
            scan.check_end(self._last_key)
            self._ended = True
        return chunk

    def close(self) -> None:
        with self._lock:
            self._scan = None
            self._waiting = []
        self._on_close(self)


@contextmanager
def translated() -> Iterator[None]:
    """The binding's errors as ours. It raises bare `Exception`s, so only their type's exact identity tells them apart."""
    try:
        yield
    except Exception as error:
        words = str(error)
        if type(error) is not Exception and type(error).__module__ != "rocksdict":
            raise
        if "Write stall" in words:
            raise FoldStalled(words) from error
        if words.startswith("Corruption"):
            raise DataCorrupt(f"fold: {words}", file="fold", offset=0) from error
        raise FoldFailed(words) from error
