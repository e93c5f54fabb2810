"""What a catalog is to the store: all that a checkpoint keeps, so that the log before it need not be replayed.

Topics with their configurations, floors, bitmaps, segments, writers, sources and idempotency keys, and where each WAL shard
is read from. It is part of the truth: what it says and the log after it says nothing of is nowhere else.

Two implementations, held to one conformance suite: `eddyline.store.catalog.rocksdb` and the tests' catalog in memory.

I1: one `write` is atomic and durable: one that returned survives every crash, one that was cut is there wholly or not at
all.
I2: a write replaces the whole of each topic it names, and nothing of any other.
I3: what is loaded was checked, by checksums of its own; no damage is passed on.
Threading: all calls belong to one thread at a time. `write` is slow; most of it is one sync, which lets other threads run.
Failure: any failure of the engine below is `CatalogFailed`, final until the catalog is opened again. Damage is
`DataCorrupt`, at the open or while the topics are loaded.
Not promised: that the values fit each other or the files they name; recovery looks.
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
    """The engine below is broken. Whether the write in hand is stored is known when the catalog is opened again."""


class WalPosition(NamedTuple):
    """Where one WAL shard is read from. All files below `state_number`, and that one's frames below `state_offset`, are
    reflected in the catalog: replay begins there. An offset is left by a replay that was cut off.

    Files from `data_number` on hold frames that no segment has yet; those below `state_number` are only indexed.
    `previous_bytes` is the bytes of frames of file `state_number` - 1; -1 = there is none.
    """

    shard: int
    state_number: int
    data_number: int
    previous_bytes: int
    state_offset: int = 0


class ErasingEntry(NamedTuple):
    """A deleted topic whose records may still be in WAL files and, where it had a fold, in the fold's; and until when."""

    topic_id: int
    due_ms: int
    folds: bool


@dataclass(frozen=True, slots=True)
class CatalogHead:
    """What is about no one topic. `checkpoint` counts the checkpoints that were completed.

    `garbage` are paths relative to the data directory that are unlinked when readers let go: files, or a topic's directory
    with a slash at its end. `erasing` are deleted topics that are not off the disk.
    """

    checkpoint: int
    store_id: str
    next_topic_id: int
    wal: tuple[WalPosition, ...]
    garbage: tuple[str, ...]
    erasing: tuple[ErasingEntry, ...] = ()


KeyEntry: TypeAlias = tuple[bytes, tuple[bytes, int, int, int]]
"""An idempotency key, and what its append became: its content's hash, its first and last seq, its commit time in ms."""


class WriterEntry(NamedTuple):
    """A writer's fence and position, and when it last wrote."""

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
        """True = it says no more than the first format of the catalog can."""
        return not (self.settings or self.paused or self.resync_serial or self.stop)


class BaseEntry(NamedTuple):
    """The fold's base: the file that holds the fold as of `seq`. Where the fold had no entry (`rows` 0) there is no file."""

    seq: int
    generation: int
    rows: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic as of the checkpoint.

    All seqs up to `segmented_seq` are in segments or gone. `deleted` and `gaps` are serialized roaring bitmaps of seqs,
    b"" = empty. `keys` are in the order of their commit. `erase_due_ms` 0 = nothing is to be erased. `base_wanted`: the log
    does not give what the fold has, until a base does. Of `ephemeral_floor` and `compacted_floor` one is 0: no KV topic is
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
        """The head, None where nothing was ever written, and the topics by ascending id.

        Called once, and read to its end before the first write, which must know what it replaces.

        Raises:
            DataCorrupt: what is stored is damaged; by the iterator too. NewerFormat: a later version wrote it.
            CatalogFailed.
        """

    def write(self, head: CatalogHead, changed: Sequence[TopicEntry], gone: Sequence[int]) -> None:
        """Replace the head and the `changed` topics and forget the topics `gone`, as one unit; return when it is durable.

        A topic is in one of the two at most, and once.

        Raises:
            CatalogFailed.
        """

    def close(self) -> None:
        """Close it. Idempotent."""
