"""Hypothesis strategies for records and batches, and the list model for batches."""

from __future__ import annotations

from hypothesis import strategies as st

from eddyline.core.codec.records import fill_columns, fill_item, fill_rows, wants_columns
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from eddyline.v1 import log_pb2, types_pb2

CLIENT_OPS = [Op.APPEND, Op.PUT, Op.DELETE, Op.PURGE]
cells = st.none() | st.binary(max_size=5)
texts = st.none() | st.sampled_from(["", "a", "long", "é", "日本", "😀"]) | st.text(max_size=3)
entries = st.builds(MetaEntry, st.sampled_from(["", "a", "é", "name"]), st.binary(max_size=3))
metas = st.just(()) | st.lists(entries, max_size=3).map(tuple)
signed_64 = st.just(0) | st.integers(-(1 << 63), (1 << 63) - 1)


def record(
    *,
    source_ts_ns: int,
    op: int,
    key: bytes | None,
    data: bytes | None,
    tag: str | None,
    node: str | None,
    meta: tuple[MetaEntry, ...],
    version: bytes,
) -> Record:
    """A record that is not placed."""
    return Record(0, 0, source_ts_ns, op, key, data, tag, node, meta, version)


def appends() -> st.SearchStrategy[list[Record]]:
    """Rows of an append: not placed, every field present or not."""
    rows = st.builds(
        record,
        source_ts_ns=signed_64,
        op=st.sampled_from(CLIENT_OPS).map(int),
        key=cells,
        data=cells,
        tag=texts,
        node=texts,
        meta=metas,
        version=st.binary(max_size=10),
    )
    return st.lists(rows, max_size=10) | st.lists(cells.map(lambda cell: Record(data=cell)), max_size=20)


@st.composite
def placed(draw: st.DrawFn) -> list[Record]:
    """Rows of an answer: ascending seqs, consecutive or with holes, one commit time or one each."""
    rows = draw(appends())
    seq = draw(st.integers(1, 1 << 40))
    ts_ms = draw(st.integers(0, 1 << 40))
    holes, times = draw(st.booleans()), draw(st.booleans())
    result = []
    for row in rows:
        result.append(row._replace(seq=seq, ts_ms=ts_ms))
        seq += draw(st.integers(1, 3)) if holes else 1
        ts_ms += draw(st.integers(0, 2)) if times else 0
    return result


def gap_record(seq: int, first: int, last: int) -> Record:
    """The record that tells of seqs lost to power failure."""
    return Record(seq=seq, op=int(Op.GAP), data=encode_gap(Gap(first, last, GapReason.UNSYNCED)))


def buffers_of(batch: Batch) -> list[bytes]:
    """Every buffer's bytes, `absent` where one is left out: equal lists = equal canonical form."""
    fixed = [batch.seqs, batch.ts_ms_each, batch.ops, batch.source_ts_ns]
    for column in batch.columns():
        fixed += [None, None, None] if column is None else [column.offsets, column.values, column.validity]
    return [b"absent" if buffer is None else bytes(buffer) for buffer in fixed]


def batch_to_columns(batch: Batch) -> types_pb2.ColumnarBatch:
    """Encode the batch as a message of columns."""
    columns = types_pb2.ColumnarBatch()
    fill_columns(columns, batch)
    return columns


def batch_to_rows(batch: Batch) -> types_pb2.RecordBatch:
    """Encode the batch as a message of rows, versions as readers get them."""
    rows = types_pb2.RecordBatch()
    fill_rows(rows, batch)
    return rows


def items_to_pb(items: list[Batch | Gap], batch_format: int) -> list[log_pb2.BatchItem]:
    """Encode items of a log in the format of a request.

    Raises:
        InvalidArgument: an unknown format.
    """
    as_columns = wants_columns(batch_format)
    messages = [log_pb2.BatchItem() for _ in items]
    for message, item in zip(messages, items, strict=True):
        fill_item(message, item, as_columns=as_columns)
    return messages
