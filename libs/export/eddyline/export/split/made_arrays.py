"""Arrow arrays out of numpy's and of text, by their buffers.

Rejected: `pyarrow.array` and `pyarrow.scalar`, which import pandas to see whether they were given something of its: 0.8 s of
each process that Spark starts, and it starts one for each step of a plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def int64_array(numbers: NDArray[np.int64], kind: pa.DataType | None = None) -> pa.Array:
    """Numbers, or what has such, none null."""
    return pa.Array.from_buffers(kind or pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)


def bool_array(truths: NDArray[np.bool_]) -> pa.Array:
    """Truths, none null."""
    bits = pa.py_buffer(np.packbits(truths, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(truths), [None, bits], 0)


def text_array(values: Sequence[str | None]) -> pa.Array:
    """Texts; None = null."""
    cells = [None if value is None else value.encode() for value in values]
    known = np.array([cell is not None for cell in cells], dtype=np.bool_)
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum([len(cell or b"") for cell in cells], out=offsets[1:])
    validity = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(cell or b"" for cell in cells))]
    return pa.Array.from_buffers(pa.utf8(), len(cells), buffers, int(len(known) - known.sum()))


def repeated_text(text: str, count: int) -> pa.Array:
    """One text, `count` times."""
    cell = text.encode()
    offsets = np.arange(0, len(cell) * count + 1, len(cell), dtype=np.int32) if cell else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.utf8(), count, [None, pa.py_buffer(offsets), pa.py_buffer(cell * count)], 0)
