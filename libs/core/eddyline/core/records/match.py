"""Match on key or tag, as in record deletes: selects the cells that equal a value or start with it.

An absent cell never matches; an empty PREFIX matches every present one. Records of op GAP match like others; a caller
that must keep them excludes them itself. Threading: pure functions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.records.column import offset_array, presence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch

BYTES_AT_ONCE: Final = 16
"""Bytes of a value compared at once: 8 bytes of memory a byte and candidate, so 8 MB for 65 536 cells."""


class MatchField(IntEnum):
    """Column that a match compares. The numbers are on the wire, the names on disk."""

    KEY = 1
    TAG = 2


class MatchKind(IntEnum):
    """Comparison of a match. The numbers are on the wire, the names on disk."""

    EQ = 1
    PREFIX = 2


class Match(NamedTuple):
    """Cells of `field` that equal `value`, or start with it. A tag's value is its UTF-8."""

    field: MatchField
    kind: MatchKind
    value: bytes

    def covers(self, cell: bytes | None) -> bool:
        """Return True if this cell matches; None = absent."""
        if cell is None:
            return False
        return cell == self.value if self.kind is MatchKind.EQ else cell.startswith(self.value)


def matched(batch: Batch, match: Match) -> NDArray[np.int64]:
    """Return the indices of the records that match, ascending."""
    column = batch.key if match.field is MatchField.KEY else batch.tag
    if column is None:
        return np.zeros(0, dtype=np.int64)
    bounds = offset_array(column.offsets).astype(np.int64)
    sizes = np.diff(bounds)
    length = len(match.value)
    fitting = (sizes == length) if match.kind is MatchKind.EQ else (sizes >= length)
    candidates = np.flatnonzero(fitting & presence(column, batch.count))
    raw = np.frombuffer(column.values, dtype=np.uint8)
    for start in range(0, length, BYTES_AT_ONCE):
        if len(candidates) == 0:
            break
        part = np.frombuffer(match.value[start : start + BYTES_AT_ONCE], dtype=np.uint8)
        positions = (bounds[candidates] + start)[:, None] + np.arange(len(part))
        candidates = candidates[(raw[positions] == part).all(axis=1)]
    return candidates
