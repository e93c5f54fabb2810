"""Short forms of requests."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from eddyline.v1.log_pb2 import AppendBatch, AppendBatches, AppendRecordsRequest, AppendStart, AppendStreamRequest
from eddyline.v1.types_pb2 import BinaryColumn, ColumnarBatch, Record, RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable


def keyed(key: str, data: str) -> Record:
    """A record with a key."""
    return Record(key=key.encode(), data=data.encode())


def keyless(data: str) -> Record:
    """A record without one."""
    return Record(data=data.encode())


def rows(topic: str, *records: Record) -> AppendRecordsRequest:
    """An append of rows."""
    return AppendRecordsRequest(topic=topic, rows=RecordBatch(records=records))


def column(*cells: bytes) -> BinaryColumn:
    """A column without absent cells."""
    offsets, end = [0], 0
    for cell in cells:
        end += len(cell)
        offsets.append(end)
    return BinaryColumn(offsets=pack(f"<{len(offsets)}I", *offsets), values=b"".join(cells))


def append_step(*records: Record, key: str = "") -> AppendStreamRequest:
    """A step of an append stream."""
    return AppendStreamRequest(append=AppendBatch(rows=RecordBatch(records=records), idempotency_key=key))


def append_of(*records: Record, key: str = "", head: int | None = None) -> AppendBatch:
    """One append of several."""
    return AppendBatch(rows=RecordBatch(records=records), idempotency_key=key, expected_head_seq=head)


def appends_step(*appends: AppendBatch) -> AppendStreamRequest:
    """A step of several appends."""
    return AppendStreamRequest(appends=AppendBatches(appends=appends))


def independent_start(topic: str) -> AppendStreamRequest:
    """The start of a stream whose appends do not depend on each other."""
    return AppendStreamRequest(start=AppendStart(topic=topic, independent=True))


def columns(**cells: Iterable[bytes]) -> ColumnarBatch:
    """Columns by their names."""
    made = {name: column(*of_column) for name, of_column in cells.items()}
    count = max(len(bytes(each.offsets)) // 4 - 1 for each in made.values())
    batch = ColumnarBatch(count=count)
    for name, each in made.items():
        getattr(batch, name).CopyFrom(each)
    return batch
