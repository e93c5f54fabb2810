"""Foreign columns become a valid canonical batch or an error of the contract, never another result."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import BatchTooLarge, EddylineError, InvalidOp, MalformedColumns, RecordTooLarge
from eddyline.core.records.batch import Batch, Buffer, Column
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import (
    APPEND_RECORDS_MAX,
    DATA_META_BYTES_MAX,
    KEY_BYTES_MAX,
    META_BYTES_MAX,
    NODE_BYTES_MAX,
    TAG_BYTES_MAX,
    VERSION_BYTES_MAX,
    Gap,
    GapReason,
    MetaEntry,
    Op,
    Record,
)
from eddyline.core.records.validation import check_limits, validated, validated_answer
from tests.support.models.batches import appends, buffers_of, placed

FIELDS = ["key", "data", "tag", "node", "meta", "version"]


def offsets(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def with_column(batch: Batch, field: str, column: Column) -> Batch:
    return with_columns(
        batch.count, batch.ops, batch.source_ts_ns, dict(zip(FIELDS, batch.columns(), strict=True)) | {field: column}
    )


def with_columns(count: int, ops: Buffer | None, times: Buffer | None, columns: dict[str, Column | None]) -> Batch:
    key, data, tag, node, meta, version = (columns[field] for field in FIELDS)
    return Batch(count, ops=ops, source_ts_ns=times, key=key, data=data, tag=tag, node=node, meta=meta, version=version)


@given(appends())
def test_columns_and_rows_of_equal_content_are_equal_buffers(rows: list[Record]) -> None:
    packed = Batch.from_rows(rows)
    count = len(rows)
    verbose = Batch(
        count,
        ops=bytes(row.op for row in rows),
        source_ts_ns=struct.pack(f"<{count}q", *(row.source_ts_ns for row in rows)),
        key=verbose_column([row.key for row in rows]),
        data=verbose_column([row.data for row in rows]),
        tag=verbose_column([None if row.tag is None else row.tag.encode() for row in rows]),
        node=verbose_column([None if row.node is None else row.node.encode() for row in rows]),
        meta=verbose_column([encode_meta(row.meta) for row in rows])._replace(validity=b""),
        version=verbose_column([row.version for row in rows])._replace(validity=b""),
    )
    checked = validated(verbose)
    assert buffers_of(checked) == buffers_of(packed)
    assert checked.to_rows() == rows


def verbose_column(cells: list[bytes | None]) -> Column:
    """Return the batch with all redundant columns present, and with the bits beyond the count set."""
    bounds, bits = [0], 0
    for index, cell in enumerate(cells):
        bounds.append(bounds[-1] + len(cell or b""))
        bits |= (cell is not None) << index
    size = (len(cells) + 7) // 8
    bits |= ((1 << 8 * size) - 1) >> len(cells) << len(cells)
    return Column(offsets(*bounds), b"".join(cell or b"" for cell in cells), bits.to_bytes(size, "little"))


@given(placed())
def test_an_answer_keeps_its_seqs_and_times(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    assert validated_answer(batch) == batch


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(Column(offsets(0, 1), b"ab"), id="too_few_offsets"),
        pytest.param(Column(offsets(0, 1, 2, 2), b"ab"), id="too_many_offsets"),
        pytest.param(Column(offsets(0, 1, 2)[:-1], b"ab"), id="cut_offsets"),
        pytest.param(Column(offsets(1, 1, 2), b"ab"), id="first_is_not_0"),
        pytest.param(Column(offsets(0, 3, 2), b"ab"), id="descending"),
        pytest.param(Column(offsets(0, 1, 3), b"ab"), id="past_the_end"),
        pytest.param(Column(offsets(0, 1, 1), b"ab"), id="before_the_end"),
        pytest.param(Column(offsets(0, 0xFFFFFFFF, 2), b"ab"), id="wrapping"),
        pytest.param(Column(b"", b"ab"), id="values_without_offsets"),
        pytest.param(Column(b"", b"", b"\x03"), id="validity_without_offsets"),
        pytest.param(Column(offsets(0, 1, 2), b"ab", b"\x03\x00"), id="validity_too_long"),
        pytest.param(Column(offsets(0, 1, 2), b"ab", b"\x01"), id="absent_cell_with_a_length"),
    ],
)
@pytest.mark.parametrize("field", FIELDS)
def test_columns_that_do_not_fit_are_malformed(field: str, column: Column) -> None:
    with pytest.raises(MalformedColumns) as raised:
        validated(with_column(Batch(2), field, column))
    assert raised.value.metadata["field"].startswith(field)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_validity_is_refused_in_columns_without_absence(count: int) -> None:
    column = Column(bytes(4 * count + 4), b"", b"\xff" * ((count + 7) // 8))
    for field in ("meta", "version"):
        with pytest.raises(MalformedColumns):
            validated(with_column(Batch(count), field, column))


def test_empty_offsets_mean_all_absent() -> None:
    checked = validated(Batch(2, key=Column(b"", b""), data=Column(b"", b"", b""), version=Column(b"", b"")))
    assert checked == Batch(2)


def test_stray_bits_are_cleared() -> None:
    checked = validated(Batch(2, key=Column(offsets(0, 1, 1), b"a", b"\xf1")))
    assert checked.key == Column(offsets(0, 1, 1), b"a", b"\x01")


@pytest.mark.parametrize("field", ["tag", "node"])
@pytest.mark.parametrize("values", [b"\xff\xff", b"a\xc3", "é".encode(), b"\x80a"])
def test_text_that_is_not_utf8_in_each_cell_is_malformed(field: str, values: bytes) -> None:
    with pytest.raises(MalformedColumns, match="UTF-8"):
        validated(with_column(Batch(2), field, Column(offsets(0, 1, 2), values)))


def test_text_beyond_ascii_is_accepted() -> None:
    rows = [Record(tag="é", node="日本"), Record(tag=None, node=""), Record(tag="x", node="😀")]
    assert validated(Batch.from_rows(rows)).to_rows() == rows


def test_fixed_columns_must_have_the_length_of_the_count() -> None:
    for batch in (Batch(2, ops=b"\x01"), Batch(2, source_ts_ns=bytes(15)), Batch(2, source_ts_ns=bytes(24))):
        with pytest.raises(MalformedColumns):
            validated(batch)
    for batch in (Batch(2, first_seq=1, seqs=bytes(15)), Batch(2, ts_ms_each=bytes(8))):
        with pytest.raises(MalformedColumns):
            validated_answer(batch)


@pytest.mark.parametrize("op", [0, 6, 255])
def test_unknown_ops_are_refused(op: int) -> None:
    with pytest.raises(MalformedColumns):
        validated(Batch(2, ops=bytes([1, op])))
    with pytest.raises(InvalidOp):
        check_limits(Batch.from_rows([Record(), Record(op=op)]))


@pytest.mark.parametrize(
    "batch",
    [Batch(1, first_seq=1), Batch(1, seqs=bytes(8)), Batch(1, ts_ms=-1), Batch(1, ts_ms_each=bytes(8))],
)
def test_an_append_with_seqs_or_times_is_refused(batch: Batch) -> None:
    with pytest.raises(MalformedColumns):
        validated(batch)


@pytest.mark.parametrize(
    ("field", "fitting", "over", "limit"),
    [
        ("key", Record(key=b"k" * KEY_BYTES_MAX), Record(key=b"k" * (KEY_BYTES_MAX + 1)), KEY_BYTES_MAX),
        ("tag", Record(tag="é" * (TAG_BYTES_MAX // 2)), Record(tag="t" * (TAG_BYTES_MAX + 1)), TAG_BYTES_MAX),
        ("node", Record(node="n" * NODE_BYTES_MAX), Record(node="n" * (NODE_BYTES_MAX + 1)), NODE_BYTES_MAX),
        ("version", Record(version=bytes(VERSION_BYTES_MAX)), Record(version=bytes(11)), VERSION_BYTES_MAX),
        (
            "meta",
            Record(meta=(MetaEntry("", bytes(META_BYTES_MAX - 6)),)),
            Record(meta=(MetaEntry("", bytes(META_BYTES_MAX - 5)),)),
            META_BYTES_MAX,
        ),
        (
            "data",
            Record(data=bytes(DATA_META_BYTES_MAX - 7), meta=(MetaEntry("a", b""),)),
            Record(data=bytes(DATA_META_BYTES_MAX - 6), meta=(MetaEntry("a", b""),)),
            DATA_META_BYTES_MAX,
        ),
    ],
)
def test_a_record_over_a_bound_is_named(field: str, fitting: Record, over: Record, limit: int) -> None:
    check_limits(Batch.from_rows([fitting] * 3))
    batch = Batch.from_rows([fitting, fitting, over, fitting])
    for check in (validated, check_limits):
        with pytest.raises(RecordTooLarge) as raised:
            check(batch)
        metadata = raised.value.metadata
        assert (metadata["field"], metadata["index"]) == (field, "2")
        assert (int(metadata["sizeBytes"]), int(metadata["limitBytes"])) == (limit + 1, limit)


def test_a_source_may_bring_larger_records() -> None:
    batch = Batch.from_rows([Record(data=bytes(DATA_META_BYTES_MAX + 1))])
    assert validated(batch, source=True) == batch
    with pytest.raises(RecordTooLarge):
        validated(batch)


def test_a_gap_record_of_a_source_must_hold_a_gap() -> None:
    for reason in (GapReason.SOURCE_GAP, GapReason.SUPERSEDED):
        gap = Record(op=Op.GAP, data=encode_gap(Gap(0, 0, reason, source_first=1, source_last=(1 << 64) - 1)))
        batch = Batch.from_rows([gap, Record(op=Op.PUT, key=b"a")])
        assert validated(batch, source=True) == batch
    with pytest.raises(MalformedColumns):
        validated(Batch.from_rows([Record(op=Op.GAP, data=b"?")]), source=True)


@pytest.mark.parametrize("reason", [0, GapReason.RECREATED, GapReason.UNSYNCED, 99])
def test_a_source_may_not_report_a_gap_of_the_store(reason: int) -> None:
    gap_record = Record(op=Op.GAP, data=encode_gap(Gap(1, (1 << 64) - 1, reason)))
    for check in (validated, check_limits):
        with pytest.raises(MalformedColumns) as raised:
            check(Batch.from_rows([Record(op=Op.PUT, key=b"a"), gap_record]), source=True)
        assert (raised.value.metadata["index"], raised.value.metadata["reason"]) == ("1", str(int(reason)))


def test_an_append_has_a_bound_of_records() -> None:
    assert validated(Batch(APPEND_RECORDS_MAX)).count == APPEND_RECORDS_MAX
    with pytest.raises(BatchTooLarge):
        validated(Batch(APPEND_RECORDS_MAX + 1))
    with pytest.raises(BatchTooLarge):
        check_limits(Batch(APPEND_RECORDS_MAX + 1))


@st.composite
def mutated(draw: st.DrawFn) -> Batch:
    """Return a valid batch with buffers cut, extended and overwritten."""
    batch = Batch.from_rows(draw(appends()))

    def spoiled(buffer: bytes | memoryview | None) -> bytes | None:
        raw = bytearray(buffer or b"")
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(raw)))
            raw[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
        return bytes(raw) if buffer is not None or draw(st.booleans()) else None

    def column(field: str) -> Column | None:
        column: Column | None = getattr(batch, field)
        if not draw(st.booleans()):
            return column
        offsets, values, validity = column or Column(b"", b"")
        return Column(spoiled(offsets) or b"", spoiled(values) or b"", spoiled(validity))

    columns = {field: column(field) for field in FIELDS}
    count = draw(st.just(batch.count) | st.integers(0, 12))
    return with_columns(count, spoiled(batch.ops), spoiled(batch.source_ts_ns), columns)


def test_an_answer_past_the_last_seq_is_malformed() -> None:
    with pytest.raises(MalformedColumns):
        validated_answer(Batch(2, first_seq=(1 << 64) - 1))


def test_a_meta_name_too_long_for_its_length_is_named() -> None:
    with pytest.raises(RecordTooLarge) as raised:
        Batch.from_rows([Record(), Record(meta=(MetaEntry("n" * 65_536, b""),))])
    assert (raised.value.metadata["field"], raised.value.metadata["index"]) == ("meta", "1")


@given(mutated())
def test_spoiled_columns_are_an_error_or_a_valid_batch(batch: Batch) -> None:
    try:
        checked = validated(batch)
    except EddylineError:
        return
    rows = checked.to_rows()
    assert buffers_of(Batch.from_rows(rows)) == buffers_of(checked)
    assert len(rows) == batch.count
