"""WAL frames: bodies without a position, sealing at a position, and parsing.

A frame is valid only at the position where it was written: shard, file number and offset seed its checksum, so a copy of
it, or the remains of an old file on the disk, fail. FORMAT.md has the grammar.

I1: a sealed frame's length is a multiple of 8, and known before it has a position. I2: `parse_frame` returns the frame that
was sealed, or raises. I3: magic, `frame_len` and the position of the checksum hold for all future versions, so a frame of a
later version can be distinguished from a torn one.
Threading: pure functions over immutable buffers. A parsed batch references the buffer it was parsed from.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from xxhash import xxh3_64, xxh3_64_intdigest

from eddyline.store.storage.wal.columns import COLUMN_FLAGS, BadColumns, decode_columns, encode_columns, padding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import Buffer

__all__ = [
    "AppendMark",
    "BadFrame",
    "FrameBody",
    "FrameType",
    "WalFrame",
    "append_body",
    "control_body",
    "parse_frame",
    "seal",
]

ControlBody: TypeAlias = dict[str, str | int]

MAGIC: Final = b"EDYF"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sIBBHIQQqQ")
CHECKSUM_BYTES: Final = 8
FRAME_BYTES_MIN: Final = HEADER.size + CHECKSUM_BYTES
FRAME_BYTES_MAX: Final = (1 << 31) - 8
"""An append is at most one message (64 MiB) and its columns, far below. A larger length is invalid."""
APPENDS: Final = 1 << 12
CARRIED: Final = 1 << 13

_PLACE: Final = struct.Struct("<HQQ")
_CHECKSUM: Final = struct.Struct("<Q")

HASH_BYTES: Final = 16

_SECTION: Final = struct.Struct("<II")
_MARK: Final = struct.Struct("<IHH")
_LENGTH: Final = struct.Struct("<H")
_FENCE: Final = struct.Struct("<Q")
_HAS_KEY: Final = 1
_HAS_WRITER: Final = 2

assert HEADER.size == 48


class FrameType(IntEnum):
    """Kind of a frame. The numbers are on disk; 11 to 31 are reserved."""

    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    CONFIG_UPDATE = 4
    DELETE = 5
    EVICT_WATERMARK = 6
    HEAD_WATERMARK = 7
    SEGMENT_CHANGE = 8
    CHECKPOINT_MARK = 9
    WRITER_CHANGE = 10


class BadFrame(Exception):
    """These bytes are no readable frame. `verified` = the checksum holds, so a later version or a defect wrote them;
    `newer` = a later version wrote them."""

    def __init__(self, message: str, *, verified: bool = False, newer: bool = False) -> None:
        super().__init__(message)
        self.verified = verified or newer
        self.newer = newer


class BadMarks(Exception):
    """An appends section that does not fit itself or its frame."""


class AppendMark(NamedTuple):
    """One of the appends that a frame joins: its number of records, and its idempotency key and writer position if any."""

    count: int  # type: ignore[assignment]  # the format's word; hides `tuple.count`
    idempotency_key: bytes = b""
    content_hash: bytes = b""
    writer: str = ""
    fence: int = 0
    previous: bytes = b""
    new: bytes = b""


class FrameBody:
    """A frame before it has a position; immutable. `length_bytes` is that of the whole frame."""

    __slots__ = ("count", "first_seq", "flags", "length_bytes", "parts", "topic_id", "ts_ms", "type")

    def __init__(
        self,
        frame_type: FrameType,
        *,
        topic_id: int,
        first_seq: int,
        ts_ms: int,
        count: int,
        flags: int,
        parts: Sequence[Buffer],
        parts_bytes: int,
    ) -> None:
        assert parts_bytes % 8 == 0
        assert parts_bytes <= FRAME_BYTES_MAX - FRAME_BYTES_MIN
        self.type = frame_type
        self.topic_id = topic_id
        self.first_seq = first_seq
        self.ts_ms = ts_ms
        self.count = count
        self.flags = flags
        self.parts = parts
        self.length_bytes = FRAME_BYTES_MIN + parts_bytes


class Header(NamedTuple):
    """The first 48 bytes of a verified frame."""

    magic: bytes
    frame_len: int
    type: int
    version: int
    flags: int
    count: int  # type: ignore[assignment]  # the format's word; hides `tuple.count`
    topic_id: int
    first_seq: int
    ts_ms: int
    synced_to: int


class WalFrame(NamedTuple):
    """A parsed frame. `batch` is set for Append only, with its records' seqs; `control` for all other types but
    HeadWatermark.

    `marks` is empty if the frame holds one append, or several, without key and writer.
    """

    type: FrameType
    topic_id: int
    first_seq: int
    ts_ms: int
    count: int  # type: ignore[assignment]  # as in Header
    flags: int
    batch: Batch | None
    marks: tuple[AppendMark, ...]
    control: ControlBody | None
    frame_len: int
    synced_to: int


def append_body(topic_id: int, batch: Batch, marks: Sequence[AppendMark] = ()) -> FrameBody:
    """Build an Append of a batch with consecutive seqs and one time. `marks` describe the joined appends in order; the
    frame has an appends section only if one of them has a key or a writer."""
    assert batch.seqs is None
    assert batch.ts_ms_each is None
    flags, parts, length = encode_columns(batch)
    if any(mark.idempotency_key or mark.writer for mark in marks):
        assert sum(mark.count for mark in marks) == batch.count
        section = encode_marks(marks)
        flags |= APPENDS
        parts.append(section)
        length += len(section)
    return FrameBody(
        FrameType.APPEND,
        topic_id=topic_id,
        first_seq=batch.first_seq,
        ts_ms=batch.ts_ms,
        count=batch.count,
        flags=flags,
        parts=parts,
        parts_bytes=length,
    )


def carried_body(topic_id: int, batch: Batch) -> FrameBody:
    """Build the frame body of rewritten records, with the seqs and time they already have, so that an old file can be
    removed. Their keys and writer positions are stored in the catalog and not repeated."""
    body = append_body(topic_id, batch, ())
    body.flags |= CARRIED
    return body


def control_body(
    frame_type: FrameType, topic_id: int, body: Mapping[str, str | int] | None, *, first_seq: int = 0, ts_ms: int
) -> FrameBody:
    """Build a control frame; only HeadWatermark has no body."""
    assert frame_type is not FrameType.APPEND
    assert (body is None) == (frame_type is FrameType.HEAD_WATERMARK)
    encoded = b""
    if body is not None:
        encoded = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    pad = padding(len(encoded))
    return FrameBody(
        frame_type,
        topic_id=topic_id,
        first_seq=first_seq,
        ts_ms=ts_ms,
        count=len(encoded),
        flags=0,
        parts=(encoded, pad),
        parts_bytes=len(encoded) + len(pad),
    )


def seal(body: FrameBody, *, shard: int, file_number: int, offset: int, synced_to: int) -> bytes:
    """Return the frame's bytes for exactly this position: one copy of the parts, one pass of the checksum."""
    return b"".join(sealed_parts(body, shard=shard, file_number=file_number, offset=offset, synced_to=synced_to))


def sealed_parts(body: FrameBody, *, shard: int, file_number: int, offset: int, synced_to: int) -> tuple[Buffer, ...]:
    """The same as buffers, to be written one after another."""
    header = HEADER.pack(
        MAGIC,
        body.length_bytes,
        body.type,
        VERSION,
        body.flags,
        body.count,
        body.topic_id,
        body.first_seq,
        body.ts_ms,
        synced_to,
    )
    digest = xxh3_64(header, seed=_seed(shard, file_number, offset))
    for part in body.parts:
        digest.update(part)
    return header, *body.parts, _CHECKSUM.pack(digest.intdigest())


def verify_frame(buffer: memoryview, start: int, *, shard: int, file_number: int, offset: int) -> Header:
    """Return the header of the frame at `start` in `buffer`, after checking its checksum for this position.

    Raises:
        BadFrame: there is no valid frame.
    """
    if len(buffer) - start < FRAME_BYTES_MIN:
        raise BadFrame("too few bytes for a frame")
    header = Header._make(HEADER.unpack_from(buffer, start))
    if header.magic != MAGIC:
        raise BadFrame("no frame magic")
    frame_len = header.frame_len
    if frame_len % 8 or not FRAME_BYTES_MIN <= frame_len <= len(buffer) - start:
        raise BadFrame("invalid length")
    end = start + frame_len - CHECKSUM_BYTES
    checksum = xxh3_64_intdigest(buffer[start:end], _seed(shard, file_number, offset))
    if checksum != _CHECKSUM.unpack_from(buffer, end)[0]:
        raise BadFrame("wrong checksum")
    return header


def parse_frame(buffer: Buffer, start: int, *, shard: int, file_number: int, offset: int) -> WalFrame:
    """Parse the frame at `start` in `buffer`, which was written at `offset` of file `file_number`. Nothing is copied.

    Raises:
        BadFrame: there is no valid frame, or this version cannot read it.
    """
    view = memoryview(buffer)
    header = verify_frame(view, start, shard=shard, file_number=file_number, offset=offset)
    if header.version != VERSION:
        raise BadFrame(f"frame version {header.version}, this version reads {VERSION}", newer=True)
    if not FrameType.APPEND <= header.type <= FrameType.WRITER_CHANGE:
        raise BadFrame(f"frame type {header.type} is of a later version", newer=True)
    if header.synced_to > offset:
        raise BadFrame("its synced offset is after the frame", verified=True)
    inside = view[start + HEADER.size : start + header.frame_len - CHECKSUM_BYTES]
    if header.type == FrameType.APPEND:
        return _append(header, inside)
    return _control(header, inside)


def _append(header: Header, inside: memoryview) -> WalFrame:
    if header.flags & ~(COLUMN_FLAGS | APPENDS | CARRIED):
        raise BadFrame(f"flags {header.flags:#06x} are of a later version", newer=True)
    marks: tuple[AppendMark, ...] = ()
    try:
        batch, end = decode_columns(header.flags, header.count, inside, first_seq=header.first_seq, ts_ms=header.ts_ms)
        if header.flags & APPENDS:
            marks, size = decode_marks(inside[end:])
            end += size
    except (BadColumns, BadMarks) as error:
        raise BadFrame(str(error), verified=True) from None
    if end != len(inside):
        raise BadFrame("bytes after the last part", verified=True)
    if marks and sum(mark.count for mark in marks) != header.count:
        raise BadFrame("appends do not add up to the frame's records", verified=True)
    return _frame(header, FrameType.APPEND, batch, marks, None)


def _control(header: Header, inside: memoryview) -> WalFrame:
    if header.flags:
        raise BadFrame(f"flags {header.flags:#06x} are of a later version", newer=True)
    if header.count + 7 & ~7 != len(inside):
        raise BadFrame("the body does not fit the frame", verified=True)
    frame_type, control = FrameType(header.type), None
    if (header.count == 0) != (frame_type is FrameType.HEAD_WATERMARK):
        raise BadFrame(f"a {frame_type.name} frame {'has' if header.count else 'lacks'} a body", verified=True)
    if header.count:
        control = _decode_body(bytes(inside[: header.count]))
    return _frame(header, frame_type, None, (), control)


def _frame(
    header: Header,
    frame_type: FrameType,
    batch: Batch | None,
    marks: tuple[AppendMark, ...],
    control: ControlBody | None,
) -> WalFrame:
    return WalFrame(
        frame_type,
        header.topic_id,
        header.first_seq,
        header.ts_ms,
        header.count,
        header.flags,
        batch,
        marks,
        control,
        header.frame_len,
        header.synced_to,
    )


def _decode_body(encoded: bytes) -> ControlBody:
    """Keep the keys whose values are text or whole numbers; other values come from a later version."""
    try:
        body = json.loads(encoded)
    except ValueError:
        raise BadFrame("the body is not JSON", verified=True) from None
    if not isinstance(body, dict):
        raise BadFrame("the body is not an object", verified=True)
    return {key: value for key, value in body.items() if isinstance(value, (str, int))}


def _seed(shard: int, file_number: int, offset: int) -> int:
    return int(xxh3_64_intdigest(_PLACE.pack(shard, file_number, offset)))


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
            raise BadMarks("an appends section without appends")
    except (struct.error, UnicodeDecodeError):
        raise BadMarks("the appends section ends after its frame") from None
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
        raise BadMarks("the appends section ends after its frame")
    return AppendMark(count, key, content_hash, writer, fence, previous, new), offset


def _text(section: memoryview, offset: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(section, offset)
    offset += _LENGTH.size
    return bytes(section[offset : offset + size]), offset + size
