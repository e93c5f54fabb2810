"""What a fold is to the store: the live value of every key, with the cursor and the writers' positions that go with it.

Two implementations, held to one conformance suite: `eddyline.store.fold.rocksdb` and `eddyline.store.fold.memory`. One
fold serves all KV topics of a store.

I1: one `apply` is atomic: after any crash all of its writes are there or none, and with them the applied seq and the
writers of each, so a cursor never outraces its data. I2: of the writes not yet flushed a power loss keeps some prefix, in
order; the death of the process keeps all of them. I3: a view shows the fold as it was when it was made. I4: a deleted key
has no entry.
Threading: all calls belong to one thread, the fold's, so that a view and the applied seq read after it are of one moment;
but `get`, and a view's pages and close, may run on any thread. Whoever closes the fold has stopped its readers first.
Failure: a write stall is `FoldStalled`: nothing of the call was applied, try again. Any other failure of the engine below
is `FoldFailed`, final until the fold is opened again. A checksum that is wrong on a read is `DataCorrupt`.
Not promised: that an applied write survives power loss before `flush`. The log brings the fold up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.record import Record

VIEWS_MAX: Final = 64
"""Open views a fold. RocksDB sets no bound; each view pins memtables and files that would be freed, and one reader's page is
about a millisecond of the interpreter: 64 of them are a turn of 64 ms. The 65th is refused with `TooManyScans`."""
RETRY_AFTER_MS: Final = 1000
"""When a refused view may come again: most scans end within a second."""


class FoldStalled(Exception):
    """The engine below cannot take a write just now. Nothing of it was applied; the same write may be tried again."""


class FoldFailed(Exception):
    """The engine below is broken. Whether the write in hand was applied is known when the fold is opened again."""


class WriterState(NamedTuple):
    """A writer's current fence, and its position; b"" = none."""

    fence: int
    position: bytes


class FoldWrite(NamedTuple):
    """One frame's effect on one topic: `entries` holds each key once, with its value (`entry.py`) or None = delete."""

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

    def close(self) -> None:
        """Let go of what the view pins. Idempotent, from any thread; waits for a page under way."""


class Fold(Protocol):
    """The folds of one store; see the module's invariants."""

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        """Apply `writes` in order, as one unit, unsynced. Of one topic's writes the last one's applied seq counts.

        Raises:
            FoldStalled, FoldFailed.
        """

    def applied(self, topic_id: int) -> int:
        """The last applied seq; 0 where nothing was."""

    def writers(self, topic_id: int) -> dict[str, WriterState]:
        """The topic's writers by id.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def topics(self) -> dict[int, int]:
        """Every topic that anything was applied to, with its applied seq."""

    def get(self, topic_id: int, keys: Sequence[bytes]) -> list[Record | None]:
        """Live entries of `keys`, in their order; None where a key is not live.

        Raises:
            DataCorrupt, FoldFailed.
        """

    def view(self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"") -> FoldView:
        """Open a view of the keys under `key_prefix` and above `after_key` (exclusive; b"" = from the first on).

        Raises:
            TooManyScans: 64 are open. FoldFailed.
        """

    def delete_topic(self, topic_id: int) -> None:
        """Forget a topic: entries, writers and applied seq, as one unit, unsynced.

        Raises:
            FoldStalled, FoldFailed.
        """

    def flush(self) -> None:
        """Make everything applied so far durable. Slow; lets other threads run.

        Raises:
            FoldFailed.
        """

    def close(self) -> None:
        """Close open views, then the fold. Idempotent; does not flush."""


def key_after(key_prefix: bytes, after_key: bytes) -> bytes:
    """The smallest key that a view from `after_key` (exclusive) under `key_prefix` may show."""
    return max(key_prefix, after_key + b"\0") if after_key else key_prefix


def prefix_end(prefix: bytes) -> bytes:
    """The smallest string above all that start with `prefix`; b"" = there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b""
