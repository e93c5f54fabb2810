"""The newest row of each key, whatever order rows come in."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.arrow import to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.spark.reader.newest import NewestByKey

pytestmark = pytest.mark.spark

rows = st.sampled_from(
    [Record(op=op, key=key) for op in (Op.PUT, Op.DELETE, Op.PURGE) for key in (b"a", b"b", b"\xff")]
)


def batches(history: list[Record], cuts: list[int]) -> list[pa.RecordBatch]:
    placed = [record._replace(seq=seq, data=b"%d" % seq) for seq, record in enumerate(history, 1)]
    bounds = [0, *sorted(min(cut, len(placed)) for cut in cuts), len(placed)]
    return [to_arrow(Batch.from_rows(placed[start:stop])) for start, stop in itertools.pairwise(bounds) if start < stop]


@given(
    st.lists(rows, max_size=20), st.lists(st.integers(0, 20), max_size=4), st.sampled_from([0, 200, 2_000]), st.data()
)
def test_it_is_what_replaying_in_order_gives_though_batches_come_twice_in_any_order(
    history: list[Record], cuts: list[int], settle_bytes: int, data: st.DataObject
) -> None:
    live: dict[bytes | None, bytes | None] = {}
    for seq, record in enumerate(history, 1):
        if record.op == Op.PUT:
            live[record.key] = b"%d" % seq
        else:
            live.pop(record.key, None)
    cut = batches(history, cuts)
    order = data.draw(st.permutations([*cut, *cut[: len(cut) // 2]]))
    newest = NewestByKey(settle_bytes=settle_bytes)
    for batch in order:
        newest.add(batch)
    found = [row for batch in newest.live() for row in batch.to_pylist()]
    assert len(found) == len(live)
    assert {row["key"]: row["data"] for row in found} == live


def test_what_is_held_stays_within_twice_what_is_kept() -> None:
    newest = NewestByKey(settle_bytes=10_000)
    one = to_arrow(Batch.from_rows([Record(seq=1, op=Op.PUT, key=b"a", data=b"x" * 1_000)]))
    most = 0
    for _ in range(1_000):
        newest.add(one)
        most = max(most, newest.nbytes)
    assert most < 12_000
