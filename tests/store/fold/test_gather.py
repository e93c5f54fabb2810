"""Batches made from entries, compared with the batch of the same rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.batch import Batch
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.fold.entries import entries_to_batch

SEQS = st.sampled_from([1, 2, 3, 1 << 63, (1 << 64) - 1])
TIMES = st.sampled_from([0, 5, -5, (1 << 63) - 1])
PLAIN = st.tuples(SEQS, TIMES, TIMES, st.binary(max_size=5), st.binary(max_size=5)).map(
    lambda row: Record(row[0], row[1], row[2], Op.PUT, row[3], row[4])
)
TEXTS = st.none() | st.text(max_size=4)
RICH = st.tuples(
    PLAIN, st.booleans(), TEXTS, TEXTS, st.sampled_from([(), (MetaEntry("n", b"v"),)]), st.binary(max_size=3)
).map(
    lambda row: row[0]._replace(
        data=row[0].data if row[1] else None, tag=row[2], node=row[3], meta=row[4], version=row[5]
    )
)


VERSIONED = st.tuples(PLAIN, st.binary(min_size=8, max_size=8)).map(lambda row: row[0]._replace(version=row[1]))


@given(
    st.lists(PLAIN, max_size=8)
    | st.lists(VERSIONED, max_size=8)
    | st.lists(RICH, max_size=8)
    | st.lists(PLAIN | RICH, max_size=8)
)
def test_batch_of_entries_equals_the_batch_of_the_rows(records: list[Record]) -> None:
    batch = entries_to_batch([record.key or b"" for record in records], [encode_entry(record) for record in records])
    assert batch == Batch.from_rows(records)
    assert batch == batch.canonical()


@pytest.mark.parametrize("wrong", [b"", b"\x01" * 39, b"\x02" + bytes(60)], ids=["nothing", "short", "format"])
def test_damaged_entry_raises(wrong: bytes) -> None:
    good = encode_entry(Record(1, 1, 0, Op.PUT, b"a", b"b"))
    cut = encode_entry(Record(1, 1, 0, Op.PUT, b"a", b"", version=bytes(8)))[:-1]
    for values in ([wrong], [cut], [cut + b"xx", cut], [good, wrong], [wrong, good + bytes(40)]):
        with pytest.raises(DataCorrupt):
            entries_to_batch([b"k"] * len(values), values)
