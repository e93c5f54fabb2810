"""Parts of requests that several calls share: appends, new topics, record filters; with the same bounds in each call.

Bounds that do not depend on a topic are checked here, before the call to the shard; `eddyline.core.codec.records` checks
the batch. A setting that is not implemented yet is refused by name, never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.codec import records as wire
from eddyline.core.codec.state import kind_from_pb, topic_config_from_pb
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import check_config
from eddyline.core.records.record import (
    EXPECTED_VERSIONS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    KEY_BYTES_MAX,
    VERSION_BYTES_MAX,
)
from eddyline.store.log.append import AppendRequest, NewTopic, WriterPosition

if TYPE_CHECKING:
    from eddyline.core.model.read import RecordFilter
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.batch import Batch
    from eddyline.v1 import log_pb2, topic_pb2


def parse_append_request(
    request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch,
    rows: bytes | None,
    *,
    topic: str,
    kind: Kind | None,
    epoch: int,
    create: NewTopic | None = None,
) -> AppendRequest:
    """Parse an append to `topic` of the given `kind` (None = no such topic, and the append does not create it). `rows` are
    those of the request if they were split from it.

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


def _batch(request: log_pb2.AppendRecordsRequest | log_pb2.AppendBatch, rows: bytes | None, kind: Kind | None) -> Batch:
    which = request.WhichOneof("batch")
    if rows is not None:
        batch = wire.batch_from_row_bytes(rows, default_op=wire.default_op(kind))
    elif which == "rows":
        batch = wire.batch_from_rows(request.rows, default_op=wire.default_op(kind))
    elif which == "columns":
        batch = wire.batch_from_columns(request.columns, default_op=wire.default_op(kind))
    else:
        raise InvalidArgument("an append needs rows or columns", field="batch")
    if batch.version is not None:
        raise InvalidArgument("only a source may set versions: leave them unset", field="version")
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
                f"an expected version's key must have 1 to {KEY_BYTES_MAX} bytes, not {len(key)}",
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


def new_topic(request: topic_pb2.Topic | log_pb2.CreateIfMissing) -> NewTopic:
    """Return kind and configuration of a topic to create.

    Raises:
        InvalidArgument: no kind. InvalidConfig: as `check_config`. NotYet: not implemented yet.
    """
    topic = NewTopic(kind_from_pb(request.kind), topic_config_from_pb(request.config))
    check_config(topic.config, topic.kind)
    return topic


FILTER_CONDITIONS_MAX: Final = 1_000
"""[none] Each condition is compared with every record examined: this many prefixes times the 65 536 records of one read
take about a second of the event loop; more would stop the store for all callers."""


def parse_filter(request: log_pb2.RecordFilter) -> RecordFilter:
    """Parse the filter of a request.

    Raises:
        InvalidArgument: too many conditions, or an unknown op.
    """
    for field in ("key_prefixes", "tags", "exclude_nodes", "ops"):
        count = len(getattr(request, field))
        if count > FILTER_CONDITIONS_MAX:
            raise InvalidArgument(
                f"at most {FILTER_CONDITIONS_MAX} of {field} in a filter, not {count}",
                field=f"filter.{field}",
                conditions=count,
                conditionsMax=FILTER_CONDITIONS_MAX,
            )
    return wire.filter_from_pb(request)
