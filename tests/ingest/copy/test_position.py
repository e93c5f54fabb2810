"""The codec of positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.record import POSITION_BYTES_MAX
from eddyline.ingest.copy.position import NO_TIME, StreamPosition, decode_position, revision_of, sample_of

positions = st.builds(
    StreamPosition,
    created_ns=st.integers(-(2**63), 2**63 - 1),
    revision=st.integers(0, 2**64 - 1),
    sample=st.binary(min_size=16, max_size=16),
    resync_serial=st.just(0) | st.integers(0, 2**64 - 1),
    time_ns=st.just(NO_TIME) | st.integers(-(2**63), 2**63 - 1),
)
SIZES = {1: 33, 2: 41, 3: 49}


@given(positions)
def test_what_is_encoded_decodes_as_it_was(position: StreamPosition) -> None:
    encoded = position.encode()
    assert len(encoded) == SIZES[encoded[0]] <= POSITION_BYTES_MAX
    assert decode_position(encoded) == position


@given(st.binary(min_size=1, max_size=80))
def test_foreign_bytes_are_refused_or_read_back_as_they_are(stored: bytes) -> None:
    try:
        position = decode_position(stored)
    except InvalidArgument:
        assert len(stored) != SIZES.get(stored[0])
    else:
        assert position is not None
        assert position.encode() == stored


@given(positions)
def test_positions_after_changes_differ_each_time_and_keep_the_revision(position: StreamPosition) -> None:
    seen = {position.encode()}
    for _ in range(4):
        position = position.after_changes()
        assert not position.checked
        assert position.encode() not in seen
        seen.add(position.encode())
    assert len({position.revision for position in [position]}) == 1


GOLDEN = {
    "010100000000000000f401000000000000000102030405060708090a0b0c0d0e0f": StreamPosition(1, 500, bytes(range(16))),
    "020100000000000000f401000000000000000102030405060708090a0b0c0d0e0f0700000000000000": StreamPosition(
        1, 500, bytes(range(16)), 7
    ),
    "030100000000000000f401000000000000000102030405060708090a0b0c0d0e0f0000000000000000feffffffffffffff": StreamPosition(
        1, 500, bytes(range(16)), 0, -2
    ),
    "030100000000000000f401000000000000000102030405060708090a0b0c0d0e0f070000000000000015cd5b0700000000": StreamPosition(
        1, 500, bytes(range(16)), 7, 123_456_789
    ),
}
"""Stored positions of every format."""


@pytest.mark.parametrize("stored", GOLDEN)
def test_bytes_are_those_of_each_format(stored: str) -> None:
    assert decode_position(bytes.fromhex(stored)) == GOLDEN[stored]
    assert GOLDEN[stored].encode().hex() == stored


def test_position_without_a_time_gets_one_where_nothing_is_left_of_what_it_passes() -> None:
    old = StreamPosition(1, 500, bytes(range(16)), 7)
    assert old.after_changes().time_ns == NO_TIME
    assert old.advanced_to(510, 99) == StreamPosition(1, 510, bytes(16), 7, 99)
    assert StreamPosition(1, 500, bytes(16), 0, 100).advanced_to(510, 99).time_ns == 100


def test_no_bytes_are_no_position() -> None:
    assert decode_position(b"") is None
    assert revision_of(None) == 0


def test_a_newer_format_is_refused() -> None:
    for stored in (b"\4" + bytes(48), b"\3" + bytes(40), b"\2" + bytes(32), b"\0" + bytes(32)):
        with pytest.raises(InvalidArgument):
            decode_position(stored)


def test_sample_distinguishes_subject_from_data() -> None:
    assert sample_of(b"a", b"b") != sample_of(b"ab", b"")
    assert len(sample_of(b"", b"")) == 16
