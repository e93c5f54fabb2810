"""The codec of a record's meta: named values in order, repeats kept.

    cell  = entry*
    entry = u16 name length, name (UTF-8), u32 value length, value        little-endian, no padding

No entries = the empty cell. The same bytes are on the wire (columns) and on disk.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING

from eddyline.core.errors import MalformedColumns, RecordTooLarge
from eddyline.core.record import META_BYTES_MAX, MetaEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME_LENGTH = Struct("<H")
_VALUE_LENGTH = Struct("<I")


def encode_meta(entries: Iterable[MetaEntry]) -> bytes:
    """Encode entries as a cell.

    Raises:
        RecordTooLarge: a name has more than 65 535 bytes.
        MalformedColumns: a name is not UTF-8 (a lone surrogate).
    """
    parts: list[bytes] = []
    for entry_name, value in entries:
        try:
            name = entry_name.encode()
        except UnicodeEncodeError as error:
            raise MalformedColumns("a meta name is not UTF-8", field="meta") from error
        if len(name) > 0xFFFF:
            message = f"a meta name has {len(name)} bytes; a cell's bound is {META_BYTES_MAX}"
            raise RecordTooLarge(message, field="meta", sizeBytes=len(name), limitBytes=META_BYTES_MAX)
        parts += (_NAME_LENGTH.pack(len(name)), name, _VALUE_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def decode_meta(cell: bytes) -> tuple[MetaEntry, ...]:
    """Decode a cell.

    Raises:
        MalformedColumns: it does not follow the grammar.
    """
    entries: list[MetaEntry] = []
    at, end = 0, len(cell)
    try:
        while at < end:
            name_at = at + 2
            name_end = name_at + _NAME_LENGTH.unpack_from(cell, at)[0]
            value_at = name_end + 4
            at = value_at + _VALUE_LENGTH.unpack_from(cell, name_end)[0]
            entries.append(MetaEntry(cell[name_at:name_end].decode(), cell[value_at:at]))
    except (StructError, UnicodeDecodeError) as error:
        raise MalformedColumns("a meta cell does not follow its grammar", field="meta") from error
    if at != end:
        raise MalformedColumns("a meta cell ends within a value", field="meta")
    return tuple(entries)
