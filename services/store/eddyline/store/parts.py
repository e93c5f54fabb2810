"""The parts of an open store that its door delegates to, and the figures that they make together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.store.figures import StoreFigures
from eddyline.store.write_gate import DISK_FLOOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.store.artifacts.artifacts import Artifacts
    from eddyline.store.as_of import AsOf
    from eddyline.store.checkpoint import Checkpointer
    from eddyline.store.deletes import Deletes
    from eddyline.store.engine import Engine
    from eddyline.store.entries import Entries
    from eddyline.store.find_seq import FindSeq
    from eddyline.store.garbage import Garbage
    from eddyline.store.history import KeyHistory
    from eddyline.store.log.cache import BatchCache
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.maintenance import Maintenance
    from eddyline.store.retention import Retention
    from eddyline.store.settle_fold import SettleFold
    from eddyline.store.sources import Sources
    from eddyline.store.split_read import SplitReader
    from eddyline.store.splits import SplitPlanner
    from eddyline.store.stored_log import StoredLog
    from eddyline.store.verify_fold import VerifyFold


TOPICS_A_TURN: Final = 256
"""Topics that are looked at before others get the loop: 1 ms."""


class LogTotals(NamedTuple):
    """Segment files of all topics, their bytes, and the bytes of records that are in none."""

    segment_count: int
    segment_bytes: int
    unsegmented_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """What looks into a log's past, hands it out in splits, and takes things out of it."""

    deletes: Deletes
    find_seq: FindSeq
    keys: KeyHistory
    as_of: AsOf
    splits: SplitPlanner
    split_reads: SplitReader


@dataclass(frozen=True, slots=True)
class FoldParts:
    """What reads folds, checks them, settles for what is left of them, and takes them out and in as artifacts."""

    entries: Entries
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

    def figures(
        self, table: TopicTable, sources: Sources, engine: Engine, totals: LogTotals | None = None
    ) -> StoreFigures:
        """The shard's own figures. Without `totals` it walks through all topics: 3 us each."""
        totals = totals or _totals(table.with_segments(), table.with_frames())
        return StoreFigures(
            topic_count=len(table),
            source_count=len(sources),
            wal_bytes=sum(committer.wal.bytes_total for committer in engine.committers),
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
            disk_is_low=engine.gate.disk_is_low,
            memory_is_full=engine.gate.memory_is_full,
            resident_bytes=engine.gate.resident_bytes,
        )


async def totals_in_turns(table: TopicTable) -> LogTotals:
    """Of all topics, some at a time: others have turns between, so that the sum is of no single moment."""
    found = LogTotals(0, 0, 0)
    for topics, of_segments in ((list(table.segmented), True), (list(table.framed), False)):
        for start in range(0, len(topics), TOPICS_A_TURN):
            live = [topic for topic in topics[start : start + TOPICS_A_TURN] if not topic.deleted]
            part = _totals(live, ()) if of_segments else _totals((), live)
            found = LogTotals(*map(add, found, part))
            await asyncio.sleep(0)
    return found


def _totals(segmented: Iterable[Topic], framed: Iterable[Topic]) -> LogTotals:
    segments = [topic.segments for topic in segmented]
    return LogTotals(
        sum(map(len, segments)),
        sum(each.file_bytes for each in segments),
        sum(topic.index.frame_bytes for topic in framed),
    )


def unserved_reason(engine: Engine) -> str:
    """Why not all is served; empty = it is."""
    return engine.read_only_reason or (DISK_FLOOR if engine.gate.disk_is_low else "")
