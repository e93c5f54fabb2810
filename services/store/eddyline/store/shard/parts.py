"""The parts of an open store that its door delegates to, and the figures that they make together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.store.stats import ShardStatus
from eddyline.store.write.admission import DISK_FLOOR, SHORTAGE

if TYPE_CHECKING:
    from eddyline.store.artifacts.artifacts import Artifacts
    from eddyline.store.background.checkpoint import Checkpointer
    from eddyline.store.background.scheduler import Maintenance
    from eddyline.store.fold_repair.accept_loss import SettleFold
    from eddyline.store.fold_repair.verify import VerifyFold
    from eddyline.store.log.batch_cache import BatchCache
    from eddyline.store.log.sources import Sources
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.read.as_of import AsOf
    from eddyline.store.read.find_seq import FindSeq
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.read.key_history import KeyHistory
    from eddyline.store.retention.record_deletes import RecordDeleter
    from eddyline.store.retention.retention import Retention
    from eddyline.store.splits.planner import SplitPlanner
    from eddyline.store.splits.reader import SplitReader
    from eddyline.store.write.engine import Engine


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """What looks into a log's past, hands it out in splits, and takes things out of it."""

    deletes: RecordDeleter
    find_seq: FindSeq
    keys: KeyHistory
    as_of: AsOf
    splits: SplitPlanner
    split_reads: SplitReader


@dataclass(frozen=True, slots=True)
class FoldParts:
    """What reads folds, checks them, settles for what is left of them, and takes them out and in as artifacts."""

    entries: FoldReader
    verify: VerifyFold
    settle: SettleFold
    artifacts: Artifacts


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What was put together when the store was opened; `instance` counts its starts."""

    instance: int
    log: StoredLog
    cache: BatchCache
    retention: Retention
    garbage: Garbage
    checkpointer: Checkpointer
    maintenance: Maintenance
    history: HistoryParts
    folds: FoldParts

    def figures(self, table: TopicTable, sources: Sources, engine: Engine) -> ShardStatus:
        """The shard's own figures. All are counts that are kept: it costs the same however many topics there are."""
        totals = table.totals
        return ShardStatus(
            topic_count=len(table),
            source_count=len(sources),
            wal_bytes=engine.gate.wal_bytes,
            appended_count=engine.appended_count,
            apply_lag_bytes=engine.applier.lag_bytes,
            instance=self.instance,
            dropped_key_count=table.key_budget.dropped_count,
            read_only_reason=unserved_reason(engine),
            stage=self.maintenance.stage,
            checkpoint=self.checkpointer.number,
            segment_count=totals.segment_count,
            segment_bytes=totals.segment_bytes,
            unsegmented_bytes=totals.unsegmented_bytes,
            disk_free_bytes=engine.gate.disk_free_bytes,
            memory_bytes=self.cache.bytes + engine.gate.memory_bytes + sum(c.staged_bytes for c in engine.committers),
            corrupt_count=self.maintenance.corrupt_count + self.folds.entries.corrupt_count,
            wal_shards=len(engine.committers),
            staged_bytes=sum(committer.staged_bytes for committer in engine.committers),
            unsynced_bytes=sum(committer.wal.unsynced_bytes for committer in engine.committers),
            apply_lag_count=engine.applier.lag_records,
            apply_lag_s=engine.applier.lag_s,
            disk_is_low=engine.gate.disk_is_low,
            memory_is_full=engine.gate.memory_is_full,
            resident_bytes=engine.gate.resident_bytes,
            fold_count=totals.fold_count,
            lost_fold_count=totals.lost_fold_count,
        )


def unserved_reason(engine: Engine) -> str:
    """Why not all is served; empty = it is."""
    waits = any(committer.wal.short_of for committer in engine.committers)
    return engine.read_only_reason or (SHORTAGE if waits else DISK_FLOOR if engine.gate.disk_is_low else "")
