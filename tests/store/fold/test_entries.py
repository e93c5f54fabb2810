"""Fold entries of a batch, compared with the plain rule on rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.fold.entries import entries_of


def by_rows(batch: Batch) -> dict[bytes, bytes | None]:
    """The rule: in order, the last record of a key wins."""
    entries: dict[bytes, bytes | None] = {}
    for record in batch.to_rows():
        if record.op == Op.PUT and record.key is not None:
            entries[record.key] = encode_entry(record)
        elif record.op in (Op.DELETE, Op.PURGE) and record.key is not None:
            entries[record.key] = None
    return entries


KEYS = st.sampled_from([b"a", b"b", b"c", b"\x00", b"longer key"])
TEXTS = st.none() | st.text(max_size=4)
METAS = st.lists(st.builds(MetaEntry, st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple)
DATA = st.none() | st.binary(max_size=5)
OPS = st.sampled_from([Op.PUT, Op.PUT, Op.PUT, Op.DELETE, Op.PURGE])
PLAIN = st.tuples(KEYS, st.binary(max_size=5)).map(lambda row: Record(op=Op.PUT, key=row[0], data=row[1]))
FOLDED = st.tuples(OPS, KEYS, DATA, st.sampled_from([0, -5, 1 << 60])).map(
    lambda row: Record(op=row[0], key=row[1], data=row[2], source_ts_ns=row[3])
)
RICH = st.tuples(FOLDED, TEXTS, TEXTS, METAS, st.binary(max_size=10)).map(
    lambda row: row[0]._replace(tag=row[1], node=row[2], meta=row[3], version=row[4])
)
SOURCED = st.tuples(PLAIN, st.binary(min_size=8, max_size=8)).map(lambda row: row[0]._replace(version=row[1]))
GAPS = st.sampled_from([Record(op=Op.GAP, data=b"gap"), Record(op=Op.APPEND, key=b"a", data=b"not folded")])


@given(
    st.one_of(
        *(
            st.lists(kind, max_size=12)
            for kind in (PLAIN, SOURCED, PLAIN | SOURCED, FOLDED, FOLDED | GAPS, RICH, RICH | GAPS)
        )
    ),
    st.integers(1, 1 << 62),
)
def test_last_write_of_a_key_wins(records: list[Record], first_seq: int) -> None:
    batch = Batch.from_rows(records).with_seqs(first_seq, 1_700_000_000_000)
    entries = entries_of(batch)
    assert len(dict(entries)) == len(entries)
    assert dict(entries) == by_rows(batch)


@given(st.lists(st.tuples(FOLDED, st.integers(1, 1 << 62), st.integers(0, 1 << 50)), min_size=2, max_size=8))
def test_seqs_and_times_of_single_rows_are_kept(rows: list[tuple[Record, int, int]]) -> None:
    seqs = sorted({seq for _, seq, _ in rows})
    records = [record._replace(seq=seq, ts_ms=ts_ms) for seq, (record, _, ts_ms) in zip(seqs, rows, strict=False)]
    batch = Batch.from_rows(records)
    assert dict(entries_of(batch)) == by_rows(batch)


def test_slice_of_a_batch_leaves_the_entries_of_its_rows() -> None:
    records = [Record(op=Op.PUT, key=b"%d" % (i % 7), data=b"x" * i, tag="t" if i % 2 else None) for i in range(50)]
    batch = Batch.from_rows(records).with_seqs(100, 5).slice(13, 37)
    assert dict(entries_of(batch)) == by_rows(batch)


def test_empty_batch_and_batch_without_keys_leave_no_entry() -> None:
    assert entries_of(Batch.from_rows([])) == []
    assert entries_of(Batch.from_rows([Record(data=b"x")]).with_seqs(1, 1)) == []
    assert entries_of(Batch.from_rows([Record(op=Op.GAP, data=b"x")]).with_seqs(1, 1)) == []
