"""`ShardApi`: every call that the store's RPCs make on a shard: those of `StoreLink`, and those that only its server makes.

`eddyline.store.shard.shard.Shard` implements it; `rpc` uses nothing else of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.core.store_link.protocol import StoreLink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
    from eddyline.core.model.deletion import DeleteResult, EraseProgress
    from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
    from eddyline.core.model.read import EntryPage, RangePage
    from eddyline.core.model.source import SourceInfo
    from eddyline.core.model.topic import ConfigChange, Kind, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.match import Match
    from eddyline.core.records.record import Gap
    from eddyline.store.log.append import Ack, AppendRequest
    from eddyline.store.read.point_read import StoredPage
    from eddyline.store.splits.model import PlanRequest, SplitFrame, SplitPlan, SplitRead
    from eddyline.store.stats import ShardStatus


class ShardApi(StoreLink, Protocol):
    """One shard in process. All calls on its event loop."""

    def kind_of(self, name: str) -> Kind | None:
        """Return a topic's kind, which decides the default op of an append; None = there is no such topic. One look-up, no
        waiting."""

    def source_kind(self, name: str) -> Kind:
        """Return the kind of a source's topic. One look-up, no waiting.

        Raises:
            InvalidName, SourceNotFound.
        """

    async def wait_seq(self, topic: str, seq: int, *, wait_s: float) -> int:
        """Wait until `seq` is applied and visible, at most `wait_s`. Return the head, which is below `seq` if the time ran
        out.

        Raises:
            InvalidName, TopicNotFound: there is no such topic, or it was deleted meanwhile.
        """

    async def update_topic(self, name: str, change: ConfigChange, *, if_epoch: int = 0) -> TopicInfo:
        """Change a topic's configuration (`eddyline.core.model.topic.merged`); return the changed topic.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidConfig, DiskFloor, ReadOnly, CommitUnknown.
        """

    async def list_topics(self, name_prefix: str, after_name: str, limit: int) -> list[TopicInfo]:
        """Return up to `limit` topics above `after_name`, in byte order of their names."""

    def erase_topic(self, name: str, *, if_epoch: int = 0) -> AsyncGenerator[EraseProgress, None]:
        """Erase from the disk the records of a topic that were deleted before the call. Only the last progress is `erased`.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
        """

    async def delete_records(
        self, topic: str, *, epoch: int = 0, before_seq: int = 0, match: Match | None = None
    ) -> DeleteResult:
        """Delete live records below `before_seq` (0 = any) that match (None = all), up to the current head.

        Raises:
            InvalidArgument: as `eddyline.core.model.deletion.check_delete`.
            InvalidName, TopicNotFound, EpochMismatch, Throttled, ApplyLag, ReadOnly, CommitUnknown, FoldLost, DataCorrupt.
        """

    async def get_stored_entries(self, topic: str, keys: Sequence[bytes]) -> StoredPage:
        """Return live entries of `keys` in their order, as they are stored; their form is checked.

        Raises:
            InvalidName, TopicNotFound, NotKv, InvalidArgument (no key, too many, one too long, or more entries than a
                message has room for), FoldLost, DataCorrupt.
        """

    def get_cached_entries(self, topic: str, keys: Sequence[bytes]) -> StoredPage | None:
        """As `get_stored_entries`, of few keys that are live and in memory; None = the call must wait.

        Raises:
            as `get_stored_entries`.
        """

    async def entry_at(
        self, topic: str, key: bytes, *, at_seq: int | None = None, at_time_ms: int | None = None
    ) -> EntryPage:
        """Return one key as it was after the record of a seq, or after the last record committed at or before a time:
        exactly one of the two is given. The page has one entry (None = not live then); its state's `fold_seq` is that
        point.

        Raises:
            InvalidName, TopicNotFound, NotKv, CursorAhead, TimeNotReached, HistoryGone, FoldLost, DataCorrupt.
        """

    def key_history(
        self, topic: str, key: bytes, *, after_seq: int = 0, limit: int = 0, epoch: int = 0
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Yield revisions of one key above `after_seq`, oldest first, up to the current head, at most `limit` (0 = all),
        with gaps in their places. A caller that breaks off must close it.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, CursorAhead, DataCorrupt.
        """

    async def plan_splits(self, topic: str, request: PlanRequest, *, epoch: int = 0) -> SplitPlan:
        """Cut a topic's log, or base and log of its fold at one point, into splits; return one page of them.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidArgument, CursorAhead, DataCorrupt; with `as_of_seq` NotKv,
                FoldLost, HistoryGone.
        """

    def read_split(self, topic: str, request: SplitRead, *, epoch: int) -> AsyncGenerator[SplitFrame, None]:
        """Yield one split's schema, then its batches and gaps in order, then its counts. A caller that breaks off must
        close it.

        Raises:
            InvalidName, TopicNotFound, EpochMismatch, InvalidArgument, CursorAhead, TooManyScans, DataCorrupt; of a split of
                a fold NotKv, FoldLost, HistoryGone.
        """

    def verify_fold(self, topic: str) -> AsyncGenerator[FoldCheckProgress | FoldVerdict, None]:
        """Compare the fold with its rebuild from base and log; the verdict comes last. A caller that breaks off must close
        it.

        Raises:
            InvalidName, TopicNotFound, NotKv, FoldLost, TooManyScans, ScanExpired, DataCorrupt, DiskFloor (no room for a
                second fold).
        """

    async def settle_fold(self, topic: str, *, if_epoch: int = 0) -> FoldSettled:
        """Rebuild a lost fold from base and log, accepting the loss of the rest; a fold that is not lost stays as it is.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
        """

    def export_fold(self, topic: str, *, if_epoch: int = 0) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
        """Export the current fold as an artifact; its description comes last. A caller that breaks off must close it.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, InvalidArgument (no record yet), FoldLost, TooManyScans,
                ArtifactsNotConfigured, ArtifactsUnreachable, DataCorrupt.
        """

    def import_fold(
        self, topic: str, *, from_topic: str = "", artifact: str = "", if_epoch: int = 0
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        """Import an artifact ("" = the latest) of `from_topic` ("" = of the same name) as the fold of a topic that never
        had a record; the result comes last.

        Raises:
            InvalidName, TopicNotFound, NotKv, EpochMismatch, TopicNotEmpty, ArtifactInvalid, ArtifactNotFound,
                ArtifactMismatch, ArtifactsNotConfigured, ArtifactsUnreachable, TooManyScans, DiskFloor, ReadOnly,
                CommitUnknown.
        """

    async def list_artifacts(self, topic: str) -> list[Artifact]:
        """Return the artifacts of a topic's name, newest first.

        Raises:
            InvalidName, ArtifactsNotConfigured, ArtifactsUnreachable.
        """

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncGenerator[RangePage, None]:
        """As in `StoreLink`. A caller that breaks off must close it, so that its view pins no files."""

    async def list_sources_page(self, after: str, limit: int) -> list[SourceInfo]:
        """Return up to `limit` sources above `after`, in byte order of their names."""

    async def stage(self, request: AppendRequest) -> Ack:
        """Stage an append; return when it has its place in the topic's order. The future is its acknowledgement; cancelling
        a waiter does not cancel it: an append that has its place is carried out.

        Raises:
            the contract's errors of AppendRecords, before a seq was assigned; nothing was staged then.
        """

    def stage_now(self, request: AppendRequest) -> Ack | None:
        """As `stage`, in this step of the loop; None = it must wait, and nothing was staged.

        Raises:
            as `stage`.
        """

    def status(self) -> ShardStatus:
        """Return the shard's status."""
