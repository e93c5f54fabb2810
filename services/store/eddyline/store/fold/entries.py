"""Fold entries from batches and batches from entries: the store's hottest work on single records.

From a batch: the last record of a key wins. A PUT leaves an entry (`fold_entry.py`), DELETE and PURGE leave None; GAP has
no key and is skipped, and so is APPEND, which the fold ignores. Columns are cut straight into the entry's bytes without
making rows. A plain batch, PUTs of a key, data and versions of one size, runs no Python code for single records; any other
batch uses a loop.

From entries: rows have op PUT, keep the given order, their seqs and times; a batch of entries in key order has its own
seqs, not ascending. Entries of a key, data and versions of one length are cut column by column: nearly all are such, those
of appends without a version, those of a source with 8 bytes. If there is any other entry, the batch is made from rows.

pyarrow is imported at the first batch from entries (`eddyline.core.records.arrow` says why): no append needs it.
"""

from __future__ import annotations

from itertools import repeat
from operator import concat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.records.batch import Batch
from eddyline.core.records.cells import cells_of, numbers_of
from eddyline.core.records.column import Column, check_length, sizes_to_offsets
from eddyline.core.records.fixed import canonical_each, canonical_seqs, canonical_times
from eddyline.core.records.fold_entry import (
    FORMAT,
    HAS_DATA,
    HAS_NODE,
    HAS_TAG,
    HEAD,
    HEAD_BYTES,
    PLACE,
    PLAIN_SHAPE,
    SHAPE,
    VERSION_BYTES,
    decode_entry,
)
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


_PUT: Final = bytes((Op.PUT,))
_FOLDED: Final = frozenset((Op.PUT, Op.DELETE, Op.PURGE))
_PLAIN_HEAD: Final = Struct(f"<{SHAPE.size}sQqq")
assert _PLAIN_HEAD.size == HEAD.size == SHAPE.size + PLACE.size


def entries_of(batch: Batch) -> list[tuple[bytes, bytes | None]]:
    """Return the fold entries that `batch`, canonical and with seqs, leaves: each key once, with its entry or None =
    delete."""
    if batch.key is None or batch.ops is None:
        return []
    ops = bytes(batch.ops)
    keys = batch.keys()
    plain = batch.tag is None and batch.node is None and batch.meta is None
    if plain and batch.data is not None and batch.data.validity is None and not ops.strip(_PUT) and None not in keys:
        versions = [version or b"" for version in _cells(batch.version, batch.count)] if batch.version else []
        sizes = set(map(len, versions))
        if len(sizes) < 2:
            shape = SHAPE.pack(FORMAT, HAS_DATA, sizes.pop(), 0, 0, 0, 0) if sizes else PLAIN_SHAPE
            return _plain_entries(batch, keys, shape, versions)
    last = {key: index for index, key in enumerate(keys) if key is not None and ops[index] in _FOLDED}
    return _other_entries(batch, ops, last)


def _plain_entries(
    batch: Batch, keys: list[bytes | None], shape: bytes, versions: list[bytes]
) -> list[tuple[bytes, bytes | None]]:
    """Return the entries of PUTs of a key, data, and `versions` of one size; empty = they have none."""
    heads = map(_PLAIN_HEAD.pack, repeat(shape), batch.seq_list(), _times(batch), _source_times(batch))
    tails: Iterable[bytes | None] = _cells(batch.data, batch.count)
    if versions:
        tails = map(concat, versions, tails)  # type: ignore[arg-type]
    # The caller has checked that neither keys nor data hold a None.
    last: dict[bytes, bytes | None] = dict(zip(keys, map(concat, heads, tails), strict=True))  # type: ignore[arg-type]
    return list(last.items())


def _other_entries(batch: Batch, ops: bytes, last: dict[bytes, int]) -> list[tuple[bytes, bytes | None]]:
    count, put = batch.count, int(Op.PUT)
    shape, place, join = SHAPE.pack, PLACE.pack, b"".join
    seqs, times, source_times = batch.seq_list(), _times(batch), _source_times(batch)
    columns = (batch.data, batch.tag, batch.node, batch.meta, batch.version)
    all_data, tags, nodes, metas, versions = (_cells(column, count) for column in columns)
    entries: list[tuple[bytes, bytes | None]] = []
    for key, i in last.items():
        if ops[i] != put:
            entries.append((key, None))
            continue
        data, tag, node, meta, version = all_data[i], tags[i], nodes[i], metas[i] or b"", versions[i] or b""
        flags = (data is not None and HAS_DATA) | (tag is not None and HAS_TAG) | (node is not None and HAS_NODE)
        data, tag, node = data or b"", tag or b"", node or b""
        head = shape(FORMAT, flags, len(version), len(tag), len(node), len(meta), 0)
        entries.append((key, join((head, place(seqs[i], times[i], source_times[i]), version, tag, node, meta, data))))
    return entries


def _times(batch: Batch) -> list[int]:
    return [batch.ts_ms] * batch.count if batch.ts_ms_each is None else numbers_of("q", batch.ts_ms_each)


def _source_times(batch: Batch) -> list[int]:
    return [0] * batch.count if batch.source_ts_ns is None else numbers_of("q", batch.source_ts_ns)


def _cells(column: Column | None, count: int) -> list[bytes | None]:
    return [None] * count if column is None else cells_of(column, count)


_HEADS: Final = np.dtype([("shape", f"V{SHAPE.size}"), ("seq", "<u8"), ("ts_ms", "<i8"), ("source_ts_ns", "<i8")])
_HEAD: Final = np.dtype(f"V{HEAD_BYTES}")
_END: Final = 1 << 31
"""Above every cell's length. Without an end `binary_slice` fails."""
assert _HEADS.itemsize == HEAD_BYTES


def entries_to_batch(keys: Sequence[bytes], values: Sequence[bytes], *, key_start: int = 0) -> Batch:
    """Return the entries of `keys` as one canonical batch, in their order; a key begins `key_start` bytes into each of
    `keys`.

    Raises:
        DataCorrupt: a value is not an entry. MalformedColumns: a column would reach 2^31 bytes.
    """
    count = len(keys)
    if not count:
        return Batch(0)
    stored = _joined(values)
    same = _same_shape(stored, count)
    if same is None:
        return Batch.from_rows([decode_entry(key[key_start:], value) for key, value in zip(keys, values, strict=True)])
    heads, version_bytes, version = same
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
        key=_slice(_joined(keys), count, key_start, _END),
        data=_slice(stored, count, HEAD_BYTES + version_bytes, _END),
        version=version,
    )


class _SameShape(NamedTuple):
    """Heads of entries of a key, data and a version of one length, and their versions."""

    heads: NDArray[np.void]
    version_bytes: int
    version: Column | None


def _same_shape(stored: Column, count: int) -> _SameShape | None:
    """Return the heads if all entries have data, versions of one length, and no other optional field; else None."""
    heads = _heads_of(stored)
    if heads is None:
        return None
    shapes = heads["shape"].tobytes()
    version_bytes = VERSION_BYTES.get(shapes[: SHAPE.size])
    if version_bytes is None or shapes != shapes[: SHAPE.size] * count:
        return None
    if not version_bytes:
        return _SameShape(heads, 0, None)
    version = _slice(stored, count, HEAD_BYTES, HEAD_BYTES + version_bytes)
    return _SameShape(heads, version_bytes, version) if len(version.values) == count * version_bytes else None


def _joined(cells: Sequence[bytes]) -> Column:
    """Return cells, none of them absent, as a column. (Rejected: `pa.array`, which imports pandas where that is installed.)

    Raises:
        MalformedColumns: it would reach 2^31 bytes.
    """
    values = b"".join(cells)
    check_length(len(values))
    return Column(sizes_to_offsets(np.fromiter(map(len, cells), dtype=np.uint32, count=len(cells))), values, None)


def _heads_of(stored: Column) -> NDArray[np.void] | None:
    """Return the head of each entry, as `_HEADS`; None if one is too short."""
    offsets = np.frombuffer(stored.offsets, dtype="<u4")
    if (offsets[1:] - offsets[:-1]).min() < HEAD_BYTES:
        return None
    # As plain bytes: numpy copies a structure field by field, which takes four times as long.
    at_each_byte = np.ndarray(len(stored.values) - HEAD_BYTES + 1, dtype=_HEAD, buffer=stored.values, strides=(1,))
    heads: NDArray[np.void] = at_each_byte[offsets[:-1]].view(_HEADS)
    return heads


def _slice(column: Column, count: int, start: int, end: int) -> Column:
    """Return the part `start` to `end` of each cell, none of them absent. Arrow's loop, which makes no bytes object for
    a cell, takes half the time of Python's (P8)."""
    import pyarrow as pa
    from pyarrow import compute

    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.values)]
    cells = pa.Array.from_buffers(pa.binary(), count, buffers, null_count=0)
    _, offsets, cut = compute.binary_slice(cells, start, end).buffers()
    return Column(offsets.to_pybytes(), b"" if cut is None else cut.to_pybytes(), None)
