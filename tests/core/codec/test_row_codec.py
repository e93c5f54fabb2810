"""Row codec: bulk decoding and encoding equal protobuf's objects, or leave the bytes to them."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from eddyline.core.codec.records import (
    ROWS_AT_ONCE_MIN,
    answer_from_rows,
    batch_from_row_bytes,
    batch_from_rows,
    packed_by_objects,
    record_to_pb,
)
from eddyline.core.codec.row_decode import decode_rows
from eddyline.core.codec.row_encode import encode_rows
from eddyline.core.codec.varint import INDEX_BYTES_MAX
from eddyline.core.errors import BatchTooLarge, EddylineError, RecordTooLarge
from eddyline.core.model.read import EXAMINED_RECORDS_MAX
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import META_ENTRIES_MAX, MetaEntry, Op, Record
from eddyline.v1 import types_pb2
from tests.support.models.batches import appends, batch_to_rows, buffers_of, placed

DEFAULT_OP = int(Op.PUT)
LONG = 3 * INDEX_BYTES_MAX


def by_objects(rows: list[Record]) -> bytes:
    return types_pb2.RecordBatch(records=map(record_to_pb, rows)).SerializeToString()


def expected(data: bytes) -> Batch | None:
    """Return the batch that protobuf's objects make of the bytes; None = an error."""
    try:
        return packed_by_objects(types_pb2.RecordBatch.FromString(data).records, DEFAULT_OP)
    except (DecodeError, EddylineError):
        return None


def check(data: bytes) -> bool:
    """Return True if the bytes were decoded in bulk, and check that the batch equals the objects'."""
    taken = decode_rows(data, default_op=DEFAULT_OP)
    if taken is None:
        return False
    wanted = expected(data)
    assert wanted is not None
    assert taken == wanted
    assert buffers_of(taken) == buffers_of(wanted)
    return True


def varint(number: int, *, padding: int = 0) -> bytes:
    """Encode the number, with redundant continuation bytes after it."""
    parts = []
    while number > 0x7F or padding:
        if number <= 0x7F:
            padding -= 1
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


@st.composite
def wire_field(draw: st.DrawFn, numbers: st.SearchStrategy[int]) -> bytes:
    """Generate a field of any number, type and value, mostly well-formed; lengths and tags are not always the shortest."""
    wire_type = draw(st.sampled_from([0, 2, 2] * 5 + [1, 5, 3, 6]))
    tag = varint(draw(numbers) << 3 | wire_type, padding=draw(st.sampled_from([0] * 20 + [1])))
    if wire_type == 0:
        number = st.integers(0, 6) | st.integers(0, 200) | st.integers(0, (1 << 64) - 1)
        return tag + varint(draw(number), padding=draw(st.sampled_from([0, 0, 2])))
    if wire_type == 2:
        value = draw(st.binary(max_size=6) | st.text(max_size=3).map(str.encode) | wire_message(st.integers(1, 3)))
        return tag + varint(len(value), padding=draw(st.sampled_from([0, 0, 1]))) + value
    return tag + draw(st.binary(min_size=8, max_size=8) if wire_type == 1 else st.binary(min_size=4, max_size=4))


def wire_message(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return st.deferred(lambda: st.lists(wire_field(numbers), max_size=6).map(b"".join))


def framed(records: list[bytes]) -> bytes:
    return b"".join(b"\x0a" + varint(len(record)) + record for record in records)


# --- decoding ---------------------------------------------------------------------------------------------------------


@given(appends() | placed())
def test_rows_become_the_same_batch_as_through_objects(rows: list[Record]) -> None:
    assert check(by_objects(rows))


@given(st.lists(wire_message(st.integers(1, 11) | st.integers(0, 16)), max_size=6).map(framed))
@example(b"\x0a")
@example(b"\x0a\x00")
@example(b"\x0a\x00" * 3)
@example(b"\x0a\x80\x80\x80\x80\x00")
@example(framed([b"\x08" + b"\xff" * 9 + b"\x01"]))
@example(framed([b"\x08" + b"\xff" * 9 + b"\x02"]))
@example(framed([b"\x3a\x01\xc3", b"\x3a\x01\xa9"]))
@example(framed([b"\x20\x81\x02"]))
@example(framed([b"\x3a\x01\x80\x3a\x00"]))
@example(framed([b"\x4a\x05\x0a\x01\x80\x0a\x00"]))
@example(framed([b"\x4a\x02\x0a\x00", b"\x4a\x00\x4a\x02\x12\x00"]))
def test_any_decoded_wire_fields_equal_the_objects(data: bytes) -> None:
    check(data)


@given(appends() | placed(), st.randoms(use_true_random=False))
def test_any_decoded_mutated_bytes_equal_the_objects(rows: list[Record], rnd: random.Random) -> None:
    data = bytearray(by_objects(rows))
    for _ in range(rnd.randrange(1, 4)):
        at = rnd.randrange(len(data) + 1)
        match rnd.randrange(3):
            case 0:
                del data[at : at + rnd.randrange(1, 4)]
            case 1:
                data[at:at] = rnd.randbytes(rnd.randrange(1, 4))
            case _:
                data[at : at + 1] = bytes([rnd.choice([0, 1, 0x0A, 0x12, 0x4A, 0x7F, 0x80, 0xFF])])
    check(bytes(data))


def test_fields_out_of_order_repeated_and_unknown_are_decoded() -> None:
    unknown = b"\x58\x07" + b"\x61" + bytes(8) + b"\x65" + bytes(4) + b"\x6a\x02zz"
    late = b"\x52\x01v" + b"\x32\x01a" + b"\x08\x05" + b"\x32\x02bb" + b"\x4a\x03\x0a\x01n" + unknown + b"\x08\x07"
    wrong_type = b"\x28\x01" + b"\x0a\x01x" + b"\x32\x01c"
    assert check(framed([late, b"\x32\x01d", wrong_type]))
    assert check(framed([late] * 3))


@pytest.mark.parametrize(
    "record",
    [
        b"\x0b\x0c",
        b"\xa0\x06\x01",
        b"\x20\x80\x02",
        b"\x00\x01",
        b"\x32\x05abc",
        b"\x3a\x01\xff",
        b"\x08" + b"\xff" * 10,
        b"\x32\x81\x80\x80\x80\x80\x00a",
    ],
    ids=["group", "long tag", "large op", "field 0", "cut", "no UTF-8", "long varint", "length of six bytes"],
)
def test_shapes_that_are_left_to_the_objects(record: bytes) -> None:
    assert not check(framed([b"\x32\x01a", record, b""]))


def test_a_record_with_too_many_fields_is_left_to_the_objects_early() -> None:
    assert not check(framed([b"\x08\x01" * 100_000]))


@pytest.mark.parametrize("records", [[b""], [b"", b"\x32\x00"]], ids=["of one shape", "of two"])
def test_more_records_than_any_batch_has_are_refused_before_objects_are_made(records: list[bytes]) -> None:
    data = framed(records * (EXAMINED_RECORDS_MAX + 1))
    # The second ends with bytes that are no record: since no error mentions them, protobuf has not seen them.
    for message in (data, data + b"\xff"):
        with pytest.raises(BatchTooLarge, match="more than"):
            batch_from_row_bytes(message)


@pytest.mark.parametrize("size", [1, LONG])
@pytest.mark.parametrize("spread", [0, 5])
def test_spans_of_every_kind_are_copied(size: int, spread: int) -> None:
    rows = [
        Record(
            seq=seq,
            ts_ms=5,
            key=bytes([seq % 256]) * (size + seq % (spread + 1)),
            data=None if spread and seq % 3 == 0 else bytes([seq % 256]) * size,
            tag="é" * (seq % (spread + 1)),
            meta=(MetaEntry("ü" * (size + seq % (spread + 1)), bytes(size)),) * (1 + seq % 2),
            version=b"v" * (seq % (spread + 1)),
        )
        for seq in range(1, 1 + 2 * ROWS_AT_ONCE_MIN)
    ]
    assert check(by_objects(rows))
    assert encode_rows(Batch.from_rows(rows)) == by_objects(rows)


def test_records_that_only_begin_alike_are_not_read_as_one_shape() -> None:
    assert check(framed([b"\x32\x02ab", b"\x32\x02\x0a\x04", b"", b"\x2a\x00", b"\x32\x02ab"]))


@given(
    st.lists(
        st.sampled_from([b"\x08", b"\x10", b"\x20", b"\x2a", b"\x32", b"\x3a", b"\x52", b"\x4a", b"\x68"]), max_size=5
    ),
    st.integers(1, 9),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_records_of_one_shape_or_nearly_one_equal_the_objects(
    tags: list[bytes], size: int, count: int, rnd: random.Random
) -> None:
    records = []
    for _ in range(count):
        fields = []
        for tag in tags:
            if tag[0] & 7:
                fields.append(tag + bytes([size]) + bytes(rnd.randrange(0x80) for _ in range(size)))
            else:
                fields.append(tag + varint(rnd.randrange(1 << 7 * (size - 1), 1 << 7 * size)))
        records.append(b"".join(fields))
    check(framed(records))
    data = bytearray(framed(records))
    data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
    check(bytes(data))


# --- encoding ---------------------------------------------------------------------------------------------------------


@given(appends() | placed())
def test_a_batch_becomes_the_same_bytes_as_through_objects(rows: list[Record]) -> None:
    assert encode_rows(Batch.from_rows(rows)) == by_objects(rows)


@given(placed())
def test_a_slice_of_a_batch_becomes_the_bytes_of_its_rows(rows: list[Record]) -> None:
    assert encode_rows(Batch.from_rows(rows).slice(1, 4)) == by_objects(rows[1:4])


# --- round trip -------------------------------------------------------------------------------------------------------


def test_many_rows_survive_a_round_trip_like_few() -> None:
    rows = [Record(key=b"k%d" % i, data=b"d" * (i % 30), tag="t") for i in range(2 * ROWS_AT_ONCE_MIN)]
    batch = Batch.from_rows(rows)
    message = batch_to_rows(batch)
    assert message.SerializeToString() == by_objects(rows)
    assert batch_from_rows(message) == batch
    answer = batch.with_seqs(7, 9)
    assert answer_from_rows(batch_to_rows(answer)).to_rows() == [
        row._replace(seq=7 + i, ts_ms=9, version=(7 + i).to_bytes(8, "big")) for i, row in enumerate(rows)
    ]


def test_too_many_meta_entries_are_refused_in_many_rows_too() -> None:
    rows = types_pb2.RecordBatch(records=[types_pb2.Record()] * ROWS_AT_ONCE_MIN)
    rows.records[3].meta.extend([types_pb2.MetaEntry()] * (META_ENTRIES_MAX + 1))
    with pytest.raises(RecordTooLarge, match="record 3"):
        batch_from_rows(rows)


def test_unknown_fields_of_a_batch_are_ignored() -> None:
    rows = types_pb2.RecordBatch.FromString(framed([b"\x32\x01a"] * ROWS_AT_ONCE_MIN) + b"\x12\x00")
    assert batch_from_rows(rows).count == ROWS_AT_ONCE_MIN
