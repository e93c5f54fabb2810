"""Catalog interface: the state that a checkpoint keeps, so that the log before it need not be replayed.

It holds the topics with their configurations, floors, bitmaps, segments, writers, sources and idempotency keys, and the
replay position of each WAL shard. It is part of the truth: state that is neither in it nor in the log after it is lost.

Two implementations, held to one conformance suite: `eddyline.store.catalog.rocksdb` and the tests' catalog in memory.

I1: one `write` is atomic and durable: a write that returned survives every crash, an interrupted one is stored completely
or not at all.
I2: a write replaces each topic it names completely, and changes no other topic.
I3: loaded values were verified by their own checksums; damage is never passed on.
Threading: all calls belong to one thread at a time. `write` is slow; most of it is one sync, which lets other threads run.
Failure: any failure of the engine below is `CatalogFailed`, final until the catalog is opened again. Damage is
`DataCorrupt`, raised at the open or while the topics are loaded.
Not promised: that the values are consistent with each other or with the files they name; recovery checks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eddyline.core.model.source import SourceStop
    from eddyline.core.model.topic import Kind, TopicConfig
    from eddyline.store.storage.segment.footer import SegmentSummary


class CatalogFailed(Exception):
    """The engine below failed. Whether the interrupted write is stored is known when the catalog is opened again."""


class WalPosition(NamedTuple):
    """Replay position of one WAL shard. The catalog reflects all files below `state_number`, and that one's frames below
    `state_offset`: replay begins there. A replay that was interrupted leaves an offset.

    Files from `data_number` on hold frames that no segment has yet; those below `state_number` are only indexed.
    `previous_bytes` is the bytes of frames of file `state_number` - 1; -1 = there is none.
    """

    shard: int
    state_number: int
    data_number: int
    previous_bytes: int
    state_offset: int = 0


class ErasingEntry(NamedTuple):
    """A deleted topic whose records may still be in WAL files and, if `folds`, in the fold's files, until `due_ms`."""

    topic_id: int
    due_ms: int
    folds: bool


@dataclass(frozen=True, slots=True)
class CatalogHead:
    """State that belongs to no single topic. `checkpoint` counts the completed checkpoints.

    `garbage` are paths relative to the data directory that are unlinked when their last reader closes: files, or a topic's
    directory with a slash at its end. `erasing` are deleted topics that are not yet off the disk.
    """

    checkpoint: int
    store_id: str
    next_topic_id: int
    wal: tuple[WalPosition, ...]
    garbage: tuple[str, ...]
    erasing: tuple[ErasingEntry, ...] = ()


KeyEntry: TypeAlias = tuple[bytes, tuple[bytes, int, int, int]]
"""An idempotency key and its append: hash of the content, first and last seq, commit time in ms."""


class WriterEntry(NamedTuple):
    """A writer's fence and position, and the time of its last write."""

    writer: str
    fence: int
    position: bytes
    last_ms: int


class SourceEntry(NamedTuple):
    """A topic's source, and the last lease given."""

    name: str
    bucket: str
    fence: int
    holder: str
    lease_ms: int
    settings: str = ""
    paused: bool = False
    resync_serial: int = 0
    stop: SourceStop | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the first format of the catalog can store it."""
        return not (self.settings or self.paused or self.resync_serial or self.stop)


class BaseEntry(NamedTuple):
    """The fold's base: a file with the fold as of `seq`. An empty fold (`rows` 0) has no file."""

    seq: int
    generation: int
    rows: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic as of the checkpoint.

    All seqs up to `segmented_seq` are in segments or deleted. `deleted` and `gaps` are serialized roaring bitmaps of seqs,
    b"" = empty. `keys` are in commit order. `erase_due_ms` 0 = nothing is to be erased. `base_wanted`: the log cannot
    rebuild the fold until a base is written. One of `ephemeral_floor` and `compacted_floor` is 0: no KV topic is
    EPHEMERAL.
    """

    id: int
    name: str
    kind: Kind
    config: TopicConfig
    config_version: int
    create_ts_ms: int
    head_seq: int
    last_ts_ms: int
    reserved_seq: int
    has_records: bool
    cap_floor: int
    ttl_floor: int
    ephemeral_floor: int
    delete_floor: int
    record_bytes: int
    segmented_seq: int
    segments: tuple[SegmentSummary, ...]
    next_generation: int
    base: BaseEntry | None
    fold_lost: bool
    deleted: bytes
    gaps: bytes
    erase_due_ms: int
    writers: tuple[WriterEntry, ...]
    source: SourceEntry | None
    keys: tuple[KeyEntry, ...]
    base_wanted: bool = False
    compacted_floor: int = 0


class Catalog(Protocol):
    """The catalog of one store; see the module's invariants."""

    def load(self) -> tuple[CatalogHead | None, Iterator[TopicEntry]]:
        """Return the head, None if nothing was ever written, and the topics by ascending id.

        Called once, and read to its end before the first write, which must know what it replaces.

        Raises:
            DataCorrupt: the stored values are damaged; the iterator raises it too. NewerFormat: a later version wrote
                them.
            CatalogFailed.
        """

    def write(self, head: CatalogHead, changed: Sequence[TopicEntry], removed: Sequence[int]) -> None:
        """Replace the head and the `changed` topics and remove the topics `removed`, as one unit; return when it is durable.

        A topic appears in one of the two at most, and once.

        Raises:
            CatalogFailed.
        """

    def close(self) -> None:
        """Close the catalog. Idempotent."""
