"""Python values to and from the cells of a column: bytes, text, meta, and fixed-width numbers.

Besides `eddyline.core.records.batch.Batch.from_rows` and `to_rows` this is the only code that works cell by cell; each
loop is one comprehension or one call into C. Packed columns are canonical (`eddyline.core.records.column`).
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from eddyline.core.errors import InvalidArgument, MalformedColumns, RecordTooLarge
from eddyline.core.records.column import Buffer, Column, check_length, presence
from eddyline.core.records.meta import decode_meta, encode_meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import MetaEntry

NumberKind = Literal["Q", "q"]
"""Unsigned or signed 64 bits, as `array` names them."""


def pack_cells(cells: Sequence[bytes | None], *, absence: bool) -> Column | None:
    """Pack cells into a canonical column; None means absent, or empty in a column without absence.

    Raises:
        MalformedColumns: the cells reach 2^31 bytes.
    """
    count = len(cells)
    if count == 1:
        cell = cells[0]
        if cell is None or not (absence or cell):
            return None
        check_length(len(cell))
        return Column(b"\0\0\0\0" + len(cell).to_bytes(4, "little"), cell, None)
    absent_count = cells.count(None)
    if absent_count == count:
        return None
    present = [cell or b"" for cell in cells] if absent_count else cells
    values = b"".join(present)  # type: ignore[arg-type]  # no None is left
    if not (absence or values):
        return None
    check_length(len(values))
    offsets = array("I", accumulate(map(len, present), initial=0)).tobytes()  # type: ignore[arg-type]  # likewise
    if not (absence and absent_count):
        return Column(offsets, values, None)
    bits = np.packbits(np.array([cell is not None for cell in cells]), bitorder="little")
    return Column(offsets, values, bits.tobytes())


def cells_of(column: Column, count: int) -> list[bytes | None]:
    """Return the cells; None = absent."""
    values = bytes(column.values)
    if count == 1:
        return [values if column.validity is None or column.validity[0] & 1 else None]
    bounds = pairwise(array("I", bytes(column.offsets)))
    if column.validity is None:
        return [values[start:end] for start, end in bounds]
    flags = presence(column, count).tolist()
    return [values[start:end] if flag else None for (start, end), flag in zip(bounds, flags, strict=True)]


def pack_texts(cells: Sequence[str | None]) -> Column | None:
    """Pack texts into a canonical column with absence.

    Raises:
        MalformedColumns: a text is not UTF-8 (a lone surrogate).
    """
    if cells.count(None) == len(cells):
        return None
    try:
        return pack_cells([cell if cell is None else cell.encode() for cell in cells], absence=True)
    except UnicodeEncodeError as error:
        raise MalformedColumns("a tag or node is not UTF-8") from error


def texts_of(column: Column, count: int) -> list[str | None]:
    """Return the texts of a valid column; None = absent."""
    return [cell if cell is None else cell.decode() for cell in cells_of(column, count)]


def pack_metas(metas: Sequence[tuple[MetaEntry, ...]]) -> Column | None:
    """Pack metas into a canonical column.

    Raises:
        RecordTooLarge, MalformedColumns: as `encode_meta`.
    """
    if not any(metas):
        return None
    try:
        cells = [encode_meta(meta) if meta else b"" for meta in metas]
    except RecordTooLarge as error:
        index = next(i for i, meta in enumerate(metas) if any(len(entry.name.encode()) > 0xFFFF for entry in meta))
        raise RecordTooLarge(f"record {index}: {error.message}", index=index, **error.metadata) from error
    return pack_cells(cells, absence=False)


def metas_of(column: Column, count: int) -> list[tuple[MetaEntry, ...]]:
    """Return the metas of a valid column."""
    return [decode_meta(cell) if cell else () for cell in cells_of(column, count)]


def pack_numbers(kind: NumberKind, numbers: Sequence[int], field: str) -> bytes:
    """Pack numbers, 8 bytes each.

    Raises:
        InvalidArgument: one does not fit, naming `field`.
    """
    try:
        return array(kind, numbers).tobytes()
    except OverflowError as error:
        raise InvalidArgument(f"{field} does not fit into 64 bits", field=field) from error


def numbers_of(kind: NumberKind, buffer: Buffer) -> list[int]:
    """Return the numbers of a buffer, 8 bytes each."""
    return array(kind, bytes(buffer)).tolist()
