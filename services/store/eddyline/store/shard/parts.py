"""Parts of an open shard, and the status that they add up to."""

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
    from eddyline.store.limits.disk_guard import DiskGuard
    from eddyline.store.limits.memory_guard import MemoryGuard
    from eddyline.store.log.batch_cache import BatchCache
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log_io.garbage import Garbage
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.read.as_of import AsOf
    from eddyline.store.read.find_seq import FindSeq
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.read.key_history import KeyHistory
    from eddyline.store.read.log_reader import LogReader
    from eddyline.store.retention.record_deletes import RecordDeleter
    from eddyline.store.retention.retention import Retention
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.splits.planner import SplitPlanner
    from eddyline.store.splits.reader import SplitReader
    from eddyline.store.write.engine import Engine


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """Parts that read a log's past, cut it into splits, or delete from it."""

    deletes: RecordDeleter
    find_seq: FindSeq
    keys: KeyHistory
    as_of: AsOf
    splits: SplitPlanner
    split_reads: SplitReader


@dataclass(frozen=True, slots=True)
class FoldParts:
    """Parts that verify folds, accept the loss of one, and export or import it as an artifact."""

    verify: VerifyFold
    settle: SettleFold
    artifacts: Artifacts


@dataclass(frozen=True, slots=True)
class ShardParts:
    """Every part of an open shard, built by `eddyline.store.shard.assembly`."""

    engine: Engine
    sources: SourceTable
    entries: FoldReader
    reader: LogReader
    log: StoredLog
    cache: BatchCache
    retention: Retention
    garbage: Garbage
    checkpointer: Checkpointer
    maintenance: Maintenance
    disk_guard: DiskGuard
    memory_guard: MemoryGuard | None
    history: HistoryParts
    folds: FoldParts
    background: Worker

    def status(self, instance: int) -> ShardStatus:
        """Return the shard's status after start number `instance`. All figures are running counts: the cost does not grow
        with the number of topics."""
        engine, table = self.engine, self.engine.table
        gate, applier, committers, totals = engine.gate, engine.applier, engine.committers, table.totals
        staged_bytes = sum(committer.staged_bytes for committer in committers)
        return ShardStatus(
            topic_count=len(table),
            source_count=len(self.sources),
            wal_bytes=gate.wal_bytes,
            appended_count=engine.appended_count,
            apply_lag_bytes=applier.lag_bytes,
            instance=instance,
            dropped_key_count=table.key_budget.dropped_count,
            read_only_reason=unserved_reason(engine),
            stage=self.maintenance.stage,
            checkpoint=self.checkpointer.number,
            segment_count=totals.segment_count,
            segment_bytes=totals.segment_bytes,
            unsegmented_bytes=totals.unsegmented_bytes,
            disk_free_bytes=gate.disk_free_bytes,
            memory_bytes=self.cache.bytes + gate.memory_bytes + staged_bytes,
            corrupt_count=self.maintenance.corrupt_count + self.entries.corrupt_count,
            wal_shards=len(committers),
            staged_bytes=staged_bytes,
            unsynced_bytes=sum(committer.wal.unsynced_bytes for committer in committers),
            apply_lag_count=applier.lag_records,
            apply_lag_s=applier.lag_s,
            disk_is_low=gate.disk_is_low,
            memory_is_full=gate.memory_is_full,
            resident_bytes=gate.resident_bytes,
            fold_count=totals.fold_count,
            lost_fold_count=totals.lost_fold_count,
        )


def unserved_reason(engine: Engine) -> str:
    """Return why the shard does not take all appends; empty = it does."""
    waits = any(committer.wal.short_of for committer in engine.committers)
    return engine.read_only_reason or (SHORTAGE if waits else DISK_FLOOR if engine.gate.disk_is_low else "")
