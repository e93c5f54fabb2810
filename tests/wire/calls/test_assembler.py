"""Messages out of bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.calls.assembler import Assembler, MessageRefused
from tests.support.wire.frames import message


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 400), max_size=20))
def test_any_split_gives_the_messages(sent: list[bytes], places: list[int]) -> None:
    data = b"".join(message(one) for one in sent)
    at = sorted(place % (len(data) + 1) for place in places)
    assembler = Assembler(100)
    got: list[bytes] = []
    for begin, end in zip([0, *at], [*at, len(data)], strict=True):
        got += assembler.feed(data[begin:end])
    assert got == sent
    assert assembler.held_bytes == 0


def test_bytes_of_an_incomplete_message_are_counted() -> None:
    assembler = Assembler(100)
    assert assembler.feed(message(b"abc")[:3]) == []
    assert assembler.held_bytes == 3
    assert assembler.feed(message(b"abc")[3:] + b"\0\0") == [b"abc"]
    assert assembler.held_bytes == 2


def test_a_message_is_refused_by_its_prefix() -> None:
    with pytest.raises(MessageRefused, match=r"larger than max \(101 vs. 100\)") as large:
        Assembler(100).feed(struct.pack(">BI", 0, 101))
    assert not large.value.is_compressed
    with pytest.raises(MessageRefused) as compressed:
        Assembler(100).feed(struct.pack(">BI", 1, 1) + b"x")
    assert compressed.value.is_compressed
