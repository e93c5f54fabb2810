"""Metrics of a store: its status and distributions, every metric from the start on, recovery included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.metrics import MetricPoint, counter, counters, gauge, histogram, one_of
from eddyline.core.telemetry.server_metrics import ServerCounts, ServerNames, server_metrics
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.store.stats import Measured, ShardMetrics, ShardStatus, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.forwarding.stats import ForwardedCalls
    from eddyline.core.telemetry.metrics import Metric
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.store.shard.shard import Shard
    from eddyline.store.stats import RecoveryProgress

_STAGES: Final = tuple(stage.name for stage in Stage)
_SERVER: Final = ServerNames(
    connections=telemetry.STORE_CONNECTIONS,
    opened_connections=telemetry.STORE_OPENED_CONNECTIONS,
    ended_connections=telemetry.STORE_ENDED_CONNECTIONS,
    calls=telemetry.STORE_CALLS,
    opened_calls=telemetry.STORE_OPENED_CALLS,
    reason=telemetry.LABEL_REASON,
)
_NOTHING: Final = Measured(ShardStatus(0, 0, 0, 0, 0, 0, 0, ""), ShardMetrics(), 0)


class StoreMetrics:
    """Metrics of one store. `link` is set once the shard is recovered; until then all but the recovery's are zero."""

    def __init__(
        self,
        *,
        recovery: Callable[[], RecoveryProgress],
        disk_floor_bytes: int,
        forwarded: ForwardedCalls,
        tracer: Tracer = NOOP_TRACER,
        certificate_expires_s: Callable[[], float] = float,
        server: Callable[[], ServerCounts] = ServerCounts,
    ) -> None:
        self._recovery = recovery
        self._forwarded = forwarded
        self._tracer = tracer
        self._certificate_expires_s = certificate_expires_s
        self._server = server
        self._disk_floor_bytes = disk_floor_bytes
        self.link: Shard | None = None

    async def collect(self) -> list[Metric]:
        """Return every metric with its current value."""
        figures, measures, followed_topic_count = _NOTHING if self.link is None else self.link.measured()
        is_ready = self.link is not None and not figures.read_only_reason
        recovery = self._recovery()
        return [
            gauge(telemetry.STORE_READY, "1 = recovered, and everything is served.", is_ready),
            gauge(
                telemetry.STORE_READ_ONLY,
                "1 = only reads are served, until there is room on the disk or a restart.",
                bool(figures.read_only_reason),
            ),
            *_appends(figures, measures),
            *_log(figures),
            gauge(telemetry.STORE_TOPICS, "Topics.", figures.topic_count),
            gauge(telemetry.STORE_SOURCES, "Sources.", figures.source_count),
            gauge(
                telemetry.STORE_FOLLOWED_TOPICS,
                "Topics followed, on all streams of deliveries.",
                followed_topic_count,
            ),
            counter(
                telemetry.STORE_DROPPED_IDEMPOTENCY_KEYS,
                "Idempotency keys forgotten before their window was over.",
                figures.dropped_key_count,
            ),
            counter(telemetry.STORE_CORRUPT_PIECES, "Pieces of files found corrupt.", figures.corrupt_count),
            gauge(telemetry.STORE_DISK_FREE_BYTES, "Free space of the data directory's disk.", figures.disk_free_bytes),
            gauge(
                telemetry.STORE_DISK_FLOOR_BYTES, "Free space below which appends are refused.", self._disk_floor_bytes
            ),
            gauge(
                telemetry.STORE_DISK_LOW,
                "1 = appends are refused, because free space is below the floor.",
                figures.disk_is_low,
            ),
            gauge(telemetry.STORE_MEMORY_BYTES, "Held of the memory budget.", figures.memory_bytes),
            gauge(
                telemetry.STORE_RESIDENT_BYTES,
                "Resident memory of the process, as last looked; 0 = not known.",
                figures.resident_bytes,
            ),
            gauge(telemetry.STORE_MEMORY_FULL, "1 = appends are refused for want of memory.", figures.memory_is_full),
            gauge(telemetry.STORE_RECOVERED_BYTES, "Bytes of log replayed by the start.", recovery.replayed_bytes),
            gauge(
                telemetry.STORE_TO_RECOVER_BYTES,
                "Bytes of log that the start replays; 0 = not known yet, or none.",
                recovery.total_bytes,
            ),
            counters(
                telemetry.STORE_FORWARDED_CALLS,
                "Calls passed on to the owning store, by how they ended.",
                (telemetry.LABEL_SHARD, telemetry.LABEL_OUTCOME),
                self._forwarded.points(),
            ),
            counter(telemetry.STORE_EXPORTED_SPANS, "Spans that a collector took.", self._tracer.exported_count),
            counter(telemetry.STORE_DROPPED_SPANS, "Spans dropped: no room, or not taken.", self._tracer.dropped_count),
            gauge(
                telemetry.STORE_CERTIFICATE_EXPIRATION,
                "When the role's certificate expires, in seconds since 1970; 0 = it has none.",
                self._certificate_expires_s(),
            ),
            *server_metrics(_SERVER, self._server()),
        ]


def _appends(figures: ShardStatus, measures: ShardMetrics) -> Iterator[Metric]:
    yield counter(telemetry.STORE_APPENDED_RECORDS, "Records appended, gaps too.", figures.appended_count)
    yield counter(telemetry.STORE_APPENDED_BYTES, "Their bytes, as the contract counts them.", measures.appended_bytes)
    yield counters(
        telemetry.STORE_REFUSED_APPENDS,
        "Appends refused at a limit of the store, or because it serves only reads.",
        (telemetry.LABEL_REASON,),
        (MetricPoint(count, (reason,)) for reason, count in measures.refused.items()),
    )
    yield gauge(telemetry.STORE_STAGED_BYTES, "Bytes of appends that wait for a group commit.", figures.staged_bytes)
    yield histogram(telemetry.STORE_GROUP_FRAMES, "Frames a group commit.", measures.group_frames)
    yield histogram(
        telemetry.STORE_COMMIT_SECONDS, "A group commit, from its begin to its last frame.", measures.commit_s
    )
    yield histogram(
        telemetry.STORE_SYNC_SECONDS,
        "Time of each disk call in a group commit: write, fdatasync or both.",
        measures.sync_s,
    )
    yield histogram(telemetry.STORE_APPLY_SECONDS, "A write of the fold, with its stalls.", measures.apply_s)
    yield gauge(telemetry.STORE_APPLY_LAG_RECORDS, "Records committed, not folded yet.", figures.apply_lag_count)
    yield gauge(telemetry.STORE_APPLY_LAG_BYTES, "Bytes committed, not folded yet.", figures.apply_lag_bytes)
    yield gauge(telemetry.STORE_APPLY_LAG_SECONDS, "Age of the oldest record of them; 0 = none.", figures.apply_lag_s)


def _log(figures: ShardStatus) -> Iterator[Metric]:
    yield gauge(telemetry.STORE_WAL_BYTES, "Bytes of the disk that the write-ahead log takes.", figures.wal_bytes)
    yield gauge(telemetry.STORE_UNSYNCED_BYTES, "Bytes written, not synced yet.", figures.unsynced_bytes)
    yield gauge(telemetry.STORE_UNSEGMENTED_BYTES, "Bytes of records in no segment yet.", figures.unsegmented_bytes)
    yield gauge(telemetry.STORE_SEGMENTS, "Segment files.", figures.segment_count)
    yield gauge(telemetry.STORE_SEGMENT_BYTES, "Bytes of segment files.", figures.segment_bytes)
    yield counter(
        telemetry.STORE_CHECKPOINTS, "Checkpoints completed, over all starts of the directory.", figures.checkpoint
    )
    yield one_of(
        telemetry.STORE_UPKEEP_STAGE,
        "The current background job: 1 for its stage.",
        telemetry.LABEL_STAGE,
        _STAGES,
        figures.stage.name,
    )
