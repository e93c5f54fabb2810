"""Requests with their rows left as bytes: parsed by protobuf without the `RecordBatch` in them, which is cut out before.

Protobuf parses rows of a request whether anybody looks at its objects or not, and what packs them
(`eddyline.core.codec.row_decode`) wants bytes: parsing and serializing again was a third of what an append of rows cost the
store. So the field is cut out of the message's own bytes by protobuf's rules: where it comes twice its parts are one
after the other, which is what merging them means. All else stays with the generated class, so the contract's messages
are the only ones there are, and reflection and interceptors see nothing of it.

What is not cut is parsed whole: short messages, which gain nothing; those that hold the other form too, of which the later
one counts; many fields in one message; and anything malformed, of which protobuf tells. Threads: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

MessageT = TypeVar("MessageT")

APART_BYTES_MIN: Final = 4096
"""40 rows of 100 bytes, which take 0.1 ms as objects."""
FIELDS_MAX: Final = 64
"""Each is walked in Python, at 0.5 us; an append has ten, and one for every version it expects."""

_BYTES: Final = 2
_VARINT: Final = 0
_TOPIC_TAG: Final = log_pb2.AppendRecordsRequest.TOPIC_FIELD_NUMBER << 3 | _BYTES
_COLUMNS_TAG: Final = log_pb2.AppendRecordsRequest.COLUMNS_FIELD_NUMBER << 3 | _BYTES
_APPEND_TAG: Final = log_pb2.AppendStreamRequest.APPEND_FIELD_NUMBER << 3 | _BYTES
_ROWS_TAG: Final = log_pb2.AppendBatch.ROWS_FIELD_NUMBER << 3 | _BYTES


class SplitRequest(NamedTuple, Generic[MessageT]):
    """A message, and its rows as a serialized RecordBatch; None = they are in the message, if there are any."""

    message: MessageT
    rows: bytes | None = None


class _Cut(NamedTuple):
    """A message's bytes without its rows, and those."""

    rest: bytes
    rows: bytes


def append_records_request(data: bytes) -> SplitRequest[log_pb2.AppendRecordsRequest]:
    """A request of AppendRecords. Raises DecodeError."""
    message = log_pb2.AppendRecordsRequest
    if _begins_with_columns(data):
        return SplitRequest(message.FromString(data))
    cut = _cut(data, message.ROWS_FIELD_NUMBER, message.COLUMNS_FIELD_NUMBER)
    return (
        SplitRequest(message.FromString(data)) if cut is None else SplitRequest(message.FromString(cut.rest), cut.rows)
    )


def append_stream_request(data: bytes) -> SplitRequest[log_pb2.AppendStreamRequest]:
    """A step of AppendStream; the rows are those of its append. Raises DecodeError."""
    cut = _cut_append(data)
    parse: Callable[[bytes], log_pb2.AppendStreamRequest] = log_pb2.AppendStreamRequest.FromString
    return SplitRequest(parse(data)) if cut is None else SplitRequest(parse(cut.rest), cut.rows)


def _begins_with_columns(data: bytes) -> bool:
    """Whether columns come behind the topic, as serializers write it: a walk would cost as much as parsing."""
    at = 2 + data[1] if len(data) >= APART_BYTES_MIN and data[0] == _TOPIC_TAG and data[1] < 0x80 else 0
    return at > 0 and data[at] == _COLUMNS_TAG


def _cut_append(data: bytes) -> _Cut | None:
    """The same of a step that is an append and nothing else."""
    if len(data) < APART_BYTES_MIN or data[0] != _APPEND_TAG:
        return None
    end = _varint_end(data, 1)
    # Rows come first where serializers write them; a step of columns is told from them at once.
    if end is None or data[end] != _ROWS_TAG or _number(data, 1, end) != len(data) - end:
        return None
    inner = _cut(data, log_pb2.AppendBatch.ROWS_FIELD_NUMBER, log_pb2.AppendBatch.COLUMNS_FIELD_NUMBER, at=end)
    if inner is None:
        return None
    # The rest is at most as long as it was, and is told its length in as many bytes.
    length = len(inner.rest)
    head = bytes([length >> 7 * byte & 0x7F | 0x80 for byte in range(end - 2)]) + bytes([length >> 7 * (end - 2)])
    return _Cut(data[:1] + head + inner.rest, inner.rows)


def _cut(data: bytes, rows_number: int, other_number: int, *, at: int = 0) -> _Cut | None:
    """The bytes of the message that begins at `at` without the field of `rows_number`, if it has that and not the other."""
    if len(data) < APART_BYTES_MIN:
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
    return _Cut(b"".join(rest), rows[0] if len(rows) == 1 else b"".join(rows)) if rows else None


def _varint_end(data: bytes, at: int) -> int | None:
    """Where the varint at `at` stops; None = it is cut off, or longer than five bytes, as no tag and no length is."""
    for end in range(at, min(at + 5, len(data))):
        if data[end] < 0x80:
            return end + 1
    return None


def _number(data: bytes, start: int, end: int) -> int:
    number = 0
    for byte in range(end - 1, start - 1, -1):
        number = number << 7 | data[byte] & 0x7F
    return number
