"""The codec of positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import InvalidArgument
from eddyline.core.record import POSITION_BYTES_MAX
from eddyline.ingest.position import POSITION_BYTES, Position, decode_position, revision_of, sample_of

positions = st.builds(
    Position,
    created_ns=st.integers(-(2**63), 2**63 - 1),
    revision=st.integers(0, 2**64 - 1),
    sample=st.binary(min_size=16, max_size=16),
)


@given(positions)
def test_what_is_encoded_decodes_as_it_was(position: Position) -> None:
    encoded = position.encode()
    assert len(encoded) == POSITION_BYTES <= POSITION_BYTES_MAX
    assert decode_position(encoded) == position


@given(st.binary(min_size=1, max_size=80))
def test_foreign_bytes_are_refused_or_read_back_as_they_are(stored: bytes) -> None:
    try:
        position = decode_position(stored)
    except InvalidArgument:
        assert len(stored) != POSITION_BYTES or stored[0] != 1
    else:
        assert position is not None
        assert position.encode() == stored


@given(positions)
def test_positions_after_changes_differ_each_time_and_keep_the_revision(position: Position) -> None:
    seen = {position.encode()}
    for _ in range(4):
        position = position.after_changes()
        assert not position.checked
        assert position.encode() not in seen
        seen.add(position.encode())
    assert len({position.revision for position in [position]}) == 1


def test_bytes_are_those_of_the_grammar() -> None:
    position = Position(created_ns=1, revision=2, sample=bytes(range(16)))
    assert position.encode() == b"\1" + b"\1" + bytes(7) + b"\2" + bytes(7) + bytes(range(16))


def test_no_bytes_are_no_position() -> None:
    assert decode_position(b"") is None
    assert revision_of(None) == 0


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        decode_position(b"\2" + bytes(POSITION_BYTES - 1))


def test_sample_tells_subject_from_data() -> None:
    assert sample_of(b"a", b"b") != sample_of(b"ab", b"")
    assert len(sample_of(b"", b"")) == 16
