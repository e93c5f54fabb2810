"""Reading an append, from a call or from a step of a stream: the same fields, the same bounds.

Bounds that need no topic are judged here, before anything is asked of the shard; the batch by `eddyline.core.codec.records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.codec import records as wire
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import (
    EXPECTED_VERSIONS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    KEY_BYTES_MAX,
    VERSION_BYTES_MAX,
    Op,
)
from eddyline.store.log.append import AppendRequest, NewTopic, WriterPosition

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.v1 import log_pb2


def append_request(
    request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch,
    rows: bytes | None,
    *,
    topic: str,
    kind: Kind | None,
    epoch: int,
    create: NewTopic | None = None,
) -> AppendRequest:
    """An append to `topic`, of the given `kind` (None = there is no such topic, and none is to be made); `rows` are those
    of the request where they came apart from it.

    Raises:
        InvalidArgument, MalformedColumns, BatchTooLarge, RecordTooLarge, InvalidOp.
    """
    key = request.idempotency_key
    if key and len(key.encode()) > IDEMPOTENCY_KEY_BYTES_MAX:
        raise InvalidArgument(
            f"an idempotency key has at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes",
            field="idempotency_key",
            keyBytesMax=IDEMPOTENCY_KEY_BYTES_MAX,
        )
    return AppendRequest(
        topic=topic,
        batch=_batch(request, rows, kind),
        epoch=epoch,
        idempotency_key=key,
        expected_head_seq=request.expected_head_seq if request.HasField("expected_head_seq") else None,
        expected_versions=_expected_versions(request),
        writer=_writer(request),
        create=create,
    )


def default_op(kind: Kind | None) -> Op:
    """What a record without op does."""
    return Op.PUT if kind is Kind.KV else Op.APPEND


def _batch(request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch, rows: bytes | None, kind: Kind | None) -> Batch:
    which = request.WhichOneof("batch")
    if rows is not None:
        batch = wire.batch_from_row_bytes(rows, default_op=default_op(kind))
    elif which == "rows":
        batch = wire.batch_from_rows(request.rows, default_op=default_op(kind))
    elif which == "columns":
        batch = wire.batch_from_columns(request.columns, default_op=default_op(kind))
    else:
        raise InvalidArgument("an append needs rows or columns", field="batch")
    if batch.version is not None:
        raise InvalidArgument("versions are set by sources only: unset in an append", field="version")
    return batch


def _expected_versions(
    request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch,
) -> tuple[tuple[bytes, bytes], ...]:
    if not request.expected_versions:
        return ()
    if len(request.expected_versions) > EXPECTED_VERSIONS_MAX:
        raise InvalidArgument(
            f"at most {EXPECTED_VERSIONS_MAX} expected versions, not {len(request.expected_versions)}",
            field="expected_versions",
            versions=len(request.expected_versions),
            versionsMax=EXPECTED_VERSIONS_MAX,
        )
    expected = tuple((condition.key, condition.version) for condition in request.expected_versions)
    for key, version in expected:
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise InvalidArgument(
                f"an expected version's key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}",
                field="expected_versions.key",
                keyBytes=len(key),
                keyBytesMax=KEY_BYTES_MAX,
            )
        if len(version) > VERSION_BYTES_MAX:
            raise InvalidArgument(
                f"a version has at most {VERSION_BYTES_MAX} bytes, not {len(version)}",
                field="expected_versions.version",
                versionBytes=len(version),
                versionBytesMax=VERSION_BYTES_MAX,
            )
    return expected


def _writer(request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch) -> WriterPosition | None:
    if not request.HasField("writer"):
        return None
    writer = request.writer
    return WriterPosition(writer.writer, writer.fence, writer.previous, writer.new)
