"""Answers of key reads: a fold's stored entries to bytes on the wire, and back to rows.

An answer is written from the entries' own bytes, without an object a key: the fields of a stored entry
(`eddyline.core.records.fold_entry`), whose seq is 1 or more, are those of a row. The bytes are the ones that protobuf makes
of the same rows. Of many entries the numbers, half of the work, are written at once. Columns are decoded in bulk.
Rejected: all fields at once, by numpy or by Arrow's join of pieces: 200 us before the first of 100 keys is written.
Threading: pure functions.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.codec.records import answer_from_columns, record_from_pb
from eddyline.core.codec.varint import encode_varint
from eddyline.core.records.fold_entry import HAS_DATA, HAS_NODE, HAS_TAG, HEAD, HEAD_BYTES, PLACE, SHAPE, VERSION_BYTES
from eddyline.core.records.record import Record, effective_version
from eddyline.v1 import types_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eddyline.v1 import fold_pb2

HEADS_AT_ONCE_MIN: Final = 16
"""From this number of entries on numpy writes their numbers in less time: 20 us and 0.3 a key, in place of 1.2 a key."""
COLUMNS_MIN: Final = 32
"""From this number of keys on our callers ask for columns. Below, store and caller together take less time for rows: columns
cost 55 us at the one and 30 at the other before the first key."""

_U64: Final = (1 << 64) - 1
_ENTRY: Final = b"\x0a"
"""Tag of an answer's entry, and of the row in it: both have number 1."""
_STATE: Final = b"\x12"
_NOT_LIVE: Final = b"\x0a\x00"
_SEQ, _TS_MS, _SOURCE_TS_NS, _OP_AND_KEY = b"\x08", b"\x10", b"\x18", b"\x20\x02\x2a"
_DATA, _TAG, _NODE, _META, _VERSION = b"\x32", b"\x3a", b"\x42", b"\x4a", b"\x52"
_META_NAME, _META_VALUE = b"\x0a", b"\x12"
_NUMBER_TAGS: Final = np.frombuffer(_SEQ + _TS_MS + _SOURCE_TS_NS, dtype=np.uint8)
_SHIFTS: Final = np.arange(0, 70, 7, dtype=np.uint64)
_SEQ_AT: Final = SHAPE.size
_new_record: Final = partial(tuple.__new__, Record)
"""Makes a record from its fields, of which the version is the last, at half the time of `_replace`."""
_length: Final = lru_cache(maxsize=1024)(encode_varint)
"""Lengths of keys and values repeat: half of the time of encoding one."""
_NAME_LEN: Final = Struct("<H")
_VALUE_LEN: Final = Struct("<I")


def encode_get(key: bytes, value: bytes, state: bytes) -> bytes:
    """Return a serialized GetEntryResponse of a checked stored entry and a serialized FoldState."""
    row = _row(key, value, _head(*PLACE.unpack_from(value, SHAPE.size)))
    return b"".join((*_field(_ENTRY, row), *_field(_STATE, state)))


def encode_batch_get(entries: bytes, state: bytes) -> bytes:
    """Return a serialized BatchGetEntriesResponse of its encoded entries and a serialized FoldState."""
    return b"".join((entries, *_field(_STATE, state)))


def encode_entries(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    """Return the entries of a serialized BatchGetEntriesResponse. Values are checked; None = not live."""
    heads = iter(_heads([value for value in values if value is not None]))
    parts: list[bytes] = []
    for key, value in zip(keys, values, strict=True):
        if value is None:
            parts.append(_NOT_LIVE)
            continue
        row = _row(key, value, next(heads))
        length = _length(len(row))
        parts += (_ENTRY, _length(1 + len(length) + len(row)), _ENTRY, length, row)
    return b"".join(parts)


def _row(key: bytes, value: bytes, head: bytes) -> bytes:
    """Return a checked stored entry as a serialized Record, its version as readers get it; `head` is the row's begin."""
    version_bytes = VERSION_BYTES.get(value[: SHAPE.size])
    if version_bytes is None:
        return _other_row(key, value, head)
    data_at = HEAD_BYTES + version_bytes
    version = value[HEAD_BYTES:data_at] or value[_SEQ_AT : _SEQ_AT + 8][::-1]
    data = value[data_at:]
    lengths = _length(len(key)), _length(len(data)), _length(len(version))
    return b"".join((head, lengths[0], key, _DATA, lengths[1], data, _VERSION, lengths[2], version))


def _other_row(key: bytes, value: bytes, head: bytes) -> bytes:
    """As `_row`, of an entry of any shape."""
    _, flags, version_len, tag_len, node_len, meta_len, _, _, _, _ = HEAD.unpack_from(value)
    tag_at = HEAD_BYTES + version_len
    node_at = tag_at + tag_len
    meta_at = node_at + node_len
    data_at = meta_at + meta_len
    parts = [head, _length(len(key)), key]
    if flags & HAS_DATA:
        parts += _field(_DATA, value[data_at:])
    if flags & HAS_TAG:
        parts += _field(_TAG, value[tag_at:node_at])
    if flags & HAS_NODE:
        parts += _field(_NODE, value[node_at:meta_at])
    if meta_len:
        parts += _meta(value[meta_at:data_at])
    parts += _field(_VERSION, value[HEAD_BYTES:tag_at] or value[_SEQ_AT : _SEQ_AT + 8][::-1])
    return b"".join(parts)


def _heads(values: Sequence[bytes]) -> list[bytes]:
    """Return the begin of each row: seq, times, op, and the tag of the key, which every entry has."""
    if len(values) < HEADS_AT_ONCE_MIN:
        return [_head(*PLACE.unpack_from(value, SHAPE.size)) for value in values]
    numbers = np.frombuffer(b"".join([value[_SEQ_AT:HEAD_BYTES] for value in values]), dtype="<u8").reshape(-1, 3)
    rest = numbers[:, :, None] >> _SHIFTS
    used = np.empty((len(values), 3, 11), dtype=np.bool_)
    # A number of 0 is left out: tag and first byte are used if any bit is set, a later byte if a bit from it on is.
    used[:, :, 1:] = rest != 0
    used[:, :, 0] = used[:, :, 1]
    encoded = np.empty(used.shape, dtype=np.uint8)
    encoded[:, :, 0] = _NUMBER_TAGS
    encoded[:, :, 1:] = rest & np.uint64(0x7F)
    encoded[:, :, 1:-1] |= used[:, :, 2:].view(np.uint8) << 7
    content = encoded[used].tobytes()
    ends = np.cumsum(np.count_nonzero(used, axis=(1, 2))).tolist()
    return [content[start:end] + _OP_AND_KEY for start, end in pairwise((0, *ends))]


def _head(seq: int, ts_ms: int, source_ts_ns: int) -> bytes:
    head = _SEQ + encode_varint(seq) if seq else b""
    if ts_ms:
        head += _TS_MS + encode_varint(ts_ms & _U64)
    if source_ts_ns:
        head += _SOURCE_TS_NS + encode_varint(source_ts_ns & _U64)
    return head + _OP_AND_KEY


def _field(tag: bytes, content: bytes) -> tuple[bytes, bytes, bytes]:
    return tag, _length(len(content)), content


def _meta(cell: bytes) -> Iterable[bytes]:
    """Encode the entries of a valid meta cell; an empty name or value is left out, as protobuf does."""
    at = 0
    while at < len(cell):
        name_end = at + 2 + _NAME_LEN.unpack_from(cell, at)[0]
        value_at = name_end + 4
        end = value_at + _VALUE_LEN.unpack_from(cell, name_end)[0]
        name, value = cell[at + 2 : name_end], cell[value_at:end]
        parts = (_field(_META_NAME, name) if name else ()) + (_field(_META_VALUE, value) if value else ())
        yield from _field(_META, b"".join(parts))
        at = end


def format_of(key_count: int) -> types_pb2.BatchFormat.ValueType:
    """Return the format that our callers ask for."""
    return types_pb2.BATCH_FORMAT_COLUMNS if key_count >= COLUMNS_MIN else types_pb2.BATCH_FORMAT_UNSPECIFIED


def entries_from_pb(answer: fold_pb2.BatchGetEntriesResponse, keys: Sequence[bytes]) -> tuple[Record | None, ...]:
    """Decode the entries of `keys`, in their order, from an answer in either form; None = not live. Versions are as
    readers get them.

    Raises:
        MalformedColumns, RecordTooLarge: as `answer_from_columns`.
    """
    if not answer.HasField("columns"):
        return tuple([record_from_pb(maybe.entry) if maybe.HasField("entry") else None for maybe in answer.entries])
    rows = _rows(answer.columns)
    return _placed(
        [row if row.version else _new_record((*row[:-1], effective_version(b"", row.seq))) for row in rows], keys
    )


def stored_entries_from_pb(
    answer: fold_pb2.BatchGetEntriesResponse, keys: Sequence[bytes]
) -> tuple[Record | None, ...]:
    """As `entries_from_pb`, with versions as they are stored: empty if none was set."""
    if answer.HasField("columns"):
        return _placed(_rows(answer.columns), keys)
    entries = entries_from_pb(answer, keys)
    return tuple([entry if entry is None else _as_stored(entry) for entry in entries])


def _rows(columns: types_pb2.ColumnarBatch) -> list[Record]:
    return answer_from_columns(columns).to_rows() if columns.count else []


def _placed(rows: Sequence[Record], keys: Sequence[bytes]) -> tuple[Record | None, ...]:
    by_key = {row.key: row for row in rows}
    return tuple(map(by_key.get, keys))


def _as_stored(entry: Record) -> Record:
    return entry._replace(version=b"") if entry.version == effective_version(b"", entry.seq) else entry
