"""Bytes of the footer: an Arrow file footer with our metadata. FORMAT.md's section "Segments" has the grammar.

Arrow's writer needs a footer's metadata before the first batch; ours is known after the last one. So this module lays out
the footer: a flatbuffer of three vectors and four strings around the schema that pyarrow made. (Rejected: patching a
placeholder, whose length is not known, and writing all batches twice, which doubles the compression work.)

I1: one checksum covers everything from the end of the messages to the file's last 10 bytes, which are checked by value;
its position is fixed, so it is checked before any other byte is used. I2: equal footers are equal bytes.
I3: the positions of the checksum, of the text and of `format` in it hold for all future versions.
Threading: pure functions.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from functools import cache
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

from eddyline.core.records.arrow import arrow_schema
from eddyline.store.storage.segment.bloom_filter import KeyFilter
from eddyline.store.storage.segment.footer import BatchEntry, Footer, SegmentSource, SegmentSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1
MAGIC: Final = b"ARROW1"
END_OF_MESSAGES: Final = b"\xff\xff\xff\xff\0\0\0\0"
TRAILER: Final = struct.Struct("<I6s")
"""The file's last bytes: the footer's length, Arrow's magic."""
FOOTER_BYTES_MAX: Final = 64 << 20
"""Two filters of the largest size are 3.5 MB of text, a batch is 150 bytes: far below."""
MESSAGE_PREFIX: Final = struct.Struct("<II")
"""First bytes of a message: the continuation mark, and the length of the metadata that follows."""

_FRONT: Final = struct.Struct("<I 7H 2x i 4I H 2x 3I 4H i2I i2I I I")
_FRONT_BYTES: Final = 96
_BLOCK: Final = struct.Struct("<qi4xq")
_U32: Final = struct.Struct("<I")
_ROOT, _VECTOR, _PAIRS = 20, 44, (64, 76)
_DICTIONARIES, _BLOCKS = 88, 92
_METADATA_V5: Final = 4
_TEXT_OFFSET_AT: Final = _PAIRS[0] + 8
_TEXT_KEY: Final = b"eddyline.segment"
_CHECKSUM_KEY: Final = b"eddyline.xxh3_64"
_CHECKSUM_END: Final = 20
"""A checksum is 16 hex digits; as the flatbuffer's last string four zeros follow."""
FOOTER_BYTES_MIN: Final = _FRONT_BYTES + _CHECKSUM_END

assert _FRONT.size == _FRONT_BYTES


class BadFooter(Exception):
    """The bytes are no readable footer. `newer` = a later version wrote them."""

    def __init__(self, message: str, *, newer: bool = False) -> None:
        super().__init__(message)
        self.newer = newer


@cache
def file_header() -> bytes:
    """Return the first bytes of every segment: magic, padding, the schema's message."""
    return MAGIC + b"\0\0" + bytes(arrow_schema().serialize())


def encode_footer(footer: Footer, metadata_lengths: Sequence[int]) -> bytes:
    """Encode everything after the last message. `metadata_lengths` are those of the messages' metadata, prefix
    included."""
    schema = file_header()[len(MAGIC) + 2 + MESSAGE_PREFIX.size :]
    blocks = b"".join(
        [
            _BLOCK.pack(entry.offset, metadata_length, entry.length - metadata_length)
            for entry, metadata_length in zip(footer.batches, metadata_lengths, strict=True)
        ]
    )
    schema_at = _FRONT_BYTES + len(blocks)
    text_key_at = schema_at + len(schema)
    text_key, text = _string(_TEXT_KEY), _string(_encode_text(footer))
    checksum_key = _string(_CHECKSUM_KEY)
    text_at = text_key_at + len(text_key)
    checksum_key_at = text_at + len(text)
    checksum_at = checksum_key_at + len(checksum_key)
    front = _FRONT.pack(
        _ROOT,
        *(14, 24, 20, 4, 8, 12, 16),  # the root's vtable: sizes, then the offsets of its five fields
        _ROOT - 4,
        schema_at + _schema_table(schema) - (_ROOT + 4),
        _DICTIONARIES - (_ROOT + 8),
        _BLOCKS - (_ROOT + 12),
        _VECTOR - (_ROOT + 16),
        _METADATA_V5,
        *(2, _PAIRS[0] - (_VECTOR + 4), _PAIRS[1] - (_VECTOR + 8)),
        *(8, 12, 4, 8),  # a pair's vtable
        *(8, text_key_at - (_PAIRS[0] + 4), text_at - (_PAIRS[0] + 8)),
        *(20, checksum_key_at - (_PAIRS[1] + 4), checksum_at - (_PAIRS[1] + 8)),
        0,
        len(footer.batches),
    )
    body = b"".join([front, blocks, schema, text_key, text, checksum_key, _U32.pack(16)])
    checksum = xxh3_64_intdigest(END_OF_MESSAGES + body)
    encoded = body + f"{checksum:016x}".encode() + bytes(4)
    assert FOOTER_BYTES_MIN <= len(encoded) <= FOOTER_BYTES_MAX
    return END_OF_MESSAGES + encoded + TRAILER.pack(len(encoded), MAGIC)


def decode_footer(tail: bytes, *, file_bytes: int) -> Footer:
    """Decode the footer of a file of `file_bytes`; `tail` is everything from the messages' end mark to the footer's last
    byte.

    Raises:
        BadFooter: the checksum fails, or the format is a later one.
    """
    body, checksum = tail[:-_CHECKSUM_END], tail[-_CHECKSUM_END:]
    if checksum != f"{xxh3_64_intdigest(body):016x}".encode() + bytes(4):
        raise BadFooter("the footer fails its checksum")
    offset = len(END_OF_MESSAGES) + _TEXT_OFFSET_AT
    offset += _U32.unpack_from(tail, offset)[0]
    (size,) = _U32.unpack_from(tail, offset)
    return _decode_text(tail[offset + 4 : offset + 4 + size], file_bytes=file_bytes)


def summarize(source: SegmentSource, batches: Sequence[BatchEntry], *, file_bytes: int) -> SegmentSummary:
    """Summarize a file's batches, of which there is at least one."""
    source_times = [entry.source_ts_ns_max for entry in batches if entry.source_ts_ns_max]
    return SegmentSummary(
        first_seq=min([entry.first_seq for entry in batches]),
        last_seq=max([entry.last_seq for entry in batches]),
        generation=source.generation,
        rows=sum([entry.rows for entry in batches]),
        gap_count=sum([entry.gap_count for entry in batches]),
        record_bytes=sum([entry.record_bytes for entry in batches]),
        file_bytes=file_bytes,
        first_ts_ms=min([entry.first_ts_ms for entry in batches]),
        last_ts_ms=max([entry.last_ts_ms for entry in batches]),
        source_ts_ns_max=max(source_times, default=0),
    )


def _encode_text(footer: Footer) -> bytes:
    body = {
        "format": FORMAT,
        **footer.source._asdict(),
        "batches": [[*entry[:-1], f"{entry.checksum:016x}"] for entry in footer.batches],
        "header_checksum": f"{footer.header_checksum:016x}",
        "key_bits": _text_of(footer.keys.bits),
        "key_count": footer.keys.cell_count,
        "key_max": _text_of(footer.max_key),
        "key_min": _text_of(footer.min_key),
        "tag_bits": _text_of(footer.tags.bits),
        "tag_count": footer.tags.cell_count,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _decode_text(text: bytes, *, file_bytes: int) -> Footer:
    try:
        body = json.loads(text)
        if body["format"] != FORMAT:
            words = f"the footer has format {body['format']}, this version reads {FORMAT}"
            raise BadFooter(words, newer=body["format"] > FORMAT)
        source = SegmentSource(**{name: body[name] for name in SegmentSource._fields})
        batches = tuple([BatchEntry._make([*entry[:-1], int(entry[-1], 16)]) for entry in body["batches"]])
        return Footer(
            source=source,
            summary=summarize(source, batches, file_bytes=file_bytes),
            batches=batches,
            min_key=_bytes_of(body["key_min"]),
            max_key=_bytes_of(body["key_max"]),
            keys=KeyFilter(body["key_count"], _bytes_of(body["key_bits"]) or b""),
            tags=KeyFilter(body["tag_count"], _bytes_of(body["tag_bits"]) or b""),
            header_checksum=int(body["header_checksum"], 16),
        )
    except KeyError as error:
        raise BadFooter(f"the footer lacks {error.args[0]}") from None
    except (TypeError, ValueError) as error:
        raise BadFooter(f"the footer is malformed: {error}") from None


def _text_of(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _string(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value + bytes(4 - len(value) % 4)


def _schema_table(message: bytes) -> int:
    """Return the offset of the schema's table in its message: the third field of the root."""
    root: int = _U32.unpack_from(message, 0)[0]
    vtable: int = root - struct.unpack_from("<i", message, root)[0]
    field: int = root + struct.unpack_from("<H", message, vtable + 8)[0]
    schema: int = field + _U32.unpack_from(message, field)[0]
    return schema
