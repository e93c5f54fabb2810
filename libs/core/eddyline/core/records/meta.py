"""Codec of a record's meta: named values in order, repeats kept.

    cell  = entry*
    entry = u16 name length, name (UTF-8), u32 value length, value        little-endian, no padding

No entries = the empty cell. The same bytes are on the wire (columns) and on disk. Cells of foreign columns are checked
together, in one round for the first entry of every cell, then one for the second; if there are few bytes, by decoding
them.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.errors import MalformedColumns, RecordTooLarge
from eddyline.core.records.column import Buffer, Column, offset_array, offset_list
from eddyline.core.records.record import META_BYTES_MAX, META_ENTRIES_MAX, MetaEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_NAME_LENGTH = Struct("<H")
_VALUE_LENGTH = Struct("<I")

FEW_BYTES: Final = 256
"""Up to this length cells are decoded: about 20 of the smallest entries at 1 us each; one round of numpy takes 25 us."""


class EntrySpans(NamedTuple):
    """EntrySpans of a column: cell, name's start, name's end and end of each; its value begins 4 bytes past the name."""

    cells: NDArray[np.int64]
    name_starts: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    ends: NDArray[np.int64]


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
            message = f"a meta name has {len(name)} bytes, a meta cell at most {META_BYTES_MAX}"
            raise RecordTooLarge(message, field="meta", sizeBytes=len(name), limitBytes=META_BYTES_MAX)
        parts += (_NAME_LENGTH.pack(len(name)), name, _VALUE_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def decode_meta(cell: bytes) -> tuple[MetaEntry, ...]:
    """Decode a cell.

    Raises:
        MalformedColumns: it does not follow the grammar.
    """
    entries: list[MetaEntry] = []
    offset, end = 0, len(cell)
    try:
        while offset < end:
            name_start = offset + 2
            name_end = name_start + _NAME_LENGTH.unpack_from(cell, offset)[0]
            value_start = name_end + 4
            offset = value_start + _VALUE_LENGTH.unpack_from(cell, name_end)[0]
            entries.append(MetaEntry(cell[name_start:name_end].decode(), cell[value_start:offset]))
    except (StructError, UnicodeDecodeError) as error:
        raise MalformedColumns("a meta cell is malformed", field="meta") from error
    if offset != end:
        raise MalformedColumns("a meta cell ends within a value", field="meta")
    return tuple(entries)


def check_meta_cells(column: Column) -> None:
    """Check every cell of a column whose offsets are valid.

    Raises:
        MalformedColumns: a cell does not follow the grammar, or a name is not UTF-8.
        RecordTooLarge: a cell has too many entries.
    """
    if len(column.values) > FEW_BYTES:
        _check_in_rounds(column.values, offset_array(column.offsets).astype(np.int64))
        return
    values = bytes(column.values)
    bounds = offset_list(column.offsets)
    for index in range(len(bounds) - 1):
        if bounds[index] != bounds[index + 1] and len(decode_meta(values[bounds[index] : bounds[index + 1]])) > (
            META_ENTRIES_MAX
        ):
            raise _too_many_entries(index)


def check_entry_counts(counts: Iterable[int]) -> None:
    """Check the numbers of entries of rows' metas, before any object is made of them.

    Raises:
        RecordTooLarge: a record has too many.
    """
    for index, count in enumerate(counts):
        if count > META_ENTRIES_MAX:
            message = f"record {index}: meta has {count} entries, at most {META_ENTRIES_MAX}"
            raise RecordTooLarge(message, field="meta", index=index, sizeEntries=count, limitEntries=META_ENTRIES_MAX)


def entries_of_cells(column: Column) -> EntrySpans:
    """Locate the entries of a valid column.

    Raises:
        MalformedColumns, RecordTooLarge: as `check_meta_cells`, names aside.
    """
    rounds = list(_rounds(np.frombuffer(column.values, dtype=np.uint8), offset_array(column.offsets).astype(np.int64)))
    cells, name_starts, name_ends, ends = map(np.concatenate, zip(*rounds, strict=True))
    order = np.argsort(cells, kind="stable")
    return EntrySpans(cells[order], name_starts[order], name_ends[order], ends[order])


def _check_in_rounds(values: Buffer, bounds: NDArray[np.int64]) -> None:
    raw = np.frombuffer(values, dtype=np.uint8)
    rounds = list(_rounds(raw, bounds))
    if raw.max() >= 0x80:
        _check_names(
            raw,
            np.concatenate([entries.name_starts for entries in rounds]),
            np.concatenate([entries.name_ends for entries in rounds]),
        )


def _rounds(raw: NDArray[np.uint8], bounds: NDArray[np.int64]) -> Iterator[EntrySpans]:
    """Yield the first entry of every cell that has one, then the second ones, and so on."""
    cells = np.flatnonzero(bounds[1:] > bounds[:-1])
    offsets, end = bounds[cells], bounds[cells + 1]
    for _ in range(META_ENTRIES_MAX):
        _check_within(offsets + 2, end)
        name_starts = offsets + 2
        name_ends = name_starts + _little_endian(raw, offsets, 2)
        _check_within(name_ends + 4, end)
        offsets = name_ends + 4 + _little_endian(raw, name_ends, 4)
        _check_within(offsets, end)
        yield EntrySpans(cells, name_starts, name_ends, offsets)
        unfinished = offsets < end
        if not unfinished.any():
            return
        cells, offsets, end = cells[unfinished], offsets[unfinished], end[unfinished]
    raise _too_many_entries(int(cells[0]))


def _check_within(offsets: NDArray[np.int64], end: NDArray[np.int64]) -> None:
    if (offsets > end).any():
        raise MalformedColumns("a meta cell ends within an entry", field="meta")


def _little_endian(raw: NDArray[np.uint8], offsets: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    number = raw[offsets].astype(np.int64)
    for byte in range(1, width):
        number += raw[offsets + byte].astype(np.int64) << (8 * byte)
    return number


def _check_names(raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Check names all at once: together they are UTF-8 and none begins within a character, so each is."""
    named = starts < ends
    starts, ends = starts[named], ends[named]
    # Between a name and the next one lie at least 6 bytes of lengths, so no edge is marked twice.
    edges = np.zeros(len(raw) + 1, dtype=np.int8)
    edges[starts] = 1
    edges[ends] = -1
    names = raw[np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)]
    try:
        str(names.data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedColumns("a meta name is not UTF-8", field="meta") from error
    if ((raw[starts] & 0xC0) == 0x80).any():
        raise MalformedColumns("a meta name is not UTF-8", field="meta")


def _too_many_entries(index: int) -> RecordTooLarge:
    message = f"record {index}: meta has more than {META_ENTRIES_MAX} entries"
    return RecordTooLarge(message, field="meta", index=index, limitEntries=META_ENTRIES_MAX)
