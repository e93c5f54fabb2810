"""`StoreLink`: all calls of the other roles to a store, in core values and without protobuf.

Two implementations, gRPC (`eddyline.core.store_link.grpc`) and in-process (`eddyline.store.shard.shard`), pass one
conformance suite, so that a whole cluster runs on one loop in a seeded simulation. Both raise the errors of
`eddyline.core.errors`; a store that cannot be reached is `StoreUnreachable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from eddyline.core.model.read import ALL_RECORDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldImported
    from eddyline.core.model.read import EntryPage, RangePage, ReadResult, RecordFilter, SeqFound
    from eddyline.core.model.source import Lease, Renewal, SourceChange, SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Gap
    from eddyline.core.telemetry.trace_context import SeqTrace


class AppendResult(NamedTuple):
    """An acknowledged append: `first_seq` to `last_seq`, inclusive.

    Both are 0 if the batch was empty or a duplicate by position.
    """

    first_seq: int
    last_seq: int
    epoch: int
    ts_ms: int
    deduplicated: bool = False


@dataclass(frozen=True, slots=True)
class FollowStarted:
    """The topic is followed from `after_seq` (exclusive)."""

    follow_id: int
    topic: TopicInfo
    after_seq: int


@dataclass(frozen=True, slots=True)
class FollowItem:
    """Records or a gap; `next_after_seq` is the cursor after it. `traces` = traced commits among the records.

    `batch_end` = no append lies on both sides of the cursor; False = the last append continues, or this is unknown.
    """

    follow_id: int
    item: Batch | Gap
    next_after_seq: int
    head_seq: int
    traces: tuple[SeqTrace, ...] = ()
    batch_end: bool = False


@dataclass(frozen=True, slots=True)
class FollowLevel:
    """The follower has caught up with the head; sent again if the newest records were deleted before they were sent."""

    follow_id: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class FollowEnded:
    """End of this topic's events, with an error's reason and message."""

    follow_id: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class FollowChanged:
    """The topic's configuration or its `delete_mark` changed.

    Earlier items may contain deleted records, later ones do not.
    """

    follow_id: int
    topic: TopicInfo


FollowEvent = FollowStarted | FollowItem | FollowLevel | FollowEnded | FollowChanged


class Follow(Protocol):
    """One open FollowTopics stream. One task iterates; steps may come from others on the same loop."""

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        """Follow one more topic after `after_seq`; None = from its head on. A `follow_id` in use starts again from there."""

    async def remove(self, follow_id: int) -> None:
        """Stop following one."""

    async def grant(self, credit_bytes: int) -> None:
        """Grant credit for `credit_bytes` more bytes of records; at most 64 MiB may be outstanding."""

    def __aiter__(self) -> AsyncIterator[FollowEvent]:
        """Yield events, ordered within a topic. Ends by StoreUnreachable when the stream breaks."""


class StoreLink(Protocol):
    """One store shard as the other roles call it."""

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        """Create a topic. Raises: InvalidName, TopicExists, QuotaTopics, ReadOnly."""

    async def get_topic(self, name: str) -> TopicInfo:
        """Return one topic. Raises: InvalidName, TopicNotFound."""

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        """Delete a topic with all its data; return its epoch. The conditions are checked in the same step.

        Raises: TopicNotFound, EpochMismatch, TopicNotEmpty, TopicHasSource, ReadOnly.
        """

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        """Commit a source's batch and its position in one frame. `traceparent` = the trace it belongs to; "" = none.

        Raises: SourceNotFound, StaleFence, StalePosition, and the errors of an append.
        """

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        """Append to a topic that has no source. Raises: TopicNotFound, TopicHasSource, and the errors of an append."""

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        """Store a definition; True = it is new. Raises: SourceExists, TopicNotFound, TopicHasSource, TopicNotEmpty."""

    async def get_source(self, name: str) -> SourceInfo:
        """Return one source. Raises: SourceNotFound."""

    async def list_sources(self) -> Sequence[SourceInfo]:
        """Return all sources of the shard, by name."""

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        """Pause or resume (None = unchanged), request a resync. Raises: SourceNotFound, ReadOnly."""

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        """Change a source's policies and dead-letter topic.

        Raises: SourceNotFound, InvalidName, InvalidArgument, ReadOnly.
        """

    async def delete_source(self, name: str) -> None:
        """Delete a source's definition; its topic stays. Raises: SourceNotFound."""

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        """Acquire the lease of a source. Raises: SourceNotFound, LeaseHeld."""

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        """Renew the lease, and report. Raises: SourceNotFound, StaleFence."""

    async def release_lease(self, source: str, *, fence: int) -> None:
        """Release the lease. Raises: SourceNotFound, StaleFence."""

    async def read_records(
        self,
        topic: str,
        *,
        after_seq: int,
        epoch: int = 0,
        limit: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
        record_filter: RecordFilter = ALL_RECORDS,
    ) -> ReadResult:
        """Read the log (0 = defaults of `eddyline.core.model.read`). Raises: TopicNotFound, CursorAhead, DataCorrupt."""

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        """Find the first live record at or after a time, given as exactly one of the two.

        Raises: TopicNotFound, EpochMismatch, DataCorrupt.
        """

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        """Return live entries of `keys`, in their order. Raises: TopicNotFound, NotKv, FoldBehind."""

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        """Yield live entries at one point, at least one page. Raises: TopicNotFound, NotKv, TooManyScans, ScanExpired."""

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        """Return artifacts of a topic's name, newest first.

        Raises: ArtifactInvalid, ArtifactsNotConfigured, ArtifactsUnreachable.
        """

    def import_fold(self, topic: str, *, artifact: str = "") -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        """Start a topic without records from an artifact ("" = the latest).

        Raises: TopicNotEmpty, ArtifactNotFound, ArtifactMismatch, ArtifactInvalid, ArtifactsNotConfigured,
        ArtifactsUnreachable.
        """

    def follow(self) -> AbstractAsyncContextManager[Follow]:
        """Open a FollowTopics stream."""
