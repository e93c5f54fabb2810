"""A fold in memory with RocksDB's crash contract, for seeded simulations and fault tests.

It keeps the promises of `eddyline.store.fold.fold`; its seed decides what that contract leaves open. `power` keeps some
prefix of the writes since the last flush, `kill` keeps all of them; both return the fold that the next process opens, and
the old object must not be used again. `stall` and `fail` make it refuse writes as RocksDB would.
Threading: as the contract says; one thread in practice.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from eddyline.core.errors import TooManyScans
from eddyline.core.records.fold_entry import check_entry, decode_entry
from eddyline.store.fold.entries import entries_to_batch
from eddyline.store.fold.fold import (
    RETRY_AFTER_MS,
    VIEWS_MAX,
    FoldFailed,
    FoldStalled,
    FoldWrite,
    WriterState,
    key_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record
    from eddyline.store.fold.fold import FoldTables


_CLOSED: Final = "the fold is closed"
_FAILED: Final = "the fold's disk failed"


class _Base(NamedTuple):
    topic_id: int
    seq: int


class _Checkpoint(NamedTuple):
    number: int


class _Deletion(NamedTuple):
    topic_id: int


class _Owner(NamedTuple):
    store_id: str


class _Writes(NamedTuple):
    writes: tuple[FoldWrite, ...]


_Change = _Base | _Checkpoint | _Deletion | _Owner | _Writes
"""One atomic change."""


class SimFold:
    """`eddyline.store.fold.fold.Fold` in memory; empty at first.

    `is_cached`: all entries are as in RocksDB's memory, so that a few keys are read without its thread. An odd seed sets it.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.is_cached = seed % 2 == 1
        self._durable = _State()
        self._state = _State()
        self._unsynced: list[_Change] = []
        self._views: set[_SimView] = set()
        self._refusal = ""
        self._stalls_left = 0
        self._fail_next = False

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        if writes:
            self._change(_Writes(tuple(writes)))

    def applied(self, topic_id: int) -> int:
        topic = self._state.topics.get(topic_id)
        return topic.applied_seq if topic else 0

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        topic = self._state.topics.get(topic_id)
        return dict(topic.writers) if topic else {}

    def topics(self) -> dict[int, int]:
        return {topic_id: topic.applied_seq for topic_id, topic in self._state.topics.items()}

    def store_id(self) -> str:
        return self._state.store_id

    def set_store_id(self, store_id: str) -> None:
        self._change(_Owner(store_id))

    def checkpoint(self) -> int:
        return self._state.checkpoint

    def set_checkpoint(self, number: int) -> None:
        self._change(_Checkpoint(number))

    def base_seq(self, topic_id: int) -> int:
        topic = self._state.topics.get(topic_id)
        return topic.base_seq if topic else 0

    def set_base(self, topic_id: int, seq: int) -> None:
        self._change(_Base(topic_id, seq))

    def new_tables(self, topic_id: int, directory: Path) -> SimTables:
        return SimTables()

    def adopt(self, topic_id: int, tables: FoldTables, seq: int, writers: Sequence[tuple[str, WriterState]]) -> None:
        assert isinstance(tables, SimTables)
        self.delete_topic(topic_id)
        self._change(_Writes((FoldWrite(topic_id, 0, tables.entries, []),)))
        self._change(_Writes((FoldWrite(topic_id, seq, [], list(writers)),)))
        self._change(_Base(topic_id, seq))

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        self._check_open()
        entries = self._entries(topic_id)
        return [decode_entry(key, entries[key]) if key in entries else None for key in keys]

    def get_stored(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._stored(topic_id, keys)

    def get_cached(self, topic_id: int, keys: Sequence[bytes], bytes_max: int) -> list[bytes] | None:
        values = [value for value in self._stored(topic_id, keys) if value is not None]
        fits = len(keys) == 1 or sum(map(len, values)) <= bytes_max
        return values if self.is_cached and len(values) == len(keys) and fits else None

    def _stored(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        values = list(map(self._entries(topic_id).get, keys))
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                check_entry(key, value)
        return values

    def view(self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True) -> _SimView:
        self._check_open()
        if counted and sum(view.counted for view in self._views) >= VIEWS_MAX:
            raise TooManyScans(f"{VIEWS_MAX} scans are open", scansMax=VIEWS_MAX, retryAfterMs=RETRY_AFTER_MS)
        entries, first = self._entries(topic_id), key_after(key_prefix, after_key)
        keys = sorted(key for key in entries if key >= first and key.startswith(key_prefix))
        view = _SimView([(key, entries[key]) for key in keys], counted=counted, on_close=self._views.discard)
        self._views.add(view)
        return view

    def delete_topic(self, topic_id: int) -> None:
        self._check_open()
        if topic_id in self._state.topics:
            self._change(_Deletion(topic_id))

    def erase(self, topic_id: int) -> bool:
        self.flush()
        return not self._views

    def sync(self) -> None:
        self.flush()

    def flush(self) -> None:
        self._check_writable()
        for change in self._unsynced:
            self._durable.apply(change)
        self._unsynced.clear()

    def close(self) -> None:
        for view in tuple(self._views):
            view.close()
        self._refusal = self._refusal or _CLOSED

    # --- faults -----------------------------------------------------------------------------------------------

    def stall(self, count: int) -> None:
        """Refuse the next `count` writes with `FoldStalled`."""
        self._stalls_left = count

    def fail(self) -> None:
        """Fail the next write and all later ones with `FoldFailed`; the seed decides whether it applies. Reads go on."""
        self._fail_next = True

    def kill(self) -> SimFold:
        """End the process, after a close or without one: the next process finds every write."""
        self.close()
        successor = SimFold(0)
        successor._random = self._random
        successor.is_cached = self.is_cached
        successor._durable = self._durable
        successor._unsynced = self._unsynced
        successor._state = deepcopy(self._durable)
        for change in self._unsynced:
            successor._state.apply(change)
        return successor

    def power(self) -> SimFold:
        """Lose the power: the next process finds everything flushed and a prefix, by the seed, of the later writes."""
        kept = self._random.randint(0, len(self._unsynced))
        del self._unsynced[kept:]
        successor = self.kill()
        # The bytes that survived are on the disk.
        successor.flush()
        return successor

    def _change(self, change: _Change) -> None:
        self._check_writable()
        if self._stalls_left:
            self._stalls_left -= 1
            raise FoldStalled("Write stall")
        if self._fail_next:
            self._refusal = _FAILED
            if self._random.getrandbits(1):
                self._unsynced.append(change)
            raise FoldFailed(self._refusal)
        self._unsynced.append(change)
        self._state.apply(change)

    def _entries(self, topic_id: int) -> dict[bytes, bytes]:
        topic = self._state.topics.get(topic_id)
        return topic.entries if topic else {}

    def _check_open(self) -> None:
        if self._refusal == _CLOSED:
            raise FoldFailed(self._refusal)

    def _check_writable(self) -> None:
        if self._refusal:
            raise FoldFailed(self._refusal)


class SimTables:
    """`eddyline.store.fold.fold.FoldTables` in memory."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes | None]] = []

    def add(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        self.entries += entries

    def finish(self) -> None:
        pass


class _SimView:
    """A view: a copy of the entries, made when it was opened."""

    def __init__(
        self, entries: list[tuple[bytes, bytes]], *, counted: bool, on_close: Callable[[_SimView], None]
    ) -> None:
        self.counted: Final = counted
        self._entries = entries
        self._next = 0
        self._open = True
        self._on_close = on_close

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        return [decode_entry(key, value) for key, value in self._next_entries(entries_max, bytes_max)]

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        entries = self._next_entries(entries_max, bytes_max)
        return entries_to_batch([key for key, _ in entries], [value for _, value in entries])

    def _next_entries(self, entries_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        assert entries_max > 0
        if not self._open:
            raise FoldFailed("the view is closed")
        page: list[tuple[bytes, bytes]] = []
        bytes_left = bytes_max
        while self._next < len(self._entries) and len(page) < entries_max:
            key, value = self._entries[self._next]
            bytes_left -= len(key) + len(value)
            if bytes_left < 0 and page:
                break
            page.append((key, value))
            self._next += 1
        return page

    def close(self) -> None:
        self._open = False
        self._on_close(self)


@dataclass(slots=True)
class _Topic:
    applied_seq: int = 0
    base_seq: int = 0
    entries: dict[bytes, bytes] = field(default_factory=dict)
    writers: dict[str, WriterState] = field(default_factory=dict)

    def apply(self, write: FoldWrite) -> None:
        self.applied_seq = write.applied_seq
        self.writers.update(write.writers)
        for key, value in write.entries:
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


@dataclass(slots=True)
class _State:
    store_id: str = ""
    checkpoint: int = 0
    topics: dict[int, _Topic] = field(default_factory=dict)

    def apply(self, change: _Change) -> None:
        match change:
            case _Owner(store_id):
                self.store_id = store_id
            case _Base(topic_id, seq):
                self.topics.setdefault(topic_id, _Topic()).base_seq = seq
            case _Checkpoint(number):
                self.checkpoint = number
            case _Deletion(topic_id):
                self.topics.pop(topic_id, None)
            case _Writes(writes):
                for write in writes:
                    self.topics.setdefault(write.topic_id, _Topic()).apply(write)
            case _:
                assert_never(change)
