"""From entries to the batch that they are: the reverse of `project.py`, for reading many of them.

Rows have op PUT, stand in the order given and keep each its seq and times; a batch of entries in key order has seqs of its
own, not ascending. Entries of a key and data only, which is nearly all of them, are cut column by column: no row is made.
Where there is any other the batch goes by rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.batch import Batch
from eddyline.core.cells import pack_cells
from eddyline.core.fixed import canonical_each, canonical_seqs, canonical_times
from eddyline.core.record import Op
from eddyline.store.fold.entry import FORMAT, HAS_DATA, HEAD_BYTES, SHAPE, decode_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

_PUT: Final = bytes((Op.PUT,))
_PLAIN_SHAPE: Final = SHAPE.pack(FORMAT, HAS_DATA, 0, 0, 0, 0, 0)
_HEADS: Final = np.dtype([("shape", f"V{SHAPE.size}"), ("seq", "<u8"), ("ts_ms", "<i8"), ("source_ts_ns", "<i8")])
assert _HEADS.itemsize == HEAD_BYTES


def batch_of(keys: Sequence[bytes], values: Sequence[bytes]) -> Batch:
    """The entries of `keys` as one canonical batch, in their order.

    Raises:
        DataCorrupt: a value is not an entry. MalformedColumns: a column would reach 2^31 bytes.
    """
    count = len(keys)
    if not count:
        return Batch(0)
    head_bytes = b"".join([value[:HEAD_BYTES] for value in values])
    if len(head_bytes) == count * HEAD_BYTES:
        heads = np.frombuffer(head_bytes, dtype=_HEADS)
        if heads["shape"].tobytes() == _PLAIN_SHAPE * count:
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
                key=pack_cells(keys, absence=True),
                data=pack_cells([value[HEAD_BYTES:] for value in values], absence=True),
            )
    return Batch.from_rows([decode_entry(key, value) for key, value in zip(keys, values, strict=True)])
