"""Making a fold of what it is made of (`fold_source.py`), step by step: each is one bounded write.

I1: the applied seq never outruns the entries: whoever is interrupted goes on from it, or begins anew where it is 0 or below
the base. I2: the last write says that all is there, with the writers.
Cost: of an entry of 100 bytes about 1 us to cut it out of the batch and 1.3 us of RocksDB's write, a core at 2.3 GHz with
others busy beside it.
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
"""Entries or bytes from which on a write is not joined by another piece's: small frames share a write, a large piece has its
own. By their number alone, frames of large values would be in memory a thousand at a time."""


def rebuild(
    fold: Fold, topic_id: int, source: FoldSource, *, writers: Sequence[tuple[str, WriterState]] = ()
) -> Iterator[int]:
    """Bring a topic's fold to the source's `through_seq`; gives, a step, the seq up to which it is there.

    Raises:
        DataCorrupt: the source is damaged. FoldStalled: for long. FoldFailed.
    """
    if source.base_damaged:
        yield from _salvage(fold, topic_id, source)
    elif source.base_seq:
        for _ in load_steps(fold, topic_id, source.base(), source.base_seq):
            yield 0
    elif not source.goes_on:
        retry_stalled(fold, partial(fold.delete_topic, topic_id))
    waiting, entries_waiting, bytes_waiting = list[FoldWrite](), 0, 0
    for last_seq, batch in source.log():
        entries = entries_of(batch)
        # The last of the log counts with the writers.
        waiting.append(FoldWrite(topic_id, min(last_seq, source.through_seq - 1), entries, []))
        entries_waiting, bytes_waiting = entries_waiting + len(entries), bytes_waiting + batch.nbytes
        if max(entries_waiting, len(waiting)) >= WRITE_ENTRIES or bytes_waiting >= WRITE_BYTES:
            retry_stalled(fold, partial(fold.apply, waiting))
            yield waiting[-1].applied_seq
            waiting, entries_waiting, bytes_waiting = [], 0, 0
    waiting.append(FoldWrite(topic_id, source.through_seq, [], list(writers)))
    retry_stalled(fold, partial(fold.apply, waiting))
    yield source.through_seq


def _salvage(fold: Fold, topic_id: int, source: FoldSource) -> Iterator[int]:
    """Up to a base that is damaged: what the log has, and over it what the base still gives, which is as new or newer."""
    retry_stalled(fold, partial(fold.delete_topic, topic_id))
    for batch in chain((piece.batch for piece in source.older()), source.base()):
        retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, 0, entries_of(batch), [])]))
        yield 0
    retry_stalled(fold, partial(fold.apply, [FoldWrite(topic_id, source.base_seq, [], [])]))
    retry_stalled(fold, partial(fold.set_base, topic_id, source.base_seq))
