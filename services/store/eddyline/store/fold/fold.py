"""Fold interface (a materialized view): the live value of every key, with the applied seq and the writers' positions.

Two implementations, held to one conformance suite: `eddyline.store.fold.rocksdb` and the tests' fold in memory. One fold
serves all KV topics of a store.

I1: one `apply` is atomic: after any crash all of its writes are stored or none, and with them the applied seq and the
writers of each, so a cursor is never ahead of its data. I2: a power loss keeps some prefix, in order, of the writes not
yet flushed; the death of the process keeps all of them. I3: a view shows the fold as it was when it was made. I4: a
deleted key has no entry.
I5: a fold names its store: one with another store's id, or with none while the store has topics, is the wrong directory;
the code that opens it compares. I6: its checkpoint number is written only after all changes before it were applied, so a
fold that lost writes which a sync had made durable shows a number below its catalog's.
Threading: all calls belong to one thread, the fold's, so that a view and the applied seq read after it are of one moment,
or to the event loop while that thread has no job; but `get`, `get_stored`, `get_cached`, `erase`, and a view's pages and
close, may run on any thread. The caller stops these before `close`.
Failure: a write stall is `FoldStalled`: nothing of the call was applied, try again. Any other failure of the engine below
is `FoldFailed`, final until the fold is opened again: by its owner, or, after a mere shortage of descriptors or memory
(`FoldShort`), by its next write; either way a write may be repeated. A wrong checksum on a read is `DataCorrupt`.
Not promised: that an applied write survives power loss before `flush`. Replay of the log restores it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record

VIEWS_MAX: Final = 64
"""Open views of one fold. Default in RocksDB: no bound; each view pins memtables and files that would be freed, and one
reader's page is about a millisecond of the interpreter: 64 of them take turns of 64 ms. The 65th is refused with
`TooManyScans`."""
RETRY_AFTER_MS: Final = 1000
"""Retry delay of a refused view: most scans end within a second."""


class FoldStalled(Exception):
    """The engine below cannot take a write now. Nothing of it was applied; the same write may be repeated."""


class FoldFailed(Exception):
    """The engine below failed. Whether the interrupted write was applied is known when the fold is opened again."""


class FoldShort(FoldFailed):
    """The process is short of descriptors or memory: the next write opens the engine below again, and continues."""


class TemporaryFold(Protocol):
    """A place for one temporary fold. One thread at a time."""

    def open(self) -> Fold:
        """Open an empty fold.

        Raises:
            FoldFailed, OSError: no room, or no permission.
        """

    def close(self) -> None:
        """Close the fold and remove its files. Idempotent."""


STALLS_MAX: Final = 1000
"""Consecutive refusals of one write, each followed by a flush, which waits for the cause of the stall. More means that
the disk has stopped."""


class WriterState(NamedTuple):
    """A writer's current fence and position; b"" = no position."""

    fence: int
    position: bytes


class FoldWrite(NamedTuple):
    """Effect of one frame on one topic: `entries` holds each key once, with its value (`fold_entry.py`) or None =
    delete."""

    topic_id: int
    applied_seq: int
    entries: list[tuple[bytes, bytes | None]]
    writers: list[tuple[str, WriterState]]


class FoldView(Protocol):
    """Entries of one topic in byte order of their keys, as of the view's creation. Its creator must close it."""

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        """Return the next entries: at most `entries_max`, and at most `bytes_max` of keys and values but never less than
        one entry.

        Empty = the end. Rows have op PUT.

        Raises:
            DataCorrupt: a stored value is damaged. FoldFailed: the view or the fold is closed, or the disk failed.
        """

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        """As `next_page`, as a canonical batch, at a third of the cost; no rows = the end."""

    def close(self) -> None:
        """Release the pinned files and memtables. Idempotent, from any thread; waits for a running page."""


class FoldTables(Protocol):
    """A topic's entries to be loaded into a fold in one step, independent of its present entries. One thread at a time."""

    def add(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add entries in ascending order of keys, each with a value.

        Raises:
            FoldFailed: keys are not ascending, or the disk failed.
        """

    def finish(self) -> None:
        """End the input and make it durable.

        Raises:
            FoldFailed.
        """


class ReplayedFold(Protocol):
    """The part of `Fold` that a replay of the log uses; `fsck` replays into one that stores nothing."""

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        """Apply `writes` in order, as one unit, unsynced. A topic's applied seq becomes that of its last write.

        Raises:
            FoldStalled, FoldFailed.
        """

    def applied(self, topic_id: int) -> int:
        """Return the last applied seq; 0 if there is none."""

    def topics(self) -> dict[int, int]:
        """Return the applied seq of every topic with at least one applied write."""

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live entries of `keys`, in their order; None for a key that is not live.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def view(self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True) -> FoldView:
        """Open a view of the keys under `key_prefix` and above `after_key` (exclusive; b"" = from the first).

        A view that is not `counted` is the store's own: open scans of clients never make it fail.

        Raises:
            TooManyScans: 64 counted views are open. FoldFailed.
        """

    def delete_topic(self, topic_id: int) -> None:
        """Delete a topic's entries, writers and applied seq, as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """


class Fold(ReplayedFold, Protocol):
    """The folds of one store; see the module's invariants."""

    def get_stored(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `get`, but return the stored bytes of each entry (`fold_entry.py`), which are checked, not decoded."""

    def get_cached(self, topic_id: int, keys: Sequence[bytes], bytes_max: int) -> list[bytes] | None:
        """As `get_stored`, from memory alone: memtables and block cache. It reads no file, so it never waits for a disk.

        None = not every key is known to be live from memory, or the entries of two keys or more have above `bytes_max`
        bytes: `get_stored` gives the answer.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        """Return the topic's writers by id.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def store_id(self) -> str:
        """Return the id of the store that owns this fold; "" = not set."""

    def set_store_id(self, store_id: str) -> None:
        """Set the id of the owning store; as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """

    def checkpoint(self) -> int:
        """Return the number of the last checkpoint set; 0 = none."""

    def set_checkpoint(self, number: int) -> None:
        """Set the number of the checkpoint whose sync follows; as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """

    def base_seq(self, topic_id: int) -> int:
        """Return the seq of the topic's base, on top of which the log was applied; 0 = from its beginning."""

    def set_base(self, topic_id: int, seq: int) -> None:
        """Record that the topic's entries began as a base at `seq`; `apply` keeps it, `delete_topic` removes it. Unsynced.

        It creates a topic without applied writes, at applied seq 0.

        Raises:
            FoldStalled, FoldFailed.
        """

    def new_tables(self, topic_id: int, directory: Path) -> FoldTables:
        """Start collecting a topic's entries for `adopt`. `directory` is on the fold's disk and serves no other
        purpose; its creator removes it. Any thread."""

    def adopt(self, topic_id: int, tables: FoldTables, seq: int, writers: Sequence[tuple[str, WriterState]]) -> None:
        """Replace all entries of the topic by finished tables: `seq` becomes its applied seq and its base. Unsynced.

        A crash leaves the previous state, or any part of the entries at applied seq 0, or all.

        Raises:
            FoldStalled: try again, with the same tables only if none was taken. FoldFailed.
        """

    def erase(self, topic_id: int) -> bool:
        """Rewrite the topic's data, so that no byte of its deleted and replaced entries is in any of the fold's files.

        It covers deletes before the call, also of the topic itself. Slow: it flushes, then rewrites all of the topic's
        entries; lets other threads run. Return False if old files still exist, because an open view pins them or the
        engine has yet to remove them: call again.

        Raises:
            FoldStalled, FoldFailed, DataCorrupt.
        """

    def sync(self) -> None:
        """Make all applied writes durable, by one sync of the engine's own log; lets other threads run.

        Raises:
            FoldFailed.
        """

    def flush(self) -> None:
        """Make all applied writes durable and write memtables to files. Slow; lets other threads run.

        Raises:
            FoldFailed.
        """

    def close(self) -> None:
        """Close open views, then the fold. Idempotent; does not flush."""


def retry_stalled(fold: Fold, write: Callable[[], None]) -> None:
    """Repeat `write` until the fold accepts it, for callers without a retry of their own; a flush between two attempts
    makes room.

    Raises:
        FoldStalled: for long. FoldFailed.
    """
    for _ in range(STALLS_MAX):
        try:
            write()
        except FoldStalled:
            fold.flush()
        else:
            return
    raise FoldStalled(f"the fold refused a write {STALLS_MAX} times")


def sync_for_checkpoint(fold: Fold, checkpoint: int) -> None:
    """Make all applied writes durable, and store the number of the checkpoint.

    Raises:
        FoldStalled: for long. FoldFailed.
    """
    retry_stalled(fold, partial(fold.set_checkpoint, checkpoint))
    fold.sync()


def key_after(key_prefix: bytes, after_key: bytes) -> bytes:
    """Return the smallest key that a view from `after_key` (exclusive) under `key_prefix` may show."""
    return max(key_prefix, after_key + b"\0") if after_key else key_prefix


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest string above all that start with `prefix`; b"" = there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b""
