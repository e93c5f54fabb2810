"""`ShardApi`: all that the store's own RPCs ask of a shard. `StoreLink`, and the calls that only its server makes.

`eddyline.store.shard.shard.Shard` implements it; `rpc` sees nothing else of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.core.store_link.protocol import StoreLink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
    from eddyline.core.model.deletion import DeleteResult, EraseProgress
    from eddyline.core.model.fold_check import FoldSettled, FoldVerdict, VerifyProgress
    from eddyline.core.model.read import EntryPage, RangePage
    from eddyline.core.model.source import SourceInfo
    from eddyline.core.model.topic import ConfigChange, Kind, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.match import Match
    from eddyline.core.records.record import Gap
    from eddyline.store.log.append import Ack, AppendRequest
    from eddyline.store.splits.model import PlanRequest, SplitFrame, SplitPlan, SplitRead
    from eddyline.store.stats import ShardStatus


class ShardApi(StoreLink, Protocol):
    """One shard in process. All calls on its event loop."""

    def kind_of(self, name: str) -> Kind | None:
        """A topic's kind, None where there is none: what an append's default op depends on. One look-up, no waiting."""

    def source_kind(self, name: str) -> Kind:
        """Return the kind of a source's topic. One look-up, no waiting.

        Raises:
            InvalidName, SourceNotFound.
        """

    async def wait_seq(self, topic: str, seq: int, *, wait_s: float) -> int:
        """Wait until `seq` is applied and visible, at most `wait_s`; the head then, below `seq` where time was up.

        Raises:
            InvalidName, TopicNotFound: there is none, or it was deleted meanwhile.
        """

    async def update_topic(self, name: str, change: ConfigChange, *, if_epoch: int = 0) -> TopicInfo:
        """Change a topic's configuration (`eddyline.core.model.topic.merged`); the topic as it is then.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidConfig, DiskFloor, ReadOnly, CommitUnknown.
        """

    async def list_topics(self, name_prefix: str, after_name: str, limit: int) -> list[TopicInfo]:
        """Up to `limit` topics in byte order of their names, above `after_name`."""

    def erase_topic(self, name: str, *, if_epoch: int = 0) -> AsyncGenerator[EraseProgress, None]:
        """Take what was deleted from a topic before the call off the disk; the last progress, and only it, is `erased`.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
        """

    async def delete_records(
        self, topic: str, *, epoch: int = 0, before_seq: int = 0, match: Match | None = None
    ) -> DeleteResult:
        """Delete live records below `before_seq` (0 = any), that match (None = all), up to the head now.

        Raises:
            InvalidArgument: as `eddyline.core.model.deletion.check_delete`.
            InvalidName, TopicNotFound, EpochMismatch, Throttled, ApplyLag, ReadOnly, CommitUnknown, FoldLost, DataCorrupt.
        """

    async def entry_at(
        self, topic: str, key: bytes, *, at_seq: int | None = None, at_time_ms: int | None = None
    ) -> EntryPage:
        """One key as it was after the record of a seq, or after the last one committed at or before a time: by exactly
        one of the two. The page has one entry (None = not live then), and its state's `fold_seq` is that point.

        Raises:
            InvalidName, TopicNotFound, NotKv, CursorAhead, TimeNotReached, HistoryGone, FoldLost, DataCorrupt.
        """

    def key_history(
        self, topic: str, key: bytes, *, after_seq: int = 0, limit: int = 0, epoch: int = 0
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Revisions of one key above `after_seq`, oldest first, up to the head now, at most `limit` (0 = all); gaps in
        their places. Whoever breaks off closes it.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, CursorAhead, DataCorrupt.
        """

    async def plan_splits(self, topic: str, asked: PlanRequest, *, epoch: int = 0) -> SplitPlan:
        """Cut a topic's log, or what its fold at one point is made of, into splits; one page of them.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidArgument, CursorAhead, DataCorrupt; with `as_of_seq` NotKv,
                FoldLost, HistoryGone.
        """

    def read_split(self, topic: str, asked: SplitRead, *, epoch: int) -> AsyncGenerator[SplitFrame, None]:
        """One split's schema, then its batches and gaps in order, then its counts. Whoever breaks off closes it.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidArgument, CursorAhead, TooManyScans, DataCorrupt; of a split of
                a fold NotKv, FoldLost, HistoryGone.
        """

    def verify_fold(self, topic: str) -> AsyncGenerator[VerifyProgress | FoldVerdict, None]:
        """Compare the fold with what base and log give; the verdict comes last. Whoever breaks off closes it.

        Raises:
            InvalidName, TopicNotFound, NotKv, FoldLost, TooManyScans, ScanExpired, DataCorrupt, DiskFloor (no room for a
                second fold).
        """

    async def settle_fold(self, topic: str, *, if_epoch: int = 0) -> FoldSettled:
        """Make a lost fold of what base and log give; one that is not lost stays as it is.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
        """

    def export_fold(self, topic: str, *, if_epoch: int = 0) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
        """Write the fold as it is now where artifacts go; what was written comes last. Whoever breaks off closes it.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, InvalidArgument (no record yet), FoldLost, TooManyScans,
                ArtifactsNotConfigured, ArtifactsUnreachable, DataCorrupt.
        """

    def import_fold(
        self, topic: str, *, from_topic: str = "", artifact: str = "", if_epoch: int = 0
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        """Make an artifact ("" = the latest) of `from_topic` ("" = of the same name) the fold of a topic that never had a
        record; what it became comes last. Whoever breaks off closes it.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, TopicNotEmpty, ArtifactInvalid, ArtifactNotFound,
                ArtifactMismatch, ArtifactsNotConfigured, ArtifactsUnreachable, TooManyScans, DiskFloor, ReadOnly,
                CommitUnknown.
        """

    async def list_artifacts(self, topic: str) -> list[Artifact]:
        """Artifacts of a topic's name, newest first.

        Raises:
            InvalidName, ArtifactsNotConfigured, ArtifactsUnreachable.
        """

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncGenerator[RangePage, None]:
        """As in `StoreLink`; whoever breaks off closes it, so that its view pins no files."""

    async def list_sources_page(self, after: str, limit: int) -> list[SourceInfo]:
        """Up to `limit` sources in byte order of their names, above `after`."""

    async def stage(self, request: AppendRequest) -> Ack:
        """Stage an append; returns when it has its place in the topic's order. The future is its acknowledgement, and
        is never cancelled by who waits for it: an append that has its place is carried out.

        Raises:
            what the contract lists for AppendRecords, before a seq was assigned; nothing was staged then.
        """

    def status(self) -> ShardStatus:
        """The shard's own figures."""
