"""A filter never denies an added cell, and denies nearly all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.cells import pack_cells
from eddyline.store.storage.segment.bloom_filter import FilterBuilder, KeyFilter, hash_cell, hash_cells

HASHES = ["0000000000000000", "5825f5f3bd962979", "758f67d162b2d202", "4977490251674330"]
some_cells = st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=30)


def built(*columns: list[bytes | None], cells_max: int = 1 << 20) -> KeyFilter:
    builder = FilterBuilder(cells_max=cells_max)
    for cells in columns:
        builder.add(pack_cells(cells, absence=True), len(cells))
    return builder.finish()


@given(some_cells)
def test_column_and_cell_have_one_hash(cells: list[bytes | None]) -> None:
    column = pack_cells(cells, absence=True)
    if column is not None:
        assert hash_cells(column, len(cells)).tolist() == [hash_cell(cell) for cell in cells if cell is not None]


def test_hash_is_the_one_on_disk() -> None:
    """MurmurHash64A, seed 0, as in GCC's C++ standard library."""
    assert [f"{hash_cell(cell):016x}" for cell in (b"", b"\0", b"12345678", b"123456789")] == HASHES


@given(some_cells, some_cells)
def test_added_cell_is_never_denied(left: list[bytes | None], right: list[bytes | None]) -> None:
    key_filter = built(left, right)
    assert key_filter.cell_count == len({*left, *right} - {None})
    assert all(key_filter.may_hold(cell) for cell in (*left, *right) if cell is not None)


def test_similar_cells_have_different_hashes() -> None:
    signs = b"0123456789abcdefghijklmnopqrstuvwxyz"
    words: list[bytes | None] = [
        b"1234567%cabc%cdef%c" % (one, two, three) for one in signs for two in signs for three in signs
    ]
    assert built(words).cell_count == len(words)
    short: list[bytes | None] = [bytes([one, two]) for one in range(256) for two in range(256)]
    short += [bytes([one]) for one in range(256)]
    assert built(short).cell_count == len(short)


@given(some_cells, some_cells)
def test_order_makes_no_difference(left: list[bytes | None], right: list[bytes | None]) -> None:
    assert built(left, right) == built(right[::-1], left[::-1])


def test_one_percent_of_absent_cells_pass() -> None:
    key_filter = built([b"device/%d/state" % number for number in range(10_000)])
    assert len(key_filter.bits) == 12_504
    wrong = sum([key_filter.may_hold(b"device/%d/state" % number) for number in range(10_000, 20_000)])
    assert wrong < 150


def test_empty_filter_denies_every_cell() -> None:
    assert not built([None, None]).may_hold(b"")
    assert not built().may_hold(b"a")


def test_too_many_cells_make_a_filter_that_denies_nothing() -> None:
    cells: list[bytes | None] = [b"%d" % number for number in range(11)]
    assert built(cells[:10], cells[:10], cells_max=10).bits
    key_filter = built(cells[:6], cells[5:], cells[:3], cells_max=10)
    assert key_filter == KeyFilter(14, b"")
    assert key_filter.may_hold(b"other")
