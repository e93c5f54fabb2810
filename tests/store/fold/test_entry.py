"""Bytes of a fold entry, compared with a golden file."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.fold_entry import HEAD_BYTES, decode_entry, encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record

GOLDEN = Path(__file__).parents[2] / "golden" / "fold_entry.bin"
"""Entries in sequence, each after its length as u32 little-endian."""

RECORDS = [
    Record(1, 2, 3, Op.PUT, b"plain", b"value"),
    Record(2, 1_700_000_000_000, 0, Op.PUT, b"empty value", b""),
    Record(3, 0, 0, Op.PUT, b"no value"),
    Record(4, -1, -(1 << 63), Op.PUT, b"empty texts", b"", "", ""),
    Record((1 << 64) - 1, (1 << 63) - 1, (1 << 63) - 1, Op.PUT, b"\xff\x00", b"\x00", version=b"\x00" * 10),
    Record(
        6,
        1_700_000_000_000,
        1_699_999_999_999_999_999,
        Op.PUT,
        b"all",
        b"data",
        "täg",
        "node-1",
        (MetaEntry("n", b"1"), MetaEntry("n", b""), MetaEntry("ü", b"\xff")),
        b"\x01\x02",
    ),
]


def test_encoded_bytes_equal_the_golden_file() -> None:
    entries = [encode_entry(record) for record in RECORDS]
    assert b"".join(len(entry).to_bytes(4, "little") + entry for entry in entries) == GOLDEN.read_bytes()


def test_golden_file_is_read() -> None:
    content, records = GOLDEN.read_bytes(), []
    for record in RECORDS:
        length = int.from_bytes(content[:4], "little")
        assert record.key is not None
        records.append(decode_entry(record.key, content[4 : 4 + length]))
        content = content[4 + length :]
    assert not content
    assert records == RECORDS


def test_plain_entry_is_spelled_out() -> None:
    entry = encode_entry(Record(1, 2, 3, Op.PUT, b"k", b"value"))
    assert entry.hex(" ") == " ".join(
        (
            "01 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
            "01 00 00 00 00 00 00 00",
            "02 00 00 00 00 00 00 00",
            "03 00 00 00 00 00 00 00",
            "76 61 6c 75 65",
        )
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[: HEAD_BYTES - 1],
        lambda entry: b"\x02" + entry[1:],
        lambda entry: entry[:1] + b"\x0f" + entry[2:],
        lambda entry: entry[:12] + b"\x01" + entry[13:],
        lambda entry: entry[:8] + b"\xff" + entry[9:],
        lambda entry: entry[: HEAD_BYTES + 2] + b"\xff" + entry[HEAD_BYTES + 3 :],
        lambda entry: entry[:-20],
        lambda entry: b"",
    ],
    ids=["short", "format", "flags", "zero", "lengths", "text", "cut", "nothing"],
)
def test_damaged_entry_raises(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(DataCorrupt):
        decode_entry(b"all", damage(encode_entry(RECORDS[-1])))
