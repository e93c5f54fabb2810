"""Rebuild of a fold from its source (`source.py`), step by step: each step is one bounded write.

I1: the applied seq is never ahead of the entries: an interrupted rebuild continues from it, or starts over if it is 0 or
below the base. I2: the last write sets the final applied seq, with the writers.
Cost of an entry of 100 bytes: about 1 us to cut it out of the batch and 1.3 us of RocksDB's write, on a core at 2.3 GHz
with other work on the machine.
Threading: the fold's thread, blocking.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from eddyline.store.fold.dump import load_steps
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.fold import FoldWrite, retry_stalled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eddyline.store.fold.fold import Fold, WriterState
    from eddyline.store.fold_repair.source import FoldSource

WRITE_ENTRIES: Final = 1024
WRITE_BYTES: Final = 1 << 20
"""Entries or bytes at which a write takes no further piece: small frames share a write, a large piece has its own. With
a bound on entries alone, frames of large values would be in memory a thousand at a time."""


def rebuild(
    fold: Fold, topic_id: int, source: FoldSource, *, writers: Sequence[tuple[str, WriterState]] = ()
) -> Iterator[int]:
    """Bring a topic's fold to the source's `through_seq`; yield the applied seq after each step.

    Raises:
        DataCorrupt: the source is damaged. FoldStalled: for long. FoldFailed.
    """
    if source.base_damaged:
        yield from _salvage(fold, topic_id, source)
    elif source.base_seq:
        for _ in load_steps(fold, topic_id, source.base(), source.base_seq):
            yield 0
    elif not source.continues:
        retry_stalled(fold, partial(fold.delete_topic, topic_id))
    pending, pending_entries, pending_bytes = list[FoldWrite](), 0, 0
    for last_seq, batch in source.log():
        entries = entries_of(batch)
        # The last write, with the writers, sets the final applied seq.
        pending.append(FoldWrite(topic_id, min(last_seq, source.through_seq - 1), entries, []))
        pending_entries, pending_bytes = pending_entries + len(entries), pending_bytes + batch.nbytes
        if max(pending_entries, len(pending)) >= WRITE_ENTRIES or pending_bytes >= WRITE_BYTES:
            retry_stalled(fold, partial(fold.apply, pending))
            yield pending[-1].applied_seq
            pending, pending_entries, pending_bytes = [], 0, 0
    pending.append(FoldWrite(topic_id, source.through_seq, [], list(writers)))
    retry_stalled(fold, partial(fold.apply, pending))
    yield source.through_seq


def _salvage(fold: Fold, topic_id: int, source: FoldSource) -> Iterator[int]:
    """Rebuild up to a damaged base: first the log before it, then the readable part of the base, which is as new or
    newer."""
    retry_stalled(fold, partial(fold.delete_topic, topic_id))
    for batch in chain((piece.batch for piece in source.older()), source.base()):
        retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, 0, entries_of(batch), [])]))
        yield 0
    retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, source.base_seq, [], [])]))
    retry_stalled(fold, partial(fold.set_base, topic_id, source.base_seq))
