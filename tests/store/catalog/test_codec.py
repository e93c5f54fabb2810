"""Bytes of the catalog, compared with golden files, and the refusal of invalid bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from xxhash import xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.model.source import SourceStop
from eddyline.store.catalog import codec
from eddyline.store.catalog.catalog import CatalogHead, SourceEntry, TopicEntry, WalPosition
from eddyline.store.catalog.codec import HEAD_KEY, decode_head, decode_topic, encode_head, encode_topic
from eddyline.store.catalog.diff import CatalogDiff, KeyValue
from tests.support.golden import golden
from tests.support.storage import catalog_entries as entries

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = "catalog-1.bin"
"""Keys and values of one catalog in ascending order, each after its length as u32 little-endian."""

HEAD = CatalogHead(
    3, "a store é", 9, (WalPosition(0, 5, 2, 4096), WalPosition(1, 1, 1, -1)), ("topics/0000000000000003/",)
)
TOPICS = (
    entries.plain_topic(1),
    entries.rich_topic(2),
    replace(entries.plain_topic(1 << 63), deleted=b"bitmap" * 200, segments=tuple(map(entries.segment, range(13)))),
)
SETTINGS_TOPIC = replace(
    entries.rich_topic(2),
    source=SourceEntry("s", "", 3, "h", 4, '{"stream":"ORDERS","subjects":["orders.>"]}', paused=True, resync_serial=5),
)

STOPPED_TOPIC = replace(
    entries.rich_topic(2),
    source=SourceEntry(
        "s",
        "b",
        3,
        "h",
        4,
        resync_serial=5,
        stop=SourceStop("CURSOR_AHEAD", "bucket b was rolled back é", b"\3position"),
    ),
)


REPLAYING_HEAD = replace(HEAD, wal=(WalPosition(0, 5, 2, -1, 8192), WalPosition(1, 1, 1, -1)))


def test_head_of_an_interrupted_replay_has_the_golden_bytes() -> None:
    assert encode_head(REPLAYING_HEAD) == golden("catalog-head-2.bin")
    assert decode_head(golden("catalog-head-2.bin"), "file") == REPLAYING_HEAD


def as_stored(topics: tuple[TopicEntry, ...]) -> list[KeyValue]:
    """All keys of a catalog, in order."""
    encoded = [encode_topic(topic) for topic in topics]
    values = {topic.key: topic.record for topic in encoded}
    for topic in encoded:
        values |= topic.pieces
    return [KeyValue(HEAD_KEY, encode_head(HEAD)), *(KeyValue(key, values[key]) for key in sorted(values))]


def decoded(topic: codec.EncodedTopic) -> TopicEntry:
    return decode_topic(topic.key, topic.record, topic.pieces, "file")


def sealed(key: bytes, body: bytes) -> bytes:
    return body + xxh3_64_intdigest(body, xxh3_64_intdigest(key)).to_bytes(8, "little")


def cells(content: bytes) -> Iterator[bytes]:
    while content:
        end = 4 + int.from_bytes(content[:4], "little")
        yield content[4:end]
        content = content[end:]


def test_encoded_bytes_equal_the_golden_file() -> None:
    encoded = b"".join(len(cell).to_bytes(4, "little") + cell for pair in as_stored(TOPICS) for cell in pair)
    assert codec.FORMAT == 1, "a new version needs a golden file of its own, and this one stays readable"
    assert encoded == golden(GOLDEN)


def test_source_with_settings_equals_the_golden_file() -> None:
    encoded = encode_topic(SETTINGS_TOPIC)
    assert codec.LATER_FORMAT == 2, "a new version needs a golden file of its own, and this one stays readable"
    assert encoded.record == golden("catalog-2.bin")
    assert decode_topic(encoded.key, golden("catalog-2.bin"), {}, "file") == SETTINGS_TOPIC


def test_source_stopped_until_a_resync_equals_the_golden_file() -> None:
    encoded = encode_topic(STOPPED_TOPIC)
    assert codec.STOP_FORMAT == 3, "a new version needs a golden file of its own, and this one stays readable"
    assert encoded.record == golden("catalog-3.bin")
    assert decode_topic(encoded.key, golden("catalog-3.bin"), {}, "file") == STOPPED_TOPIC


def test_later_formats_of_a_topic_are_refused() -> None:
    key, record = encode_topic(SETTINGS_TOPIC).key, encode_topic(SETTINGS_TOPIC).record
    for record_format, refusal in ((0, DataCorrupt), (4, NewerFormat), (255, NewerFormat)):
        with pytest.raises(refusal):
            decode_topic(key, sealed(key, bytes((record_format,)) + record[1:-8]), {}, "file")


def test_golden_file_is_read() -> None:
    golden_cells = list(cells(golden(GOLDEN)))
    stored = [KeyValue(key, value) for key, value in zip(golden_cells[::2], golden_cells[1::2], strict=True)]
    assert decode_head(stored[0].value, "file") == HEAD
    assert tuple(CatalogDiff("file").read(stored)) == TOPICS


def test_plain_topic_is_spelled_out() -> None:
    encoded = encode_topic(replace(entries.plain_topic(258), segments=()))
    settings = (
        b'{"cap_bytes":0,"cap_records":0,"dedupe_node":true,"discard":"OLD","durability":"DISK",'
        b'"idempotency_window_ms":120000,"kind":"LOG","priority":null,"ttl_ms":0}'
    )
    numbers = (1_700_000_000_000, 1000, 1_700_000_000_999, 65_536, 0, 0, 0, 0, 64_000, 1000, 2, 0, *(0, 0, 0, 0))
    body = (
        bytes((1, 1))
        + len(b"topic.258").to_bytes(2, "little")
        + len(settings).to_bytes(2, "little")
        + bytes((0, 0))
        + (1).to_bytes(4, "little")
        + bytes(4)
        + b"".join(number.to_bytes(8, "little") for number in numbers)
        + bytes(5 * 8)
        + b"topic.258"
        + settings
    )
    assert encoded.key == b"T\0\0\0\0\0\0\x01\x02"
    assert encoded.record == sealed(encoded.key, body)
    assert encoded.pieces == {}


@given(entries.ENTRIES)
def test_every_field_of_a_topic_is_decoded(entry: TopicEntry) -> None:
    encoded = encode_topic(entry)
    assert decoded(encoded) == entry
    assert encode_topic(entry) == encoded


@given(entries.HEADS)
def test_every_field_of_a_head_is_decoded(head: CatalogHead) -> None:
    assert decode_head(encode_head(head), "file") == head


def test_small_topic_is_one_key_and_a_large_part_is_stored_in_pieces() -> None:
    assert [len(encode_topic(topic).pieces) for topic in TOPICS] == [0, 0, 2]


def test_hundred_thousand_keys_are_compact_and_decoded() -> None:
    entry = replace(entries.plain_topic(1), keys=tuple(map(entries.key, range(100_000))))
    encoded = encode_topic(entry)
    assert sum(map(len, encoded.pieces.values())) < 6 << 20
    assert len(encoded.record) < 8 << 10
    assert decoded(encoded) == entry


def test_added_and_removed_keys_leave_the_pieces_between_unchanged() -> None:
    previous = encode_topic(replace(entries.plain_topic(1), keys=tuple(map(entries.key, range(50_000)))))
    after = encode_topic(replace(entries.plain_topic(1), keys=tuple(map(entries.key, range(1_000, 51_000)))))
    assert len(after.pieces) > 20
    new = {key: piece for key, piece in after.pieces.items() if key not in previous.pieces}
    assert len(new) <= 4
    assert sum(map(len, new.values())) < 400_000


def test_keys_whose_hashes_never_begin_a_piece_are_cut_by_number() -> None:
    key, done = entries.key(7)
    keys = ((key, (done[0], seq, *done[2:])) for seq in range(2 * codec.KEYS_PER_PIECE_MAX + 1))
    entry = replace(entries.plain_topic(1), keys=tuple(keys))
    assert len(encode_topic(entry).pieces) == 3
    assert decoded(encode_topic(entry)) == entry


def test_every_flipped_byte_of_a_record_is_detected() -> None:
    encoded = encode_topic(entries.rich_topic(2))
    for offset in range(len(encoded.record)):
        damaged = bytearray(encoded.record)
        damaged[offset] ^= 0x40
        with pytest.raises(DataCorrupt, match="topic 2 fails its checksum"):
            decode_topic(encoded.key, bytes(damaged), {}, "file")


def test_every_truncation_of_a_record_is_detected() -> None:
    encoded = encode_topic(entries.rich_topic(2))
    for end in range(len(encoded.record)):
        with pytest.raises(DataCorrupt):
            decode_topic(encoded.key, encoded.record[:end], {}, "file")


def test_every_flipped_byte_of_a_head_is_detected() -> None:
    value = encode_head(HEAD)
    for offset in range(len(value)):
        damaged = bytearray(value)
        damaged[offset] ^= 1
        with pytest.raises(DataCorrupt, match="head fails its checksum"):
            decode_head(bytes(damaged), "file")


def test_value_under_another_key_is_detected() -> None:
    with pytest.raises(DataCorrupt, match="topic 2 fails"):
        decode_topic(codec.topic_key(2), encode_topic(entries.plain_topic(1)).record, {}, "file")


@pytest.mark.parametrize("case", ["damaged", "missing", "unnamed", "shorter"])
def test_damaged_missing_or_unreferenced_piece_is_detected(case: str) -> None:
    encoded = encode_topic(TOPICS[2])
    pieces = dict(encoded.pieces)
    key = min(pieces)
    if case == "damaged":
        pieces[key] = b"x" + pieces[key][1:]
    elif case == "missing":
        del pieces[key]
    elif case == "shorter":
        pieces[key] = pieces[key][:-1]
    else:
        pieces[encoded.key + bytes(16)] = b"unnamed"
    with pytest.raises(DataCorrupt, match="piece"):
        decode_topic(encoded.key, encoded.record, pieces, "file")


@pytest.mark.parametrize("offset", range(0, 200, 7))
def test_invalid_record_with_a_valid_checksum_raises_data_corrupt(offset: int) -> None:
    """For bytes of a bug or an attacker no other exception is raised."""
    encoded = encode_topic(entries.rich_topic(2))
    body = bytearray(encoded.record[:-8])
    body[offset : offset + 7] = b"\xff" * len(body[offset : offset + 7])
    try:
        decode_topic(encoded.key, sealed(encoded.key, bytes(body)), {}, "file")
    except DataCorrupt as error:
        assert error.metadata["file"] == "file"


def test_unknown_flag_is_refused() -> None:
    encoded = encode_topic(entries.plain_topic(1))
    with pytest.raises(DataCorrupt, match="flags"):
        decode_topic(encoded.key, sealed(encoded.key, b"\x01\x41" + encoded.record[2:-8]), {}, "file")


def test_later_format_raises_newer_format() -> None:
    encoded = encode_topic(entries.plain_topic(1))
    later = sealed(encoded.key, b"\x04" + encoded.record[1:-8])
    with pytest.raises(NewerFormat, match="has format 4"):
        decode_topic(encoded.key, later, {}, "file")
    body = json.loads(encode_head(HEAD)[:-8]) | {"format": 3}
    with pytest.raises(NewerFormat, match="has format 3"):
        decode_head(sealed(HEAD_KEY, json.dumps(body).encode()), "file")


def test_unknown_keys_of_control_data_are_ignored_and_missing_ones_refused() -> None:
    body = json.loads(encode_head(HEAD)[:-8])
    assert decode_head(sealed(HEAD_KEY, json.dumps(body | {"later": 1}).encode()), "file") == HEAD
    del body["store_id"]
    with pytest.raises(DataCorrupt, match="store_id"):
        decode_head(sealed(HEAD_KEY, json.dumps(body).encode()), "file")


def test_key_of_no_topic_is_refused() -> None:
    stored = as_stored((entries.plain_topic(1),))
    for stray in (b"A", b"T\0", codec.topic_key(1)[:-1], codec.topic_key(2) + bytes(16), b"Z" * 9):
        with pytest.raises(DataCorrupt, match=r"belongs to no topic|no head before it|checksum"):
            list(CatalogDiff("file").read(sorted([*stored, KeyValue(stray, b"")])))


def test_topics_without_a_head_are_refused() -> None:
    with pytest.raises(DataCorrupt, match="topic 1 has no head before it"):
        list(CatalogDiff("file").read(as_stored(TOPICS)[1:]))


def test_floor_of_an_import_is_not_that_of_an_ephemeral_topic() -> None:
    entry = replace(entries.plain_topic(1), ephemeral_floor=0, compacted_floor=7)
    encoded = encode_topic(entry)
    assert decode_topic(encoded.key, encoded.record, encoded.pieces, "file") == entry
