"""The appends section: sizes, idempotency keys and writer positions of the appends joined in one frame.

FORMAT.md's section "Appends" has the grammar. Threading: pure functions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

HASH_BYTES: Final = 16

_SECTION: Final = struct.Struct("<II")
_MARK: Final = struct.Struct("<IHH")
_LENGTH: Final = struct.Struct("<H")
_FENCE: Final = struct.Struct("<Q")
_HAS_KEY: Final = 1
_HAS_WRITER: Final = 2


class BadMarks(Exception):
    """The section is inconsistent or reaches beyond its frame."""


class AppendMark(NamedTuple):
    """One append of a frame: its number of records, and its idempotency key and writer position where it has them."""

    count: int  # type: ignore[assignment]  # the format's word; nobody counts values in a mark
    idempotency_key: bytes = b""
    content_hash: bytes = b""
    writer: str = ""
    fence: int = 0
    previous: bytes = b""
    new: bytes = b""

    @property
    def has_key(self) -> bool:
        """Whether the append has an idempotency key, with the hash of its content."""
        return bool(self.idempotency_key)

    @property
    def has_writer(self) -> bool:
        """Whether the append moves a writer's position."""
        return bool(self.writer)


def encode_marks(marks: Sequence[AppendMark]) -> bytes:
    """Encode the section, padded to 8 bytes."""
    out = bytearray(_SECTION.pack(len(marks), 0))
    for mark in marks:
        flags = (_HAS_KEY if mark.idempotency_key else 0) | (_HAS_WRITER if mark.writer else 0)
        out += _MARK.pack(mark.count, flags, 0)
        if flags & _HAS_KEY:
            assert len(mark.content_hash) == HASH_BYTES
            out += _LENGTH.pack(len(mark.idempotency_key)) + mark.idempotency_key + mark.content_hash
        if flags & _HAS_WRITER:
            writer = mark.writer.encode()
            out += _LENGTH.pack(len(writer)) + writer + _FENCE.pack(mark.fence)
            out += _LENGTH.pack(len(mark.previous)) + mark.previous
            out += _LENGTH.pack(len(mark.new)) + mark.new
    out += bytes(-len(out) & 7)
    return bytes(out)


def decode_marks(section: memoryview) -> tuple[tuple[AppendMark, ...], int]:
    """Decode the marks; return them and the section's size with its padding.

    Raises:
        BadMarks: the section reaches beyond the buffer, or has unknown flags.
    """
    try:
        (mark_count, _), offset = _SECTION.unpack_from(section), _SECTION.size
        marks = list[AppendMark]()
        for _ in range(mark_count):
            mark, offset = _decode_mark(section, offset)
            marks.append(mark)
        if not marks:
            raise BadMarks("an appends section of no append")
    except (struct.error, UnicodeDecodeError):
        raise BadMarks("the appends section reaches beyond its frame") from None
    return tuple(marks), offset + 7 & ~7


def _decode_mark(section: memoryview, offset: int) -> tuple[AppendMark, int]:
    count, flags, _ = _MARK.unpack_from(section, offset)
    offset += _MARK.size
    if flags & ~(_HAS_KEY | _HAS_WRITER):
        raise BadMarks(f"append flags {flags:#06x} are of a later version")
    key = content_hash = previous = new = b""
    writer, fence = "", 0
    if flags & _HAS_KEY:
        key, offset = _text(section, offset)
        content_hash = bytes(section[offset : offset + HASH_BYTES])
        offset += HASH_BYTES
    if flags & _HAS_WRITER:
        name, offset = _text(section, offset)
        writer = name.decode()
        (fence,) = _FENCE.unpack_from(section, offset)
        previous, offset = _text(section, offset + _FENCE.size)
        new, offset = _text(section, offset)
    if offset > len(section):
        raise BadMarks("the appends section reaches beyond its frame")
    return AppendMark(count, key, content_hash, writer, fence, previous, new), offset


def _text(section: memoryview, offset: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(section, offset)
    offset += _LENGTH.size
    return bytes(section[offset : offset + size]), offset + size
