"""Requests whose rows are cut out: message and rows together equal protobuf's parse of the whole."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from eddyline.core.codec.row_split import FIELDS_MAX, SPLIT_BYTES_MIN, append_records_request, append_stream_request
from eddyline.v1 import log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

_Request = TypeVar("_Request", log_pb2.AppendRecordsRequest, log_pb2.AppendStreamRequest)

LONG = types_pb2.RecordBatch(records=[types_pb2.Record(data=bytes(SPLIT_BYTES_MIN))])
ROWS = [LONG, types_pb2.RecordBatch(records=[types_pb2.Record(key=b"k")] * 3), types_pb2.RecordBatch()]
COLUMNS = types_pb2.ColumnarBatch(count=1)
EXPECTED = [log_pb2.ExpectedVersion(key=b"k")]

appends = st.sampled_from(
    [
        log_pb2.AppendBatch(rows=LONG),
        log_pb2.AppendBatch(rows=ROWS[1], idempotency_key="é", expected_head_seq=7),
        log_pb2.AppendBatch(rows=ROWS[2], expected_versions=EXPECTED * 2),
        log_pb2.AppendBatch(columns=COLUMNS),
        log_pb2.AppendBatch(writer=types_pb2.WriterPosition(writer="w", new=b"1")),
    ]
)
requests = st.sampled_from(
    [
        log_pb2.AppendRecordsRequest(topic="t", rows=LONG),
        log_pb2.AppendRecordsRequest(rows=ROWS[1], epoch=3, expected_versions=EXPECTED),
        log_pb2.AppendRecordsRequest(topic="é", columns=COLUMNS),
        log_pb2.AppendRecordsRequest(create=log_pb2.CreateIfMissing()),
    ]
)


def check_cut(request: type[_Request], cut: Callable[[bytes], tuple[_Request, bytes | None]], data: bytes) -> bool:
    """Return True if the rows were cut out, and check that the parts equal the whole."""
    try:
        whole = request.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            message, rows = cut(data)
            types_pb2.RecordBatch.FromString(rows or b"")
        return False
    message, rows = cut(data)
    if rows is not None:
        batch = batch_of(message)
        assert batch.WhichOneof("batch") is None
        batch.rows.MergeFromString(rows)
        batch.rows.SetInParent()
    assert message == whole
    return rows is not None


def batch_of(
    message: log_pb2.AppendRecordsRequest | log_pb2.AppendStreamRequest,
) -> log_pb2.AppendRecordsRequest | log_pb2.AppendBatch:
    return message.append if isinstance(message, log_pb2.AppendStreamRequest) else message


check_records = partial(check_cut, log_pb2.AppendRecordsRequest, append_records_request)
check_stream = partial(check_cut, log_pb2.AppendStreamRequest, append_stream_request)


def mutated(data: bytes, rnd: random.Random) -> bytes:
    """Mutate bytes near both ends, which hold the fields' tags and lengths."""
    changed = bytearray(data)
    for _ in range(rnd.randrange(3)):
        at = rnd.choice([rnd.randrange(12), -1 - rnd.randrange(12)])
        changed[at] = rnd.choice([rnd.randrange(256), changed[at] ^ 1])
    return bytes(changed)


@given(st.lists(requests, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_split_request_equals_the_whole(parts: list[log_pb2.AppendRecordsRequest], rnd: random.Random) -> None:
    data = b"".join(part.SerializeToString() for part in parts)
    check_records(data)
    if len(data) > SPLIT_BYTES_MIN:
        check_records(mutated(data, rnd))


@given(st.lists(appends, min_size=1, max_size=3), st.randoms(use_true_random=False))
@example([log_pb2.AppendBatch(rows=LONG, idempotency_key="k")], random.Random(1))
def test_a_split_step_equals_the_whole(parts: list[log_pb2.AppendBatch], rnd: random.Random) -> None:
    append = b"".join(part.SerializeToString() for part in parts)
    step = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch.FromString(append)).SerializeToString()
    check_stream(step)
    if len(step) > SPLIT_BYTES_MIN:
        check_stream(mutated(step, rnd))
        check_stream(step + log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="t")).SerializeToString())


def test_rows_are_cut_out_and_merged_if_they_occur_twice() -> None:
    request = log_pb2.AppendRecordsRequest(topic="t", rows=LONG, epoch=4).SerializeToString()
    assert check_records(request)
    assert check_records(request + request)
    assert check_stream(log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=LONG)).SerializeToString())


def test_short_messages_and_those_with_both_forms_are_parsed_whole() -> None:
    short = log_pb2.AppendRecordsRequest(topic="t", rows=ROWS[1]).SerializeToString()
    both = log_pb2.AppendRecordsRequest(rows=LONG).SerializeToString()
    columns = log_pb2.AppendRecordsRequest(columns=COLUMNS).SerializeToString()
    many = log_pb2.AppendRecordsRequest(rows=LONG, expected_versions=EXPECTED * FIELDS_MAX).SerializeToString()
    for data in (short, both + columns, columns + both, many, b""):
        assert not check_records(data)
