"""Columns of a frame: a batch encoded, and decoded without copying. FORMAT.md's section "Columns" has the grammar.

The batch itself is canonical (`Batch.canonical`): an all-default column and a bitmap of all ones are absent, an absent
value has length 0. So batches of equal content give equal bytes, and the idempotency hash covers those bytes.
Decoding trusts the bytes, since the frame's checksum was verified, and checks only that every part lies inside the frame.
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
"""A binary column's bit, shifted by this, says that its validity bitmap is present."""
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
    """Encode the columns of a canonical batch, each part padded to 8 bytes. The batch's buffers are not copied."""
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
    """Decode a batch that references the buffer; return it and the number of bytes its columns take.

    Raises:
        BadColumns: a part reaches beyond the buffer, or `flags` are impossible.
    """
    if count == 0 and flags & COLUMN_FLAGS:
        raise BadColumns("columns without records")
    if (flags & VALIDITY) >> VALIDITY_SHIFT & ~flags:
        raise BadColumns("a validity bitmap without its column")
    binary: list[Column | None] = []
    offset = 0
    for bit in (KEY, DATA, TAG, NODE, META, VERSION):
        if not flags & bit:
            binary.append(None)
            continue
        validity = None
        if flags & VALIDITY & (bit << VALIDITY_SHIFT):
            validity = _part(columns, offset, (count + 7) >> 3)
            offset += len(validity) + 7 & ~7
        offsets = _part(columns, offset, 4 * (count + 1))
        offset += len(offsets) + 7 & ~7
        values = _part(columns, offset, int.from_bytes(offsets[-4:], "little"))
        offset += len(values) + 7 & ~7
        binary.append(Column(offsets, values, validity))
    ops = source_ts_ns = None
    if flags & OPS:
        ops = _part(columns, offset, count)
        offset += count + 7 & ~7
    if flags & SOURCE_TS:
        source_ts_ns = _part(columns, offset, 8 * count)
        offset += 8 * count
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
    return batch, offset


def content_hash(batch: Batch) -> bytes:
    """Return a 16-byte hash of the records that does not depend on their seqs: xxh3_128 of `u16 flags, u16 0, u32
    count` and the columns."""
    flags, parts, _ = encode_columns(batch)
    digest = xxh3_128(_HASH_HEAD.pack(flags, 0, batch.count))
    for part in parts:
        digest.update(part)
    return digest.digest()


def padding(size: int) -> bytes:
    """Return the zeros that pad `size` to the next multiple of 8."""
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


def _part(columns: memoryview, offset: int, size: int) -> memoryview:
    part = columns[offset : offset + size]
    if len(part) != size:
        raise BadColumns("a column ends after its frame")
    return part
