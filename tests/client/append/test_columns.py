"""Records of an append as columns: the store makes of them what it makes of rows, and wrong ones are named as ever."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.client.append.columns import COLUMNS_RECORDS_MIN, fill_records
from eddyline.client.transport.checked import fill_rows_of
from eddyline.core.codec.records import batch_from_columns, batch_from_rows
from eddyline.core.errors import EddylineError
from eddyline.core.records.record import (
    DATA_META_BYTES_MAX,
    KEY_BYTES_MAX,
    META_ENTRIES_MAX,
    OP_OF_TOPIC,
    TAG_BYTES_MAX,
    MetaEntry,
    Op,
    Record,
)
from eddyline.v1 import log_pb2
from tests.support.models.batches import CLIENT_OPS, appends, buffers_of, metas

OPS: list[int] = [*CLIENT_OPS, *map(int, CLIENT_OPS), OP_OF_TOPIC, 0]

WRONG: dict[str, list[Any]] = {
    "seq": [1, -1, 1 << 63, 1 << 64, 0.0, None, "1", True],
    "ts_ms": [1, -1, 1 << 63, "1"],
    "source_ts_ns": [1 << 63, 0.0, 1.5, None, "1"],
    "op": [int(Op.GAP), 6, 255, 256, -1, 1 << 40, "put", None, 1.0],
    "key": ["text", bytearray(b"x"), bytes(KEY_BYTES_MAX + 1), 7],
    "data": ["text", bytearray(b"x"), memoryview(b"x"), {}, bytes(DATA_META_BYTES_MAX + 1)],
    "tag": [b"bytes", b"\xff", "\ud800", "x" * (TAG_BYTES_MAX + 1), 5],
    "node": [b"bytes", "\ud800", "x" * 1_000, 5],
    "meta": [
        [MetaEntry("a", b"b")],
        [("a", b"b")],
        (("a", b"b"),),
        (MetaEntry("a", b"b"),) * (META_ENTRIES_MAX + 1),
        (MetaEntry("a", bytes(1 << 15)),),
        (MetaEntry("x" * 0x1_0000, b""),),
        (MetaEntry("\ud800", b""),),
        (MetaEntry(b"a", b"b"),),  # type: ignore[arg-type]
        (MetaEntry("a", "b"),),  # type: ignore[arg-type]
        (MetaEntry("a", bytearray(b"b")),),  # type: ignore[arg-type]
        (("a", b"b", b"c"),),
        ("ab",),
        "ab",
        None,
        5,
    ],
    "version": [b"1", bytes(11), "1", None, bytearray(b"")],
}


class Outcome(NamedTuple):
    """What becomes of an append: the store's batch, or the error of the client or the store."""

    content: object
    error: str = ""


@st.composite
def spoiled(draw: st.DrawFn) -> list[Record]:
    """Records of which up to two have a field that no record has, or that the store refuses."""
    records = draw(st.lists(plain_records, min_size=COLUMNS_RECORDS_MIN, max_size=8))
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*WRONG]))
        at = draw(st.integers(0, len(records) - 1))
        records[at] = records[at]._replace(**{name: draw(st.sampled_from(WRONG[name]))})
    return records


plain_records = st.builds(
    Record,
    op=st.sampled_from(OPS),
    key=st.none() | st.binary(max_size=3),
    data=st.none() | st.binary(max_size=3),
    tag=st.none() | st.text(max_size=2),
    meta=metas,
)


@given(appends(), st.sampled_from([Op.APPEND, Op.PUT]))
def test_columns_of_records_equal_the_round_trip_of_their_rows(records: list[Record], default_op: Op) -> None:
    append = log_pb2.AppendRecordsRequest(topic="t")
    fill_records(append, records)
    assert append.WhichOneof("batch") == ("columns" if len(records) >= COLUMNS_RECORDS_MIN else "rows")
    assert stored(append, default_op) == stored(as_rows(records), default_op)


@given(st.lists(st.sampled_from(OPS), min_size=COLUMNS_RECORDS_MIN, max_size=6), st.sampled_from([Op.APPEND, Op.PUT]))
def test_an_op_that_was_given_is_kept_and_one_that_was_not_is_the_topics(ops: list[int], default_op: Op) -> None:
    append = log_pb2.AppendBatch()
    fill_records(append, [Record(op=op) for op in ops])
    assert append.HasField("columns")
    given_ops = [default_op if op is OP_OF_TOPIC or op == 0 else op for op in ops]
    assert batch_from_columns(append.columns, default_op=default_op).ops_array().tolist() == given_ops


@given(spoiled())
def test_a_wrong_record_has_the_same_error_as_in_rows(records: list[Record]) -> None:
    assert outcome(records, by_rows=False) == outcome(records, by_rows=True)


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_value_has_the_same_error_as_in_rows(name: str) -> None:
    for value in WRONG[name]:
        records = [Record()] * COLUMNS_RECORDS_MIN + [Record()._replace(**{name: value})]
        assert outcome(records, by_rows=False) == outcome(records, by_rows=True), (name, value)


def test_records_of_an_iterator_and_of_a_tuple_are_those_of_a_list() -> None:
    records = [Record(data=b"%d" % number) for number in range(10)]
    appended = []
    for form in (records, tuple(records), iter(records)):
        append = log_pb2.AppendBatch()
        fill_records(append, form)
        appended.append(append)
    assert appended == appended[:1] * 3


def as_rows(records: list[Record]) -> log_pb2.AppendRecordsRequest:
    append = log_pb2.AppendRecordsRequest(topic="t")
    fill_rows_of(append.rows, records)
    return append


def stored(append: log_pb2.AppendRecordsRequest, default_op: Op) -> list[bytes]:
    """The buffers of the store's batch."""
    append = log_pb2.AppendRecordsRequest.FromString(append.SerializeToString())
    if append.HasField("columns"):
        return buffers_of(batch_from_columns(append.columns, default_op=default_op))
    return buffers_of(batch_from_rows(append.rows, default_op=default_op))


def outcome(records: list[Record], *, by_rows: bool) -> Outcome:
    append = log_pb2.AppendRecordsRequest(topic="t")
    try:
        if by_rows:
            fill_rows_of(append.rows, records)
        else:
            fill_records(append, records)
        return Outcome(stored(append, Op.APPEND))
    except EddylineError as error:
        return Outcome((type(error), sorted(error.metadata.items())), error.message)
    except (TypeError, ValueError) as error:
        return Outcome(type(error), str(error))
