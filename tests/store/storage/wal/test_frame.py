"""Frames: a sealed frame is parsed, but only at its own position; the bytes are FORMAT.md's."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.storage.wal.columns import content_hash
from eddyline.store.storage.wal.frame import (
    CARRIED,
    AppendMark,
    BadFrame,
    FrameBody,
    FrameType,
    WalFrame,
    append_body,
    control_body,
    parse_frame,
    seal,
)
from tests.support.storage.changed_frames import reseal
from tests.support.storage.wal_frames import TS_MS, every_body, every_record

PLACE = {"shard": 3, "file_number": 9, "offset": 4096}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
records = st.builds(
    Record,
    seq=st.just(0),
    ts_ms=st.just(0),
    source_ts_ns=st.integers(-(2**63), 2**63 - 1) | st.just(0),
    op=st.sampled_from([int(op) for op in Op]),
    key=st.none() | st.binary(max_size=12),
    data=st.none() | st.binary(max_size=40),
    tag=st.none() | texts,
    node=st.none() | texts,
    meta=st.lists(st.builds(MetaEntry, texts, st.binary(max_size=9)), max_size=3).map(tuple),
    version=st.binary(max_size=10),
)
positions = st.binary(max_size=256)
keyed = st.tuples(st.binary(min_size=1, max_size=128), st.binary(min_size=16, max_size=16))
moved = st.tuples(texts.filter(bool), st.integers(0, 2**64 - 1), positions, positions)


def sealed(body: FrameBody) -> bytes:
    return seal(body, **PLACE, synced_to=64)


def mark_of(count: int, key: tuple[bytes, bytes], move: tuple[str, int, bytes, bytes]) -> AppendMark:
    return AppendMark(count, key[0], key[1], move[0], move[1], move[2], move[3])


def parsed(frame: bytes) -> WalFrame:
    return parse_frame(frame, 0, **PLACE)


@given(st.lists(records, max_size=12), st.integers(1, 2**64 - 20), st.integers(-(2**63), 2**63 - 1))
def test_append_frame_decodes_to_its_records_with_their_seqs(rows: list[Record], first_seq: int, ts_ms: int) -> None:
    batch = Batch.from_rows(rows).with_seqs(first_seq, ts_ms)
    frame = parsed(sealed(append_body(7, batch)))
    assert frame.batch is not None
    assert frame.batch.to_rows() == [row._replace(seq=first_seq + index, ts_ms=ts_ms) for index, row in enumerate(rows)]
    assert (frame.type, frame.topic_id, frame.count, frame.marks) == (FrameType.APPEND, 7, len(rows), ())
    assert (frame.first_seq, frame.ts_ms, frame.synced_to) == (first_seq, ts_ms, 64)


@given(st.lists(records, max_size=12))
def test_parsed_batch_seals_to_the_same_bytes_and_hash(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows).with_seqs(1, TS_MS)
    frame = parsed(sealed(append_body(7, batch)))
    assert frame.batch is not None
    assert sealed(append_body(7, frame.batch)) == sealed(append_body(7, batch))
    assert content_hash(frame.batch) == content_hash(batch)


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | keyed, st.none() | moved), min_size=1, max_size=6))
def test_joined_appends_keep_their_identity(
    appends: list[tuple[int, tuple[bytes, bytes] | None, tuple[str, int, bytes, bytes] | None]],
) -> None:
    marks = tuple(mark_of(count, key or (b"", b""), move or ("", 0, b"", b"")) for count, key, move in appends)
    rows = [Record(data=b"x")] * sum(mark.count for mark in marks)
    frame = parsed(sealed(append_body(7, Batch.from_rows(rows).with_seqs(1, TS_MS), marks)))
    assert frame.marks == (marks if any(mark.idempotency_key or mark.writer for mark in marks) else ())


@given(st.dictionaries(texts, texts | st.integers(-(2**63), 2**64)))
def test_control_frame_decodes_to_its_body(body: dict[str, str | int]) -> None:
    frame = parsed(sealed(control_body(FrameType.WRITER_CHANGE, 7, body, first_seq=5, ts_ms=TS_MS)))
    assert frame.control == body
    assert (frame.type, frame.batch, frame.first_seq, frame.ts_ms) == (FrameType.WRITER_CHANGE, None, 5, TS_MS)


def test_head_watermark_is_56_bytes_without_body() -> None:
    frame = sealed(control_body(FrameType.HEAD_WATERMARK, 7, None, first_seq=65_536, ts_ms=TS_MS))
    assert len(frame) == 56
    assert parsed(frame).control is None
    assert parsed(frame).first_seq == 65_536


def test_bytes_are_those_of_the_grammar() -> None:
    rows = [Record(key=b"k", data=b"abc"), Record(key=None, data=b"", op=Op.PUT)]
    mark = AppendMark(2, b"id", bytes(range(16)), "w", 3, b"", b"p")
    columns = b"".join(
        (
            b"\x01" + bytes(7),  # validity of key
            struct.pack("<3I", 0, 1, 1) + bytes(4),
            b"k" + bytes(7),
            struct.pack("<3I", 0, 3, 3) + bytes(4),
            b"abc" + bytes(5),
            bytes([Op.APPEND, Op.PUT]) + bytes(6),
        )
    )
    section = b"".join(
        (
            struct.pack("<II", 1, 0),
            struct.pack("<IHH", 2, 3, 0),
            struct.pack("<H", 2) + b"id" + bytes(range(16)),
            struct.pack("<H", 1) + b"w" + struct.pack("<Q", 3),
            struct.pack("<H", 0) + struct.pack("<H", 1) + b"p",
        )
    )
    section += bytes(-len(section) % 8)
    flags = 1 | 2 | 1 << 6 | 1 << 8 | 1 << 12
    length = 48 + len(columns) + len(section) + 8
    header = struct.pack("<4sIBBHIQQqQ", b"EDYF", length, 1, 1, flags, 2, 7, 11, TS_MS, 64)
    seed = xxh3_64_intdigest(struct.pack("<HQQ", 3, 9, 4096))
    body = header + columns + section
    batch = Batch.from_rows(rows).with_seqs(11, TS_MS)
    assert sealed(append_body(7, batch, (mark,))) == body + struct.pack("<Q", xxh3_64_intdigest(body, seed))
    assert content_hash(batch) == xxh3_128_digest(struct.pack("<HHI", flags & 0xFFF, 0, 2) + columns)


def test_rows_and_their_slice_have_one_hash() -> None:
    rows = every_record()
    whole = Batch.from_rows([*rows, *rows, *rows])
    assert content_hash(whole.slice(5, 10)) == content_hash(Batch.from_rows(rows).with_seqs(3, TS_MS))


def test_hash_depends_on_the_column_of_the_bytes() -> None:
    assert content_hash(Batch.from_rows([Record(key=b"a")])) != content_hash(Batch.from_rows([Record(data=b"a")]))


def test_parse_copies_nothing() -> None:
    frame = sealed(append_body(7, Batch.from_rows([Record(data=b"abc")]).with_seqs(1, TS_MS)))
    batch = parsed(frame).batch
    assert batch is not None
    assert batch.data is not None
    assert isinstance(batch.data.values, memoryview)
    assert batch.data.values.obj is frame


@pytest.mark.parametrize("elsewhere", [{"shard": 4}, {"file_number": 8}, {"offset": 4104}])
def test_frame_is_valid_only_where_it_was_written(elsewhere: dict[str, int]) -> None:
    frame = sealed(every_body()[0])
    with pytest.raises(BadFrame, match="wrong checksum") as caught:
        parse_frame(frame, 0, **{**PLACE, **elsewhere})
    assert not caught.value.verified


def test_frame_is_parsed_inside_a_larger_buffer() -> None:
    frames = [seal(body, **PLACE, synced_to=0) for body in every_body()]
    assert parse_frame(b"".join([bytes(16), *frames]), 16, **PLACE).type is FrameType.TOPIC_CREATE


@pytest.mark.parametrize("position", range(len(every_body())))
def test_every_shortened_frame_is_invalid(position: int) -> None:
    frame = sealed(every_body()[position])
    for length in range(len(frame)):
        with pytest.raises(BadFrame) as caught:
            parsed(frame[:length])
        assert not caught.value.verified


@pytest.mark.parametrize(
    ("position", "at", "changed", "message"),
    [
        (0, 8, b"\x00", "frame type 0"),
        (0, 8, b"\x0b", "frame type 11"),
        (0, 9, b"\x02", "frame version 2"),
        (0, 10, b"\x01\x00", "flags 0x0001"),
        (0, 12, b"\x01\x00\x00\x00", "does not fit"),
        (0, 48, b"[", "not JSON"),
        (1, 8, b"\x02", "TOPIC_CREATE"),
        (2, 10, b"\xff\x5f", "flags 0x5fff"),
        (2, 12, b"\xff\x00\x00\x00", "after its frame"),
        (3, 10, b"\x01\x10", "columns without records"),
        (3, 48, b"\x02\x00\x00\x00", "after its frame"),
        (3, 48, b"\x00\x00\x00\x00", "without appends"),
        (3, 56, b"\x01\x00\x00\x00", "do not add up"),
        (3, 60, b"\x04\x00", "append flags 0x0004"),
        (4, 10, b"\x02\x01", "without its column"),
        (4, 10, b"\x00\x00", "after the last part"),
        (0, 40, b"\xff\xff", "synced offset"),
    ],
)
def test_unreadable_frame_with_a_valid_checksum_is_verified(
    position: int, at: int, changed: bytes, message: str
) -> None:
    frame = reseal(sealed(every_body()[position]), at=at, changed=changed, **PLACE)
    with pytest.raises(BadFrame, match=message) as caught:
        parsed(frame)
    assert caught.value.verified


@pytest.mark.parametrize("position", [2, 3, 4])
def test_rewritten_frames_are_read(position: int) -> None:
    frame = sealed(every_body()[position])
    plain = parsed(frame)
    carried = parsed(reseal(frame, at=10, changed=struct.pack("<H", plain.flags | CARRIED), **PLACE))
    assert carried.flags == plain.flags | CARRIED
    assert carried.marks == plain.marks
    assert plain.batch is not None
    assert carried.batch is not None
    assert carried.batch.to_rows() == plain.batch.to_rows()


def test_every_column_and_the_appends_section_lie_side_by_side() -> None:
    rows = every_record()
    marks = (AppendMark(5, b"id", bytes(16), "w", 1, b"", b"p"),)
    frame = parsed(sealed(append_body(7, Batch.from_rows(rows).with_seqs(1, TS_MS), marks)))
    assert frame.marks == marks
    assert frame.batch is not None
    assert [row._replace(seq=0, ts_ms=0) for row in frame.batch.to_rows()] == rows


def test_control_keys_of_a_later_version_are_ignored() -> None:
    body = b'{"a":1,"b":[2],"c":null}'
    frame = sealed(control_body(FrameType.WRITER_CHANGE, 7, {"x": "y" * (len(body) - 8)}, ts_ms=TS_MS))
    assert parsed(reseal(frame, at=48, changed=body, **PLACE)).control == {"a": 1}
