"""Encodes rows of a split as Arrow IPC messages, without hidden rows, with the requested columns, gaps in order.

Messages are uncompressed: each is read once, by the caller.
I1: messages and gaps are in the order of the rows; a message has at least one row.
Threading: pure functions, for any thread; a batch and its messages are in memory at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from eddyline.core.records.arrow import arrow_schema, to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import split_gaps
from eddyline.core.records.record import Gap
from eddyline.store.splits.filter import passing
from eddyline.store.splits.model import ArrowMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from eddyline.store.splits.model import SplitItem, SplitScan


class SplitRows(NamedTuple):
    """A stored batch, its rows `start` to `stop` that lie in the split, and a mask of those that are hidden (None =
    none)."""

    batch: Batch
    start: int
    stop: int
    hidden: NDArray[np.bool_] | None = None


class Encoded(NamedTuple):
    """Messages and gaps in order, with counts: `row_count` rows in the messages, `live_count` with those that the filter
    left out."""

    items: tuple[SplitItem, ...]
    row_count: int
    live_count: int


def schema_message(columns: Sequence[str]) -> bytes:
    """Return the schema of these columns (none = all) as an Arrow IPC message."""
    import pyarrow as pa

    schema = arrow_schema()
    wanted = pa.schema([schema.field(name) for name in columns]) if columns else schema
    return bytes(wanted.serialize())


def encoded(parts: Iterable[SplitRows], scan: SplitScan) -> Encoded:
    """Encode the visible rows of these batches that pass the scan's filter.

    Raises:
        MalformedColumns: a gap record's data does not follow the grammar.
    """
    split_filter, columns = scan.split_filter, scan.columns
    items: list[SplitItem] = []
    row_count = live_count = 0
    for part in parts:
        batch = part.batch.slice(part.start, part.stop)
        if part.hidden is not None:
            batch = batch.select(np.flatnonzero(~part.hidden))
        live_count += batch.count
        indices = passing(batch, split_filter)
        with_gaps = batch.has_gaps
        if not with_gaps and columns:
            batch = _narrowed(batch, columns)
        selected = batch if indices is None else batch.select(indices)
        for item in split_gaps(selected) if with_gaps else [selected]:
            if isinstance(item, Gap):
                live_count -= 1
                items.append(item)
            elif item.count:
                row_count += item.count
                items.append(scan.packed(_message(item, columns)))
    return Encoded(tuple(items), row_count, live_count)


def _narrowed(batch: Batch, columns: Sequence[str]) -> Batch:
    """Return the batch with the requested columns alone: copying the others would be wasted work."""
    wanted = frozenset(columns)
    return Batch(
        batch.count,
        first_seq=batch.first_seq,
        seqs=batch.seqs,
        ts_ms=batch.ts_ms,
        ts_ms_each=batch.ts_ms_each,
        ops=batch.ops if "op" in wanted else None,
        source_ts_ns=batch.source_ts_ns if "source_ts_ns" in wanted else None,
        key=batch.key if "key" in wanted else None,
        data=batch.data if "data" in wanted else None,
        tag=batch.tag if "tag" in wanted else None,
        node=batch.node if "node" in wanted else None,
        meta=batch.meta if "meta" in wanted else None,
        version=batch.version if "version" in wanted else None,
    )


def _message(batch: Batch, columns: Sequence[str]) -> ArrowMessage:
    table = to_arrow(batch)
    if columns:
        table = table.select(list(columns))
    message = bytes(table.serialize())
    return ArrowMessage(message, xxh3_64_intdigest(message), batch.count)
