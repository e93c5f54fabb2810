"""What a fold is to the store: the live value of every key, with the cursor and the writers' positions that go with it.

Two implementations, held to one conformance suite: `eddyline.store.fold.rocksdb` and the tests' fold in memory. One
fold serves all KV topics of a store.

I1: one `apply` is atomic: after any crash all of its writes are there or none, and with them the applied seq and the
writers of each, so a cursor never outraces its data. I2: of the writes not yet flushed a power loss keeps some prefix, in
order; the death of the process keeps all of them. I3: a view shows the fold as it was when it was made. I4: a deleted key
has no entry.
I5: a store's folds are its own: one that names another store, or none while the store has topics, belongs elsewhere, and
whoever opens it compares. I6: its checkpoint is never above what was applied before it was told, so that a fold which has
lost what a sync had made durable shows a number below its catalog's.
Threading: all calls belong to one thread, the fold's, so that a view and the applied seq read after it are of one moment;
but `get`, `erase`, and a view's pages and close, may run on any thread. Whoever closes the fold has stopped these first.
Failure: a write stall is `FoldStalled`: nothing of the call was applied, try again. Any other failure of the engine below
is `FoldFailed`, final until the fold is opened again: by its owner, or, where it was but short of descriptors or memory
(`FoldShort`), by its next write; a write may be made again either way. A checksum that is wrong on a read is `DataCorrupt`.
Not promised: that an applied write survives power loss before `flush`. The log brings the fold up again.
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
"""Open views a fold. RocksDB sets no bound; each view pins memtables and files that would be freed, and one reader's page is
about a millisecond of the interpreter: 64 of them are a turn of 64 ms. The 65th is refused with `TooManyScans`."""
RETRY_AFTER_MS: Final = 1000
"""When a refused view may come again: most scans end within a second."""


class FoldStalled(Exception):
    """The engine below cannot take a write just now. Nothing of it was applied; the same write may be tried again."""


class FoldFailed(Exception):
    """The engine below is broken. Whether the write in hand was applied is known when the fold is opened again."""


class FoldShort(FoldFailed):
    """The process is short of descriptors or memory: the next write opens the engine below again, and goes on."""


class Scratch(Protocol):
    """The place for one fold that is thrown away. One thread at a time."""

    def open(self) -> Fold:
        """An empty fold.

        Raises:
            FoldFailed, OSError: there is no room, or no right.
        """

    def close(self) -> None:
        """Close and remove what is there. Idempotent."""


STALLS_MAX: Final = 1000
"""Refusals of one write in a row, each followed by a flush, which waits for what stalls. More is a disk that stands."""


class WriterState(NamedTuple):
    """A writer's current fence, and its position; b"" = none."""

    fence: int
    position: bytes


class FoldWrite(NamedTuple):
    """One frame's effect on one topic: `entries` holds each key once, with its value (`fold_entry.py`) or None = delete."""

    topic_id: int
    applied_seq: int
    entries: list[tuple[bytes, bytes | None]]
    writers: list[tuple[str, WriterState]]


class FoldView(Protocol):
    """Entries of one topic in byte order of their keys, as they were when the view was made. Its maker closes it."""

    def next_page(self, entries_max: int, bytes_max: int) -> list[Record]:
        """The next entries: at most `entries_max`, and at most `bytes_max` of keys and values but never less than one entry.

        Empty = the end. Rows have op PUT.

        Raises:
            DataCorrupt: what is stored is damaged. FoldFailed: the view or the fold is closed, or the disk failed.
        """

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        """As `next_page`, as a canonical batch, at a third of the cost; no rows = the end."""

    def close(self) -> None:
        """Let go of what the view pins. Idempotent, from any thread; waits for a page under way."""


class Tables(Protocol):
    """A topic's entries on their way into a fold, all at once, beside whatever it has. One thread at a time."""

    def add(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """More of them, in ascending order of keys, each with a value.

        Raises:
            FoldFailed: keys are not ascending, or the disk failed.
        """

    def finish(self) -> None:
        """No more come; what there is is durable.

        Raises:
            FoldFailed.
        """


class ReplayedFold(Protocol):
    """The part of `Fold` that a replay of the log uses; `fsck` replays into one that stores nothing."""

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        """Apply `writes` in order, as one unit, unsynced. Of one topic's writes the last one's applied seq counts.

        Raises:
            FoldStalled, FoldFailed.
        """

    def applied(self, topic_id: int) -> int:
        """The last applied seq; 0 where nothing was."""

    def topics(self) -> dict[int, int]:
        """Every topic that anything was applied to, with its applied seq."""

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        """Live entries of `keys`, in their order; None where a key is not live.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def view(self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True) -> FoldView:
        """Open a view of the keys under `key_prefix` and above `after_key` (exclusive; b"" = from the first on).

        One that is not `counted` is the store's own, whose work clients' scans must not refuse.

        Raises:
            TooManyScans: 64 counted ones are open. FoldFailed.
        """

    def delete_topic(self, topic_id: int) -> None:
        """Forget a topic: entries, writers and applied seq, as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """


class Fold(ReplayedFold, Protocol):
    """The folds of one store; see the module's invariants."""

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        """The topic's writers by id.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def store_id(self) -> str:
        """The id of the store that this fold belongs to; "" = it was told none."""

    def set_store_id(self, store_id: str) -> None:
        """Tell the fold whose it is; as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """

    def checkpoint(self) -> int:
        """The last checkpoint that it was told; 0 = none."""

    def set_checkpoint(self, number: int) -> None:
        """Tell the fold which checkpoint it is about to be synced for; as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """

    def base_seq(self, topic_id: int) -> int:
        """The seq that the topic's log was applied on top of; 0 = from its beginning."""

    def set_base(self, topic_id: int, seq: int) -> None:
        """Say that the topic's entries began as a base at `seq`; kept by `apply`, forgotten with the topic. Unsynced.

        A topic that nothing was applied to is one from now on, at applied seq 0.

        Raises:
            FoldStalled, FoldFailed.
        """

    def new_tables(self, topic_id: int, directory: Path) -> Tables:
        """Where entries of a topic gather until `adopt` takes them. `directory`, on the fold's own disk, is there for no
        other purpose and is removed by its maker. Any thread."""

    def adopt(self, topic_id: int, tables: Tables, seq: int, writers: Sequence[tuple[str, WriterState]]) -> None:
        """Put finished tables in place of all that the topic had: applied up to `seq`, its base from then on. Unsynced.

        A crash leaves what was there before, or any part of the entries at applied seq 0, or all.

        Raises:
            FoldStalled: it may be tried again, with the same tables only where nothing was taken. FoldFailed.
        """

    def erase(self, topic_id: int) -> bool:
        """Rewrite what holds the topic, so that no byte of its deleted and replaced entries is in any of the fold's files.

        What was deleted before the call is meant; the topic itself may be. Slow: it flushes, then rewrites all of the
        topic's entries; lets other threads run. False = old files are still there, as a view that was open pins them, or
        the engine has yet to remove them: call again.

        Raises:
            FoldStalled, FoldFailed, DataCorrupt.
        """

    def sync(self) -> None:
        """Make everything applied so far durable, by one sync of the engine's own log; lets other threads run.

        Raises:
            FoldFailed.
        """

    def flush(self) -> None:
        """Make everything applied so far durable. Slow; lets other threads run.

        Raises:
            FoldFailed.
        """

    def close(self) -> None:
        """Close open views, then the fold. Idempotent; does not flush."""


def until_taken(fold: Fold, write: Callable[[], None]) -> None:
    """Write, where nobody can be told to come again; a flush between two tries makes room.

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


def sync_for(fold: Fold, checkpoint: int) -> None:
    """Make all that was applied durable, and let the fold know for which checkpoint.

    Raises:
        FoldStalled: for long. FoldFailed.
    """
    until_taken(fold, partial(fold.set_checkpoint, checkpoint))
    fold.sync()


def key_after(key_prefix: bytes, after_key: bytes) -> bytes:
    """The smallest key that a view from `after_key` (exclusive) under `key_prefix` may show."""
    return max(key_prefix, after_key + b"\0") if after_key else key_prefix


def prefix_end(prefix: bytes) -> bytes:
    """The smallest string above all that start with `prefix`; b"" = there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b""
