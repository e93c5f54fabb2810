"""Encodes frames of a watch as bytes: the only module of delivery that makes answers.

A frame of records is encoded once for all subscribers with the same `TopicView`; `eddyline.delivery.feed.ring` caches it.
Therefore the resume token, which differs from stream to stream, is only in caught_up, heartbeat and going_away.
Protobuf is used outside `rpc/` on purpose: the bytes encoded here go to the wire unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.codec.records import fill_columns, fill_rows, gap_to_pb
from eddyline.core.model.read import ALL_RECORDS, RecordFilter
from eddyline.core.model.record_filter import matching
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import offset_array, presence
from eddyline.core.records.record import Gap, Op
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

NO_DATA: Final = 0xFFFF_FFFF
"""In a column of lengths: the record has no data at all."""

SHARED_VIEWS_MAX: Final = 1_024
"""Views that are one object for all streams; most have no filter. Further ones are compared by their fields, 1 us each."""

_NOT_DELETES: Final = (int(Op.APPEND), int(Op.PUT))


@dataclass(frozen=True, slots=True)
class TopicView:
    """Filter and form that a subscriber requested of a topic: equal views share their bytes."""

    record_filter: RecordFilter = ALL_RECORDS
    columns: bool = False
    metadata_only: bool = False


class FramePosition(NamedTuple):
    """Position of a reader after a frame. `batch_end` = no append lies on both sides of it, as far as is known."""

    topic: str
    epoch: int
    seq: int
    batch_end: bool = False


class EncodedFrame(NamedTuple):
    """One answer as bytes, and its number of records. Empty `data` = nothing to send, yet the cursor moves."""

    data: bytes
    records: int


NOTHING: Final = EncodedFrame(b"", 0)


def item_frame(position: FramePosition, item: Batch | Gap, view: TopicView, traceparent: str = "") -> EncodedFrame:
    """Encode records or a gap for `view`, with the `traceparent`; `NOTHING` if its filter leaves no record."""
    if isinstance(item, Gap):
        return EncodedFrame(_answer(position, gap=gap_to_pb(item)).SerializeToString(), 0)
    indices = None if view.record_filter.passes_all() else matching(item, view.record_filter)
    batch = item if indices is None else item.select(indices)
    if batch.count == 0:
        return NOTHING
    answer = _answer(position)
    answer.traceparent = traceparent
    sizes = _data_sizes(batch) if view.metadata_only else None
    if sizes is not None:
        batch = _without_data(batch)
    if view.columns:
        fill_columns(answer.columns, batch)
        if sizes is not None:
            answer.columns.data_bytes = sizes.tobytes()
    else:
        fill_rows(answer.rows, batch)
        if sizes is not None:
            for record, size in zip(answer.rows.records, sizes.tolist(), strict=True):
                if size != NO_DATA:
                    record.data_bytes = size
    return EncodedFrame(answer.SerializeToString(), batch.count)


def snapshot_begin_frame(position: FramePosition, fold_seq: int) -> EncodedFrame:
    """Encode the start of a snapshot: the current values follow."""
    return EncodedFrame(_answer(position, snapshot_begin=pb.SnapshotBegin(fold_seq=fold_seq)).SerializeToString(), 0)


def snapshot_end_frame(position: FramePosition, fold_seq: int, count: int) -> EncodedFrame:
    """Encode the end of a snapshot: the current values are complete."""
    return EncodedFrame(
        _answer(position, snapshot_end=pb.SnapshotEnd(fold_seq=fold_seq, count=count)).SerializeToString(), 0
    )


def snapshot_resume_frame(position: FramePosition, fold_seq: int, after_key: bytes) -> EncodedFrame:
    """Encode the continuation of a snapshot after a key."""
    resume = pb.SnapshotResume(fold_seq=fold_seq, after_key=after_key)
    return EncodedFrame(_answer(position, snapshot_resume=resume).SerializeToString(), 0)


def progress_frame(position: FramePosition) -> EncodedFrame:
    """Encode progress: all records up to this position were sent or hidden by the filter."""
    return EncodedFrame(_answer(position, progress=pb.Progress()).SerializeToString(), 0)


def topic_deleted_frame(position: FramePosition) -> EncodedFrame:
    """Encode the deletion of the topic."""
    return EncodedFrame(_answer(position, topic_deleted=pb.TopicDeleted(epoch=position.epoch)).SerializeToString(), 0)


def caught_up_frame(resume_token: bytes) -> EncodedFrame:
    """Encode caught_up: every topic has reached its head of the start."""
    answer = pb.WatchTopicsResponse(caught_up=pb.CaughtUp(), resume_token=resume_token)
    return EncodedFrame(answer.SerializeToString(), 0)


def heartbeat_frame(ts_ms: int, resume_token: bytes) -> EncodedFrame:
    """Encode a heartbeat."""
    answer = pb.WatchTopicsResponse(heartbeat=pb.Heartbeat(ts_ms=ts_ms), resume_token=resume_token)
    return EncodedFrame(answer.SerializeToString(), 0)


def going_away_frame(reason: pb.GoingAwayReason.ValueType, resume_token: bytes) -> EncodedFrame:
    """Encode going_away, the last frame of a stream."""
    answer = pb.WatchTopicsResponse(going_away=pb.GoingAway(reason=reason), resume_token=resume_token)
    return EncodedFrame(answer.SerializeToString(), 0)


def view_of(
    key_prefixes: Iterable[bytes],
    *,
    columns: bool,
    tags: Iterable[str] = (),
    exclude_nodes: Iterable[str] = (),
    ignore_deletes: bool = False,
    metadata_only: bool = False,
) -> TopicView:
    """Return the canonical view of a topic: conditions sorted, no prefix that begins with another."""
    kept: list[bytes] = []
    for prefix in sorted(set(key_prefixes)):
        if not (kept and prefix.startswith(kept[-1])):
            kept.append(prefix)
    record_filter = RecordFilter(
        key_prefixes=tuple(kept),
        tags=tuple(sorted(set(tags))),
        exclude_nodes=tuple(sorted(set(exclude_nodes))),
        ops=_NOT_DELETES if ignore_deletes else (),
    )
    return _shared(TopicView(ALL_RECORDS if record_filter.passes_all() else record_filter, columns, metadata_only))


@lru_cache(SHARED_VIEWS_MAX)
def _shared(view: TopicView) -> TopicView:
    """Return one object for equal views, so that most comparisons are by identity."""
    return view


def _data_sizes(batch: Batch) -> NDArray[np.uint32]:
    """Return the length of each record's data; `NO_DATA` if it has none."""
    if batch.data is None:
        return np.full(batch.count, NO_DATA, dtype="<u4")
    sizes = np.diff(offset_array(batch.data.offsets)).astype("<u4")
    if batch.data.validity is not None:
        sizes[~presence(batch.data, batch.count)] = NO_DATA
    return sizes


def _without_data(batch: Batch) -> Batch:
    return Batch(
        batch.count,
        first_seq=batch.first_seq,
        seqs=batch.seqs,
        ts_ms=batch.ts_ms,
        ts_ms_each=batch.ts_ms_each,
        ops=batch.ops,
        source_ts_ns=batch.source_ts_ns,
        key=batch.key,
        tag=batch.tag,
        node=batch.node,
        meta=batch.meta,
        version=batch.version,
    )


def _answer(
    position: FramePosition,
    *,
    gap: types_pb2.Gap | None = None,
    snapshot_begin: pb.SnapshotBegin | None = None,
    snapshot_end: pb.SnapshotEnd | None = None,
    snapshot_resume: pb.SnapshotResume | None = None,
    progress: pb.Progress | None = None,
    topic_deleted: pb.TopicDeleted | None = None,
) -> pb.WatchTopicsResponse:
    return pb.WatchTopicsResponse(
        topic=position.topic,
        batch_end=position.batch_end,
        cursor=types_pb2.Cursor(topic=position.topic, epoch=position.epoch, seq=position.seq),
        gap=gap,
        snapshot_begin=snapshot_begin,
        snapshot_end=snapshot_end,
        snapshot_resume=snapshot_resume,
        progress=progress,
        topic_deleted=topic_deleted,
    )
