"""From entries to the batch that they are: the reverse of `project.py`, for reading many of them.

Rows have op PUT, stand in the order given and keep each its seq and times; a batch of entries in key order has seqs of its
own, not ascending. Entries of a key and data only, which is nearly all of them, are cut column by column: no row is made.
Where there is any other the batch goes by rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.core.records.batch import Batch
from eddyline.core.records.column import Column, check_length
from eddyline.core.records.fixed import canonical_each, canonical_seqs, canonical_times
from eddyline.core.records.fold_entry import HEAD_BYTES, PLAIN_SHAPE, SHAPE, decode_entry
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

_PUT: Final = bytes((Op.PUT,))
_HEADS: Final = np.dtype([("shape", f"V{SHAPE.size}"), ("seq", "<u8"), ("ts_ms", "<i8"), ("source_ts_ns", "<i8")])
_END: Final = 1 << 31
"""Above every cell's length. Without an end `binary_slice` fails."""
assert _HEADS.itemsize == HEAD_BYTES


def batch_of(keys: Sequence[bytes], values: Sequence[bytes], *, key_start: int = 0) -> Batch:
    """The entries of `keys` as one canonical batch, in their order; a key begins `key_start` bytes into what is given.

    Raises:
        DataCorrupt: a value is not an entry. MalformedColumns: a column would reach 2^31 bytes.
    """
    count = len(keys)
    if not count:
        return Batch(0)
    check_length(sum(map(len, values)))
    stored = pa.array(values, pa.binary())
    head_bytes = _column(stored, 0, HEAD_BYTES).values
    if len(head_bytes) == count * HEAD_BYTES:
        heads = np.frombuffer(head_bytes, dtype=_HEADS)
        if heads["shape"].tobytes() == PLAIN_SHAPE * count:
            first_seq, seqs = canonical_seqs(0, heads["seq"].tobytes())
            ts_ms, ts_ms_each = canonical_each(0, heads["ts_ms"].tobytes())
            return Batch(
                count,
                first_seq=first_seq,
                seqs=seqs,
                ts_ms=ts_ms,
                ts_ms_each=ts_ms_each,
                ops=_PUT * count,
                source_ts_ns=canonical_times(heads["source_ts_ns"].tobytes()),
                key=_column(pa.array(keys, pa.binary()), key_start, _END),
                data=_column(stored, HEAD_BYTES, _END),
            )
    return Batch.from_rows([decode_entry(key[key_start:], value) for key, value in zip(keys, values, strict=True)])


def _column(cells: pa.Array, start: int, end: int) -> Column:
    """The part `start` to `end` of each cell, none of them absent. Arrow's loop, which makes no bytes of a cell, is half
    the cost of Python's (P8)."""
    _, offsets, cut = pc.binary_slice(cells, start, end).buffers()
    return Column(offsets.to_pybytes(), b"" if cut is None else cut.to_pybytes(), None)
