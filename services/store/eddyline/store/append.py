"""What an append asks of the store, in core values: the request, and the writer's move that it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eddyline.core.batch import Batch
    from eddyline.core.topic import Kind, TopicConfig


class WriterPosition(NamedTuple):
    """A writer's move: it goes from `previous` to `new` in the commit of the records, under `fence`."""

    writer: str
    fence: int
    previous: bytes
    new: bytes


class NewTopic(NamedTuple):
    """How a missing topic is made by an append."""

    kind: Kind
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """One append: a validated batch without seqs, and the conditions under which it is taken.

    `epoch` 0 and `expected_head_seq` None are not checked; an expected version of b"" = the key must not be live;
    `create` None = a missing topic is TopicNotFound. `source` = the batch comes from the topic's own source, by ApplyBatch.
    """

    topic: str
    batch: Batch
    epoch: int = 0
    idempotency_key: str = ""
    expected_head_seq: int | None = None
    expected_versions: tuple[tuple[bytes, bytes], ...] = ()
    writer: WriterPosition | None = None
    create: NewTopic | None = None
    source: bool = False


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """A shard's own figures. `read_only_reason` is empty where writes are served too, else e.g. `SYNC_FAILED`."""

    topic_count: int
    source_count: int
    wal_bytes: int
    appended_count: int
    apply_lag_bytes: int
    instance: int
    dropped_key_count: int
    read_only_reason: str
