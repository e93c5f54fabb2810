"""Key history: the revisions of one key that a topic's log still has, oldest first, with gaps for what the log lost.

Footers' filters skip segments without the key. Each step looks up the next piece again, so sealing and merging disturb
nothing; a floor that moves past the cursor meanwhile is returned as the gap that it leaves.
Threading: event loop; files are read on the reader threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.errors import CursorAhead, NotKv, TopicNotFound
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import split_gaps
from eddyline.core.records.match import Match, MatchField, MatchKind, matched
from eddyline.core.records.record import Op
from eddyline.store.log.deletion import visible

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from eddyline.core.records.record import Gap
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.pieces import StoredLog
    from eddyline.store.retention.retention import Retention
    from eddyline.store.storage.segment.footer import Footer

ANSWER_BYTES: Final = 1 << 20
"""Revisions gathered for one answer: as large as a read's, far below a message."""
ANSWER_PIECES: Final = 1_024
"""Pieces read for one answer that has at least one revision: rare revisions reach the reader before the whole log is
read."""


class KeyHistory:
    """Key histories of any topic of a shard."""

    def __init__(self, *, log: StoredLog, retention: Retention) -> None:
        self._log = log
        self._retention = retention

    async def read(
        self, topic: Topic, key: bytes, *, after_seq: int = 0, limit: int = 0
    ) -> AsyncGenerator[Batch | Gap, None]:
        """Yield revisions above `after_seq`, up to the present head, at most `limit` (0 = all), and gaps in order.

        Raises:
            NotKv, CursorAhead, TopicNotFound (deleted meanwhile), DataCorrupt.
        """
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold, so no key history", topic=topic.name)
        if after_seq > topic.head_seq:
            raise CursorAhead(
                f"the head of topic {topic.name} is {topic.head_seq}, below the cursor {after_seq}",
                topic=topic.name,
                headSeq=topic.head_seq,
                afterSeq=after_seq,
            )
        last_seq, cursor, left = topic.head_seq, after_seq, limit or 1 << 63
        may_hold = may_hold_revisions(key)
        await self._retention.enforce(topic, after_seq)
        revisions_found: list[Batch] = []
        size = pieces = 0
        while True:
            gap = topic.floors.gap_after(cursor)
            ends = cursor >= last_seq or not left
            if revisions_found and (gap is not None or ends or size >= ANSWER_BYTES or pieces >= ANSWER_PIECES):
                for item in split_gaps(Batch.concat(revisions_found)):
                    yield item
                revisions_found, size, pieces = [], 0, 0
                continue
            if topic.deleted:
                raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
            if ends:
                return
            if gap is not None:
                cursor = min(gap.last_seq, last_seq)
                yield gap._replace(last_seq=cursor)
                continue
            piece = await self._log.after(topic, cursor, may_hold=may_hold)
            if topic.floors.evict > cursor:
                continue
            if piece is None:
                cursor = last_seq
                continue
            pieces += 1
            if piece.batch is not None:
                revisions = _revisions(topic, piece.batch, key, cursor, last_seq)
                revisions, left = _bounded(revisions, left)
                if revisions.count:
                    revisions_found.append(revisions)
                    size += revisions.content_bytes
            cursor = min(piece.last_seq, last_seq)


def may_hold_revisions(key: bytes) -> Callable[[Footer], bool]:
    """Return a footer check: may the segment hold a revision of the key, or a gap that may have swallowed one?"""
    return lambda footer: footer.summary.gap_count > 0 or footer.may_hold_key(key)


def revisions_of(batch: Batch, key: bytes) -> Batch:
    """Return the rows of one key, without gap records."""
    rows = batch.select(matched(batch, Match(MatchField.KEY, MatchKind.EQ, key)))
    return rows if rows.ops is None else rows.select(np.flatnonzero(rows.ops_array() != Op.GAP))


def _revisions(topic: Topic, stored: Batch, key: bytes, after_seq: int, last_seq: int) -> Batch:
    """Return a piece's visible revisions and gap records above `after_seq` and up to `last_seq`."""
    batch = visible(stored, topic.floors, topic.deleted_seqs)
    batch = batch.slice(batch.index_after(after_seq), batch.index_after(last_seq))
    indices = matched(batch, Match(MatchField.KEY, MatchKind.EQ, key))
    if batch.has_gaps:
        indices = np.union1d(indices, np.flatnonzero(batch.ops_array() == Op.GAP))
    return batch.select(indices)


def _bounded(revisions: Batch, left: int) -> tuple[Batch, int]:
    """Return the first rows, with at most `left` revisions, and how many of `left` remain."""
    counted = np.cumsum(revisions.ops_array() != Op.GAP) if revisions.count else np.zeros(0, dtype=np.int64)
    total = int(counted[-1]) if revisions.count else 0
    if total < left:
        return revisions, left - total
    return revisions.slice(0, int(np.searchsorted(counted, left)) + 1), 0
