"""Requests with their rows left as bytes: the `RecordBatch` is cut out of the message before protobuf parses the rest.

Protobuf parses the rows of a request even if no code uses its objects, and the packing of rows
(`eddyline.core.codec.row_decode`) needs bytes: parsing and serializing again was a third of the store's cost of an
append of rows. Therefore the field is cut out of the message's bytes by protobuf's rules; if it occurs twice its parts
are concatenated, which is what merging them means. Everything else is parsed by the generated class, so the contract's
messages stay the only ones, and reflection and interceptors are not affected.

Messages parsed whole: short ones, which gain nothing; those that hold the other form too, of which the later one
counts; those with many fields; and malformed ones, for which protobuf raises the error. Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from eddyline.core.errors import BatchTooLarge
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

MessageT = TypeVar("MessageT")

SPLIT_BYTES_MIN: Final = 4096
"""40 rows of 100 bytes, which take 0.1 ms as objects."""
STEP_BYTES_MAX: Final = 1 << 20
"""Most bytes of a step of several appends. The WAL joins no more into one frame, and appends this large do not gain from
company. Such a step is parsed whole: at worst half a million records of two bytes, 60 MB as objects."""
FIELDS_MAX: Final = 64
"""Each is walked in Python, at 0.5 us; an append has ten, and one for every version it expects."""

_BYTES: Final = 2
_VARINT: Final = 0
_TOPIC_TAG: Final = log_pb2.AppendRecordsRequest.TOPIC_FIELD_NUMBER << 3 | _BYTES
_COLUMNS_TAG: Final = log_pb2.AppendRecordsRequest.COLUMNS_FIELD_NUMBER << 3 | _BYTES
_APPEND_TAG: Final = log_pb2.AppendStreamRequest.APPEND_FIELD_NUMBER << 3 | _BYTES
_APPENDS_TAG: Final = log_pb2.AppendStreamRequest.APPENDS_FIELD_NUMBER << 3 | _BYTES
_STEP_TAG_BYTES: Final = 5
"""Tag and length of a step of that size."""
_ROWS_TAG: Final = log_pb2.AppendBatch.ROWS_FIELD_NUMBER << 3 | _BYTES


class SplitRequest(NamedTuple, Generic[MessageT]):
    """A message, and its rows as a serialized RecordBatch; None = the rows, if any, are in the message."""

    message: MessageT
    rows: bytes | None = None


class _SplitMessage(NamedTuple):
    """A message's bytes without its rows, and the rows."""

    rest: bytes
    rows: bytes


def append_records_request(data: bytes) -> SplitRequest[log_pb2.AppendRecordsRequest]:
    """Parse a request of AppendRecords. Raises DecodeError."""
    message = log_pb2.AppendRecordsRequest
    if _begins_with_columns(data):
        return SplitRequest(message.FromString(data))
    cut = _cut(data, message.ROWS_FIELD_NUMBER, message.COLUMNS_FIELD_NUMBER)
    return (
        SplitRequest(message.FromString(data)) if cut is None else SplitRequest(message.FromString(cut.rest), cut.rows)
    )


def append_stream_request(data: bytes) -> SplitRequest[log_pb2.AppendStreamRequest]:
    """Parse a step of AppendStream; the rows are those of its append, if it has one.

    Raises:
        DecodeError. BatchTooLarge: a step of several appends has more than `STEP_BYTES_MAX`.
    """
    if len(data) > STEP_BYTES_MAX + _STEP_TAG_BYTES and data[0] == _APPENDS_TAG:
        raise BatchTooLarge(
            f"a step of several appends has at most {STEP_BYTES_MAX} bytes, not {len(data)}: send large appends alone",
            sizeBytes=len(data),
            limitBytes=STEP_BYTES_MAX,
        )
    cut = _cut_append(data)
    parse: Callable[[bytes], log_pb2.AppendStreamRequest] = log_pb2.AppendStreamRequest.FromString
    return SplitRequest(parse(data)) if cut is None else SplitRequest(parse(cut.rest), cut.rows)


def _begins_with_columns(data: bytes) -> bool:
    """Return True if columns follow the topic, as serializers write it: walking them would cost as much as parsing."""
    columns_offset = 2 + data[1] if len(data) >= SPLIT_BYTES_MIN and data[0] == _TOPIC_TAG and data[1] < 0x80 else 0
    return columns_offset > 0 and data[columns_offset] == _COLUMNS_TAG


def _cut_append(data: bytes) -> _SplitMessage | None:
    """Cut the rows out of a step that is an append and nothing else."""
    if len(data) < SPLIT_BYTES_MIN or data[0] != _APPEND_TAG:
        return None
    end = _varint_end(data, 1)
    # Serializers write rows first, so one byte tells a step of columns from one of rows.
    if end is None or data[end] != _ROWS_TAG or _number(data, 1, end) != len(data) - end:
        return None
    inner = _cut(data, log_pb2.AppendBatch.ROWS_FIELD_NUMBER, log_pb2.AppendBatch.COLUMNS_FIELD_NUMBER, at=end)
    if inner is None:
        return None
    # The rest is not longer than before, and its length is written in as many bytes.
    length = len(inner.rest)
    head = bytes([length >> 7 * byte & 0x7F | 0x80 for byte in range(end - 2)]) + bytes([length >> 7 * (end - 2)])
    return _SplitMessage(data[:1] + head + inner.rest, inner.rows)


def _cut(data: bytes, rows_number: int, other_number: int, *, at: int = 0) -> _SplitMessage | None:
    """Cut the field of `rows_number` out of the message that begins at `at`.

    Returns None if the message does not have it, or has the field of `other_number` too.
    """
    if len(data) < SPLIT_BYTES_MIN:
        return None
    rest: list[bytes] = []
    rows: list[bytes] = []
    fields = 0
    while at < len(data):
        begin = at
        fields += 1
        tag_end = _varint_end(data, at)
        value_at = None if tag_end is None else _varint_end(data, tag_end)
        if tag_end is None or value_at is None or fields > FIELDS_MAX:
            return None
        tag = _number(data, at, tag_end)
        at = value_at
        if tag & 7 == _BYTES:
            at += _number(data, tag_end, value_at)
        elif tag & 7 != _VARINT:
            return None
        if at > len(data) or tag == other_number << 3 | _BYTES:
            return None
        if tag == rows_number << 3 | _BYTES:
            rows.append(data[value_at:at])
        else:
            rest.append(data[begin:at])
    return _SplitMessage(b"".join(rest), rows[0] if len(rows) == 1 else b"".join(rows)) if rows else None


def _varint_end(data: bytes, at: int) -> int | None:
    """Return the offset after the varint at `at`; None = it is cut off, or longer than the five bytes of a tag or length."""
    for end in range(at, min(at + 5, len(data))):
        if data[end] < 0x80:
            return end + 1
    return None


def _number(data: bytes, start: int, end: int) -> int:
    number = 0
    for byte in range(end - 1, start - 1, -1):
        number = number << 7 | data[byte] & 0x7F
    return number
