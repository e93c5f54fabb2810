"""Positions: their bytes, and digests that depend on the rows alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.spark.writer.position import RowDigest, RowPosition, decoded
from tests.support.models.batches import appends

pytestmark = pytest.mark.spark


def test_the_bytes_of_a_position_are_these() -> None:
    position = RowPosition(epoch=3, ordinal=258, digest=bytes(range(16)), is_final=True)
    expected = "01 01 0300000000000000 0201000000000000 000102030405060708090a0b0c0d0e0f"
    assert position.encoded() == bytes.fromhex(expected)
    assert decoded(position.encoded(), writer="w") == position


@pytest.mark.parametrize("position", [b"else", b"\x02" + bytes(33), b"\x01\x02" + bytes(32)])
def test_what_no_writer_of_ours_stored_is_refused(position: bytes) -> None:
    with pytest.raises(InvalidArgument, match="the position of writer w was not written by Spark"):
        decoded(position, writer="w")


def digest_of(batches: list[Batch]) -> bytes:
    digest = RowDigest()
    for batch in batches:
        digest.add(batch)
    return digest.digest()


@given(appends(), st.lists(st.integers(0, 20), max_size=4))
def test_a_digest_does_not_depend_on_cuts(records: list[Record], cuts: list[int]) -> None:
    batch = Batch.from_rows(records)
    bounds = sorted({0, batch.count, *(cut for cut in cuts if cut < batch.count)})
    pieces = [batch.slice(start, stop) for start, stop in pairwise(bounds)]
    assert digest_of(pieces) == digest_of([batch])


@given(appends(), appends())
def test_other_rows_have_another_digest(left: list[Record], right: list[Record]) -> None:
    assert (digest_of([Batch.from_rows(left)]) == digest_of([Batch.from_rows(right)])) == (left == right)


def test_a_copy_grows_on_its_own() -> None:
    digest = RowDigest()
    copy = digest.copy()
    copy.add(Batch.from_rows([Record(data=b"x")]))
    assert digest.digest() == digest_of([])
    assert copy.digest() != digest.digest()
