"""Columns of fixed width: seqs, commit times, source times (8 bytes each) and ops (1 byte), packed, sliced and joined.

Redundant columns are left out, by invariants I2 and I3 of `eddyline.core.records.batch`. Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.errors import InvalidOp
from eddyline.core.records.cells import pack_numbers
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eddyline.core.records.column import Buffer

APPEND_BYTE: Final = bytes([Op.APPEND])


def pack_seqs(seqs: Sequence[int]) -> tuple[int, bytes | None]:
    """Return the first seq, and all of them if they are not consecutive. Raises: InvalidArgument: one does not fit."""
    first_seq, count = seqs[0], len(seqs)
    if first_seq == 0 and not any(seqs):
        return 0, None
    if first_seq and seqs[-1] - first_seq == count - 1 and tuple(seqs) == tuple(range(first_seq, first_seq + count)):
        return first_seq, None
    return first_seq, pack_numbers("Q", seqs, "seq")


def pack_times(times: Sequence[int]) -> tuple[int, bytes | None]:
    """Return the first commit time, and all of them if they differ. Raises: InvalidArgument: one does not fit."""
    if times.count(times[0]) == len(times):
        return times[0], None
    return times[0], pack_numbers("q", times, "ts_ms")


def pack_ops(ops: Sequence[int]) -> Buffer | None:
    """Return the ops, None if all are APPEND. Raises: InvalidOp: one does not fit."""
    try:
        return canonical_ops(bytes(ops))
    except ValueError as error:
        raise InvalidOp("an op does not fit into a byte", field="op") from error


def canonical_seqs(first_seq: int, seqs: Buffer | None) -> tuple[int, Buffer | None]:
    """Return the first seq, and all of them if they are not consecutive."""
    if seqs is None:
        return first_seq, None
    array = np.frombuffer(seqs, dtype="<u8")
    first, count = int(array[0]), len(array)
    if first == 0:
        return 0, seqs if array.any() else None
    # The last one first: a step past 2^64 would wrap and look consecutive.
    if int(array[-1]) - first == count - 1 and (np.diff(array) == 1).all():
        return first, None
    return first, seqs


def canonical_each(ts_ms: int, ts_ms_each: Buffer | None) -> tuple[int, Buffer | None]:
    """Return the first commit time, and all of them if they differ."""
    if ts_ms_each is None:
        return ts_ms, None
    array = np.frombuffer(ts_ms_each, dtype="<i8")
    first = int(array[0])
    return first, None if (array == first).all() else ts_ms_each


def canonical_ops(ops: Buffer | None) -> Buffer | None:
    """Return the ops, None if all are APPEND."""
    return None if ops is None or bytes(ops).count(APPEND_BYTE) == len(ops) else ops


def canonical_times(times: Buffer | None) -> Buffer | None:
    """Return the source times, None if all are 0."""
    return None if times is None or bytes(times).count(0) == len(times) else times


def numbers_cut(numbers: Buffer | None, start: int, stop: int) -> Buffer | None:
    """Return numbers `start` to `stop`, half-open, over the same bytes."""
    return None if numbers is None else memoryview(numbers)[8 * start : 8 * stop]


def numbers_at(numbers: Buffer | None, indices: NDArray[np.int64]) -> Buffer | None:
    """Return the numbers at `indices`."""
    return None if numbers is None else np.frombuffer(numbers, dtype="<i8")[indices].tobytes()


def join_fixed(buffers: Sequence[Buffer | None], counts: Sequence[int], default: bytes) -> bytes | None:
    """Join fixed-width columns, with `default` for each record of a column that is left out."""
    if buffers.count(None) == len(buffers):
        return None
    return b"".join([default * count if part is None else part for part, count in zip(buffers, counts, strict=True)])
