"""Bytes of a fold's meta family, compared with a golden file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import DataCorrupt
from eddyline.store.fold.fold import WriterState
from eddyline.store.fold.meta_codec import (
    STORE_KEY,
    TOPIC,
    FoldCursor,
    decode_checkpoint,
    decode_cursor,
    decode_store_id,
    decode_writer,
    encode_checkpoint,
    encode_cursor,
    encode_writer,
    writer_id,
)
from tests.support.golden import golden

CURSOR = FoldCursor(0x0102030405060708, 0x1112131415161718)
WRITER = WriterState((1 << 64) - 2, b"position")
PAIRS = [
    (STORE_KEY, "störe-1".encode()),
    (TOPIC.pack(258), encode_cursor(*CURSOR)),
    (TOPIC.pack(258) + "wríter".encode(), encode_writer(WRITER)),
    (TOPIC.pack(259), encode_cursor(7, 0)),
    (TOPIC.pack(259) + b"w", encode_writer(WriterState(0, b""))),
]


def test_encoded_bytes_equal_the_golden_file() -> None:
    """Keys and values in turn, each after its length as u32 little-endian."""
    cells = [cell for pair in PAIRS for cell in pair]
    assert b"".join(len(cell).to_bytes(4, "little") + cell for cell in cells) == golden("fold_meta.bin")


def test_golden_file_is_read() -> None:
    content, cells = golden("fold_meta.bin"), list[bytes]()
    while content:
        length = int.from_bytes(content[:4], "little")
        cells.append(content[4 : 4 + length])
        content = content[4 + length :]
    assert cells[0] == b"store"
    assert decode_store_id(cells[1]) == "störe-1"
    assert (TOPIC.unpack(cells[2])[0], decode_cursor(cells[3])) == (258, CURSOR)
    assert (writer_id(cells[4]), decode_writer(cells[5])) == ("wríter", WRITER)
    assert (TOPIC.unpack(cells[6])[0], decode_cursor(cells[7])) == (259, FoldCursor(7, 0))
    assert (writer_id(cells[8]), decode_writer(cells[9])) == ("w", WriterState(0, b""))
    assert len(cells) == 10


def test_checkpoint_is_a_number_of_eight_bytes() -> None:
    assert encode_checkpoint(258) == b"\x02\x01" + bytes(6)
    assert decode_checkpoint(encode_checkpoint(258)) == 258
    with pytest.raises(DataCorrupt):
        decode_checkpoint(bytes(7))


def test_damaged_values_raise() -> None:
    for wrong in (b"", b"x" * 15, b"x" * 17):
        with pytest.raises(DataCorrupt):
            decode_cursor(wrong)
    with pytest.raises(DataCorrupt):
        decode_writer(b"1234567")
    with pytest.raises(DataCorrupt):
        writer_id(TOPIC.pack(1) + b"\xff")
    with pytest.raises(DataCorrupt):
        decode_store_id(b"\xff")


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.binary(max_size=20))
def test_values_are_decoded(first: int, second: int, position: bytes) -> None:
    assert decode_cursor(encode_cursor(first, second)) == (first, second)
    assert decode_writer(encode_writer(WriterState(first, position))) == (first, position)
