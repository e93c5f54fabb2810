"""Operations of the row codec: copying many spans of bytes, reading and writing many varints, or one.

Three ways to copy, the cheapest is chosen (1 000 spans): evenly spaced spans of one length as a grid, 0.02 us each;
small ones byte by byte through an index, 3 ns a byte; the rest one by one, 0.1 us each. Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview

INDEX_BYTES_MAX: Final = 16
"""Spans up to this average length go through an index; for longer ones a slice of each takes less time."""
_VARINT_BITS_MAX: Final = 64
_VARINT_BYTES_MAX: Final = 10
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


class Undecodable(Exception):
    """The bytes are malformed, or of a shape that is left to protobuf."""


def gather(source: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytes:
    """Concatenate the spans of `source`."""
    total = int(sizes.sum())
    if total == 0:
        return b""
    raw = np.frombuffer(source, dtype=np.uint8)
    stride = _stride(starts, sizes)
    if stride:
        return as_strided(raw[starts[0] :], (len(starts), int(sizes[0])), (stride, 1), writeable=False).tobytes()
    if total <= INDEX_BYTES_MAX * len(starts):
        return raw[_index(starts, sizes, total)].tobytes()
    return b"".join([source[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])


def scatter(
    target: bytearray, at: NDArray[np.int64], source: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Copy each span of `source` to its offset in `target`."""
    total = int(sizes.sum())
    if total == 0:
        return
    out, raw = np.frombuffer(target, dtype=np.uint8), np.frombuffer(source, dtype=np.uint8)
    to_stride, stride = _stride(at, sizes), _stride(starts, sizes)
    if to_stride and stride:
        shape = len(at), int(sizes[0])
        spans = as_strided(raw[starts[0] :], shape, (stride, 1), writeable=False)
        as_strided(out[at[0] :], shape, (to_stride, 1))[:] = spans
    elif total <= INDEX_BYTES_MAX * len(at):
        out[_index(at, sizes, total)] = raw[_index(starts, sizes, total)]
    else:
        to, cells = memoryview(target), memoryview(source)
        offsets = zip(at.tolist(), starts.tolist(), sizes.tolist(), strict=True)
        for offset, start, size in offsets:
            to[offset : offset + size] = cells[start : start + size]


def _stride(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Return the distance of spans of one length that are evenly spaced and do not overlap; 0 = they are not."""
    if len(starts) < 2:
        return int(sizes[0])
    steps = np.diff(starts)
    stride, size = int(steps[0]), int(sizes[0])
    return stride if stride >= size and (steps == stride).all() and (sizes == size).all() else 0


def _index(starts: NDArray[np.int64], sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return the offset of each byte of the spans."""
    index = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    index += np.arange(total)
    return index


# --- varints ----------------------------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    """Return one number, 0 to 2^64 - 1, as a varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def padded(data: bytes) -> NDArray[np.uint8]:
    """Return the bytes with ten zeros appended, so that a varint that begins within them or at their end can be read."""
    return np.frombuffer(data + bytes(_VARINT_BYTES_MAX), dtype=np.uint8)


def read_varints(
    raw: NDArray[np.uint8], at: NDArray[np.int64], *, bytes_max: int = _VARINT_BYTES_MAX
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Read the varints at `at` in `padded` bytes.

    Returns the numbers and the offsets after them, which may be past the message that the varint belongs to.

    Raises:
        Undecodable: one runs past 64 bits.
    """
    byte, at = raw[at], at + 1
    largest = byte.max()
    if bytes_max == 1 and largest > 1:
        raise Undecodable  # 9 bytes of 7 bits are read: one bit is left
    if largest < 0x80:
        return byte.astype(np.uint64), at
    values = (byte & np.uint8(0x7F)).astype(np.uint64)
    more = byte >= 0x80
    if more.all():
        rest, at = read_varints(raw, at, bytes_max=bytes_max - 1)
        return values | rest << np.uint64(7), at
    rest, at[more] = read_varints(raw, at[more], bytes_max=bytes_max - 1)
    values[more] |= rest << np.uint64(7)
    return values, at


def varint_sizes(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the size of each varint, 1 to 10 bytes."""
    sizes = np.ones(len(values), dtype=np.int64)
    largest = int(values.max(initial=0))
    for shift in range(7, _VARINT_BITS_MAX, 7):
        if largest >> shift == 0:
            break
        sizes += values >= np.uint64(1 << shift)
    return sizes


def write_varints(target: bytearray, at: NDArray[np.int64], values: NDArray[np.uint64]) -> None:
    """Write each value as a varint at its offset."""
    out = np.frombuffer(target, dtype=np.uint8)
    while len(at):
        more = values >= 0x80
        if not more.any():
            out[at] = values
            return
        out[at] = (values & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))
        if not more.all():
            at, values = at[more], values[more]
        at, values = at + 1, values >> np.uint64(7)
