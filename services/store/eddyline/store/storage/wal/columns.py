"""A batch as a frame's columns, and back without copying. The grammar is FORMAT.md's section "Columns".

Canonical form is the batch's own doing (`Batch.canonical`): an all-default column and a bitmap of all ones are not there, an
absent value has length 0. So batches of equal content give equal bytes, and the idempotency hash is over those.
Decoding trusts what the frame's checksum vouches for, and checks only that every part lies inside the frame.
Threading: pure functions over immutable buffers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_128

from eddyline.core.records.batch import Batch, Column

if TYPE_CHECKING:
    from eddyline.core.runtime.fs import Buffer

KEY: Final = 1 << 0
DATA: Final = 1 << 1
TAG: Final = 1 << 2
NODE: Final = 1 << 3
META: Final = 1 << 4
VERSION: Final = 1 << 5
OPS: Final = 1 << 6
SOURCE_TS: Final = 1 << 7
VALIDITY_SHIFT: Final = 8
"""A binary column's bit, shifted so far, says that its validity bitmap is there."""
VALIDITY: Final = (KEY | DATA | TAG | NODE) << VALIDITY_SHIFT
COLUMN_FLAGS: Final = 0xFF | VALIDITY

_ZEROS: Final = tuple(bytes(size) for size in range(8))
_HASH_HEAD: Final = struct.Struct("<HHI")


class BadColumns(Exception):
    """The parts do not fit the frame that holds them."""


class EncodedColumns(NamedTuple):
    """Parts to be joined; `length` is their total, a multiple of 8."""

    flags: int
    parts: list[Buffer]
    length: int


def encode_columns(batch: Batch) -> EncodedColumns:
    """The columns of a canonical batch, each part padded to 8 bytes. The batch's buffers are taken as they are."""
    parts: list[Buffer] = []
    flags, length, bit = 0, 0, KEY
    for column in batch.columns():
        if column is not None:
            flags |= bit
            if column.validity is not None:
                flags |= bit << VALIDITY_SHIFT
                length += _add(parts, column.validity)
            length += _add(parts, column.offsets)
            length += _add(parts, column.values)
        bit <<= 1
    if batch.ops is not None:
        flags |= OPS
        length += _add(parts, batch.ops)
    if batch.source_ts_ns is not None:
        flags |= SOURCE_TS
        length += _add(parts, batch.source_ts_ns)
    assert flags & ~COLUMN_FLAGS == 0
    return EncodedColumns(flags, parts, length)


def decode_columns(
    flags: int, count: int, columns: memoryview, *, first_seq: int = 0, ts_ms: int = 0
) -> tuple[Batch, int]:
    """A batch over the buffer itself, and how many bytes of it are columns.

    Raises:
        BadColumns: a part reaches beyond the buffer, or `flags` name what cannot be there.
    """
    if count == 0 and flags & COLUMN_FLAGS:
        raise BadColumns("columns of no record")
    if (flags & VALIDITY) >> VALIDITY_SHIFT & ~flags:
        raise BadColumns("a validity bitmap without its column")
    binary: list[Column | None] = []
    at = 0
    for bit in (KEY, DATA, TAG, NODE, META, VERSION):
        if not flags & bit:
            binary.append(None)
            continue
        validity = None
        if flags & VALIDITY & (bit << VALIDITY_SHIFT):
            validity = _part(columns, at, (count + 7) >> 3)
            at += len(validity) + 7 & ~7
        offsets = _part(columns, at, 4 * (count + 1))
        at += len(offsets) + 7 & ~7
        values = _part(columns, at, int.from_bytes(offsets[-4:], "little"))
        at += len(values) + 7 & ~7
        binary.append(Column(offsets, values, validity))
    ops = source_ts_ns = None
    if flags & OPS:
        ops = _part(columns, at, count)
        at += count + 7 & ~7
    if flags & SOURCE_TS:
        source_ts_ns = _part(columns, at, 8 * count)
        at += 8 * count
    key, data, tag, node, meta, version = binary
    batch = Batch(
        count=count,
        first_seq=first_seq,
        ts_ms=ts_ms,
        ops=ops,
        source_ts_ns=source_ts_ns,
        key=key,
        data=data,
        tag=tag,
        node=node,
        meta=meta,
        version=version,
    )
    return batch, at


def content_hash(batch: Batch) -> bytes:
    """16 bytes that two batches share where their records are equal, wherever they were placed: xxh3_128 of
    `u16 flags, u16 0, u32 count` and the columns."""
    flags, parts, _ = encode_columns(batch)
    digest = xxh3_128(_HASH_HEAD.pack(flags, 0, batch.count))
    for part in parts:
        digest.update(part)
    return digest.digest()


def padding(size: int) -> bytes:
    """The zeros that bring `size` to the next multiple of 8."""
    return _ZEROS[-size & 7]


def _add(parts: list[Buffer], part: Buffer) -> int:
    size = len(part)
    if not size:
        return 0
    parts.append(part)
    over = -size & 7
    if over:
        parts.append(_ZEROS[over])
    return size + over


def _part(columns: memoryview, at: int, size: int) -> memoryview:
    part = columns[at : at + size]
    if len(part) != size:
        raise BadColumns("a part reaches beyond its frame")
    return part
