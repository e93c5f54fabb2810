"""The appends section: which appends one joined frame holds, and what makes each of them itself.

The grammar is FORMAT.md's section "Appends". Threading: pure functions.
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
    """The section does not fit itself."""


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
        """True = an idempotency key, with the hash of the content."""
        return bool(self.idempotency_key)

    @property
    def has_writer(self) -> bool:
        """True = a writer's position moves with it."""
        return bool(self.writer)


def encode_marks(marks: Sequence[AppendMark]) -> bytes:
    """The section, padded to 8."""
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
    """The marks, and the section's size with its padding.

    Raises:
        BadMarks: it reaches beyond the buffer, or has flags we do not know.
    """
    try:
        (mark_count, _), at = _SECTION.unpack_from(section), _SECTION.size
        marks = list[AppendMark]()
        for _ in range(mark_count):
            mark, at = _decode_mark(section, at)
            marks.append(mark)
        if not marks:
            raise BadMarks("an appends section of no append")
    except (struct.error, UnicodeDecodeError):
        raise BadMarks("the appends section reaches beyond its frame") from None
    return tuple(marks), at + 7 & ~7


def _decode_mark(section: memoryview, at: int) -> tuple[AppendMark, int]:
    count, flags, _ = _MARK.unpack_from(section, at)
    at += _MARK.size
    if flags & ~(_HAS_KEY | _HAS_WRITER):
        raise BadMarks(f"append flags {flags:#06x} are of a later version")
    key = content_hash = previous = new = b""
    writer, fence = "", 0
    if flags & _HAS_KEY:
        key, at = _text(section, at)
        content_hash = bytes(section[at : at + HASH_BYTES])
        at += HASH_BYTES
    if flags & _HAS_WRITER:
        name, at = _text(section, at)
        writer = name.decode()
        (fence,) = _FENCE.unpack_from(section, at)
        previous, at = _text(section, at + _FENCE.size)
        new, at = _text(section, at)
    if at > len(section):
        raise BadMarks("the appends section reaches beyond its frame")
    return AppendMark(count, key, content_hash, writer, fence, previous, new), at


def _text(section: memoryview, at: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(section, at)
    at += _LENGTH.size
    return bytes(section[at : at + size]), at + size
