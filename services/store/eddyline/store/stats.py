"""Figures of a shard: its status, the progress of its recovery, and the distributions and counts for metrics.

Distributions are updated once a group, a write of the fold or a refusal, never once a record.
Threading: event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from eddyline.core.errors import ApplyLag, DiskFloor, MemoryFull, QuotaBytes, ReadOnly, Throttled
from eddyline.core.telemetry.metrics import COUNT_BOUNDS, Histogram


class Stage(IntEnum):
    """Background job in progress. The numbers are on the wire."""

    IDLE = 1
    SEAL = 2
    CHECKPOINT = 3
    MERGE = 4
    REWRITE = 5
    RECLAIM = 6
    BASE = 7
    ERASE = 8
    SCRUB = 9


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """Bytes of log replayed, and to replay in total; a total of 0 = not known yet."""

    replayed_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Status of a shard. `read_only_reason` is empty while writes are served, else e.g. `SYNC_FAILED`.

    `checkpoint` is the number of the last complete one; `unsegmented_bytes` are of records that are in no segment yet;
    `memory_bytes` is the used part of the memory budget; `corrupt_count` counts pieces of files found corrupt since the
    start; of `fold_count` folds `lost_fold_count` are refused to readers. The seven from `staged_bytes` on are for metrics
    alone: `apply_lag_count` in records, `resident_bytes` of the process, 0 = not measured."""

    topic_count: int
    source_count: int
    wal_bytes: int
    appended_count: int
    apply_lag_bytes: int
    instance: int
    dropped_key_count: int
    read_only_reason: str
    stage: Stage = Stage.IDLE
    checkpoint: int = 0
    segment_count: int = 0
    segment_bytes: int = 0
    unsegmented_bytes: int = 0
    disk_free_bytes: int = 0
    memory_bytes: int = 0
    corrupt_count: int = 0
    wal_shards: int = 1
    staged_bytes: int = 0
    unsynced_bytes: int = 0
    apply_lag_count: int = 0
    apply_lag_s: float = 0.0
    disk_is_low: bool = False
    memory_is_full: bool = False
    resident_bytes: int = 0
    fold_count: int = 0
    lost_fold_count: int = 0


REFUSALS: Final = tuple(error.reason for error in (Throttled, ApplyLag, DiskFloor, MemoryFull, QuotaBytes, ReadOnly))
"""Reasons of refusals that do not depend on the append itself, but on the shard's limits and its state."""


class ShardMetrics:
    """Distributions and counts of one shard. `refused` counts appends refused, by each of `REFUSALS`."""

    __slots__ = ("appended_bytes", "apply_s", "commit_s", "group_frames", "refused", "sync_s")

    def __init__(self) -> None:
        self.appended_bytes = 0
        """Bytes of keys, data and the other fields, as the contract counts records."""
        self.refused = dict.fromkeys(REFUSALS, 0)
        self.group_frames = Histogram(COUNT_BOUNDS)
        self.commit_s = Histogram()
        """From the begin of a group until its last frames are passed on."""
        self.sync_s = Histogram()
        """Of it on the writer's thread: write and fdatasync."""
        self.apply_s = Histogram()
        """One write of the fold."""


class Measured(NamedTuple):
    """All figures for a shard's metrics, at one moment. `followed_topic_count` = topics on all FollowTopics streams."""

    figures: ShardStatus
    measures: ShardMetrics
    followed_topic_count: int
