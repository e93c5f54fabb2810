"""Dump and load of a topic's fold as an ordered stream of batches, used for bases and artifacts.

I1: a dump is of one moment, that of its view. I2: during a load the topic's applied seq is 0; the load's last write but
one sets it, with the writers, and the last one sets the base. A crash at any point leaves the previous state, or a topic
at applied seq 0, which the owner loads again when it opens the fold, or all of the entries.
Threading: a dump as its view; a load on the fold's thread.
Failure: a load that raises leaves a part of the topic, at applied seq 0.
"""

from __future__ import annotations

from functools import partial
from operator import lt
from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.record import Op
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldWrite, retry_stalled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eddyline.core.records.batch import Batch
    from eddyline.store.fold.fold import Fold, FoldView, WriterState

DUMP_ENTRIES: Final = 8192
DUMP_BYTES: Final = 1 << 20
"""One batch of a dump: 5 ms of work, most of it with the GIL. Larger ones gain nothing; a base's file joins them."""
LOAD_ENTRIES: Final = 4096
LOAD_BYTES: Final = 1 << 20
"""One write of a load: as large as the applier's, for the same reason."""


def dump_batches(view: FoldView) -> Iterator[Batch]:
    """Yield the remaining entries of `view` in key order; each row with op PUT and its own seq, times and version.

    Raises:
        DataCorrupt, FoldFailed.
    """
    while (batch := view.next_batch(DUMP_ENTRIES, DUMP_BYTES)).count:
        yield batch


def load_steps(
    fold: Fold,
    topic_id: int,
    batches: Iterable[Batch],
    applied_seq: int,
    *,
    writers: Sequence[tuple[str, WriterState]] = (),
) -> Iterator[int]:
    """Replace all entries of the topic by those of a dump, and yield the number of entries of each write.

    At the end, not before, `applied_seq` is the topic's applied seq and its base.

    Raises:
        DataCorrupt: `batches` are no dump of a fold at `applied_seq`, or their own source raised it. FoldFailed.
            FoldStalled: for long.
    """
    retry_stalled(fold, partial(fold.delete_topic, topic_id))
    last_key = None
    for batch in batches:
        if not batch.count:
            continue
        last_key = check_dump(topic_id, batch, last_key, applied_seq)
        for entries in _cut(entries_of(batch)):
            retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, 0, entries, [])]))
            yield len(entries)
    retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, applied_seq, [], list(writers))]))
    retry_stalled(fold, partial(fold.set_base, topic_id, applied_seq))
    yield 0


def check_dump(topic_id: int, batch: Batch, last_key: bytes | None, applied_seq: int) -> bytes:
    """Return the last key of `batch`, after checking whole columns, and the order of keys row by row. The batch has rows,
    and `last_key` is the last key of the batch before it.

    Raises:
        DataCorrupt: it is no part of a dump at `applied_seq`.
    """
    keys = batch.keys()
    if None in keys or (batch.ops_array() != Op.PUT).any():
        raise _no_dump(topic_id, "a row is not a PUT of a key")
    # No None is left among the keys.
    if not all(map(lt, keys, keys[1:])) or (last_key is not None and keys[0] <= last_key):  # type: ignore[operator,arg-type]
        raise _no_dump(topic_id, "keys are not ascending")
    seqs = batch.seq_array()
    if int(seqs.min()) == 0 or int(np.max(seqs)) > applied_seq:
        raise _no_dump(topic_id, f"a row has a seq outside 1 to {applied_seq}")
    last = keys[-1]
    assert last is not None
    return last


def _cut(entries: list[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Yield runs of entries within the bounds of a write, or of one entry."""
    start = size = 0
    for index, (key, value) in enumerate(entries):
        size += len(key) + len(value or b"")
        if index > start and (size > LOAD_BYTES or index - start >= LOAD_ENTRIES):
            yield entries[start:index]
            start, size = index, len(key) + len(value or b"")
    yield entries[start:]


def _no_dump(topic_id: int, cause: str) -> DataCorrupt:
    return DataCorrupt(f"base of topic {topic_id}: {cause}", file="base", offset=0, topicId=topic_id)
