"""Reader's filter over a batch: selects the records that pass.

Conditions are evaluated a column at a time. Few patterns are compared with all cells at once; with many, each cell is
looked up in a set, about 0.1 us each. Records of op GAP pass every filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.cells import cells_of
from eddyline.core.records.column import offset_array, presence
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eddyline.core.model.read import RecordFilter
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.column import Column

PATTERNS_AT_ONCE: Final = 8
"""A pattern costs 10 to 50 us per 1 000 cells, looking the cells up 100 to 300 us for any number of patterns."""
PATTERN_BYTES_AT_ONCE: Final = 256
"""The comparison takes 8 bytes of memory a byte of pattern and cell: at most 20 MB for 10 000 cells."""


def matching(batch: Batch, record_filter: RecordFilter) -> NDArray[np.int64] | None:
    """Return the indices of the records that pass, ascending; None = all pass."""
    if record_filter.passes_all() or batch.count == 0:
        return None
    passing = np.ones(batch.count, dtype=np.bool_)
    if record_filter.ops:
        wanted = np.zeros(256, dtype=np.bool_)
        wanted[[op for op in record_filter.ops if 0 <= op < 256]] = True
        passing &= wanted[batch.ops_array()]
    if record_filter.key_prefixes:
        passing &= _starting(batch.key, batch.count, record_filter.key_prefixes)
    if record_filter.tags:
        passing &= _equal(batch.tag, batch.count, [tag.encode() for tag in record_filter.tags])
    if record_filter.exclude_nodes:
        passing &= ~_equal(batch.node, batch.count, [node.encode() for node in record_filter.exclude_nodes])
    if batch.has_gaps:
        passing |= batch.ops_array() == Op.GAP
    return None if passing.all() else np.flatnonzero(passing)


def _starting(column: Column | None, count: int, prefixes: Sequence[bytes]) -> NDArray[np.bool_]:
    if column is None:
        return np.zeros(count, dtype=np.bool_)
    if not _few(prefixes):
        wanted = tuple(prefixes)
        passing = [cell is not None and cell.startswith(wanted) for cell in cells_of(column, count)]
        return np.array(passing, dtype=np.bool_)
    return _matching_any(column, count, prefixes, whole=False)


def _equal(column: Column | None, count: int, values: Sequence[bytes]) -> NDArray[np.bool_]:
    if column is None:
        return np.zeros(count, dtype=np.bool_)
    if not _few(values):
        wanted = set(values)
        return np.array([cell in wanted for cell in cells_of(column, count)], dtype=np.bool_)
    return _matching_any(column, count, values, whole=True)


def _few(patterns: Sequence[bytes]) -> bool:
    return len(patterns) <= PATTERNS_AT_ONCE and sum(map(len, patterns)) <= PATTERN_BYTES_AT_ONCE


def _matching_any(column: Column, count: int, patterns: Sequence[bytes], *, whole: bool) -> NDArray[np.bool_]:
    """Return flags of the present cells that equal one of `patterns`, or start with one."""
    bounds = offset_array(column.offsets)
    sizes = np.diff(bounds)
    raw = np.frombuffer(column.values, dtype=np.uint8)
    passing = np.zeros(count, dtype=np.bool_)
    for pattern in patterns:
        length = len(pattern)
        candidates = np.flatnonzero(sizes == length if whole else sizes >= length)
        if length:
            positions = bounds[candidates].astype(np.int64)[:, None] + np.arange(length)
            candidates = candidates[(raw[positions] == np.frombuffer(pattern, dtype=np.uint8)).all(axis=1)]
        passing[candidates] = True
    return passing & presence(column, count) if column.validity is not None else passing
