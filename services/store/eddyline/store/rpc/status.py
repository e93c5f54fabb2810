"""Status of a store, for ClusterService and health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import NotReady
from eddyline.core.server.cluster_service import ReportedStatus
from eddyline.v1 import cluster_pb2

if TYPE_CHECKING:
    from eddyline.store.rpc.shard_handle import ShardHandle


def store_status(handle: ShardHandle, *, shard_index: int, shard_count: int) -> ReportedStatus:
    """Return the store's status: not ready while it recovers or stops, and while it serves only reads."""
    detail = cluster_pb2.StoreStatus(shard_index=shard_index, shard_count=shard_count)
    try:
        figures = handle.get().status()
    except NotReady as error:
        detail.recovery.replayed_bytes = handle.recovery.replayed_bytes
        detail.recovery.total_bytes = handle.recovery.total_bytes
        return ReportedStatus(ready=False, reason=error.reason, detail=detail)
    detail.topic_count = figures.topic_count
    detail.source_count = figures.source_count
    detail.wal_bytes = figures.wal_bytes
    detail.appended_count = figures.appended_count
    detail.apply_lag_bytes = figures.apply_lag_bytes
    detail.instance = figures.instance
    detail.dropped_key_count = figures.dropped_key_count
    detail.maintenance_stage = cluster_pb2.MaintenanceStage.ValueType(figures.stage)
    detail.checkpoint = figures.checkpoint
    detail.segment_count = figures.segment_count
    detail.segment_bytes = figures.segment_bytes
    detail.unsegmented_bytes = figures.unsegmented_bytes
    detail.disk_free_bytes = figures.disk_free_bytes
    detail.memory_bytes = figures.memory_bytes
    detail.corrupt_count = figures.corrupt_count
    detail.wal_shards = figures.wal_shards
    detail.fold_count = figures.fold_count
    detail.lost_fold_count = figures.lost_fold_count
    return ReportedStatus(ready=not figures.read_only_reason, reason=figures.read_only_reason, detail=detail)
