"""Parses answers of ReadSplit from their bytes: a batch's message is read in place, in the buffer that gRPC returned.

protobuf copies it once into its arena, and once more at each look: of some 5 MB a message that is a third of a task's
processor time. Every other answer, and a batch with a field that this does not know, goes through protobuf.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from eddyline.v1 import segment_pb2 as pb

_BATCH: Final = 0x12
"""`ReadSplitResponse.batch`: field 2, with a length."""
_MESSAGE: Final = 0x0A
_CHECKSUM: Final = 0x11
_COUNT: Final = 0x18
_FIXED64: Final = Struct("<Q")


class ArrowFrame(NamedTuple):
    """An `ArrowBatch`, its message not copied."""

    message: memoryview
    checksum: int
    rows: int


def frame_of(answer: bytes) -> ArrowFrame | pb.ReadSplitResponse:
    """One answer.

    Raises:
        DecodeError: it is none (`google.protobuf.message`).
    """
    if answer[:1] == bytes([_BATCH]):
        try:
            found = _batch(answer)
        except (IndexError, ValueError):
            found = None  # protobuf says what is wrong with it
        if found is not None:
            return found
    return pb.ReadSplitResponse.FromString(answer)


def _batch(answer: bytes) -> ArrowFrame | None:
    length, at = _varint(answer, 1)
    if at + length != len(answer):
        return None
    message, checksum, count = memoryview(b""), 0, 0
    while at < len(answer):
        tag = answer[at]
        at += 1
        if tag == _MESSAGE:
            size, at = _varint(answer, at)
            message = memoryview(answer)[at : at + size]
            if len(message) != size:
                raise ValueError("a message exceeds its answer")
            at += size
        elif tag == _CHECKSUM:
            if at + 8 > len(answer):
                raise ValueError("a checksum exceeds its answer")
            (checksum,) = _FIXED64.unpack_from(answer, at)
            at += 8
        elif tag == _COUNT:
            count, at = _varint(answer, at)
        else:
            return None
    return ArrowFrame(message, checksum, count)


class _Varint(NamedTuple):
    value: int
    end: int


def _varint(data: bytes, at: int) -> _Varint:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _Varint(value, at)
        shift += 7
        if shift > 63:
            raise ValueError("a number exceeds 64 bits")
