"""Bringing up folds that lack what the catalog says they have: after damage, a loss, or a start that was cut off.

A topic's fold goes on from what it has where the log reaches back so far, else it is made of base and log
(`fold_source.py`). Where these are damaged too it is lost: that is logged and synced first, then the fold is made of what
can still be read, so that appends are applied to something and an operator may settle for it (`settle_fold.py`). Its reads
are refused until then; each start tries anew, as files may have been put back.

I1: no fold that is behind its catalog, or made of less than all, is served as right, whenever a start is cut off. I2: memory
is that of one piece of the log.
Threading: the fold's thread, before anything is served.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.logging import fields
from eddyline.store.fold.fold import WriterState
from eddyline.store.fold_repair.rebuild import rebuild
from eddyline.store.fold_repair.source import FoldSource
from eddyline.store.log.control import SegmentChange, apply_segment_change, segment_change_body
from eddyline.store.stats import RecoveryProgress
from eddyline.store.storage.wal.frame import FrameType, control_body

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.frame import FrameBody
    from eddyline.store.storage.wal.wal import Wal

logger = logging.getLogger(__name__)


class Salvage(NamedTuple):
    """What a lost fold was made of: its base (0 = none, or one that is damaged), and from where on the log is whole."""

    base_seq: int
    log_first_seq: int


class FoldRepair:
    """Repairs the folds of one store."""

    def __init__(
        self,
        fold: Fold,
        *,
        table: TopicTable,
        files: LogFiles,
        layout: Layout,
        wals: Sequence[Wal],
        tell: Callable[[RecoveryProgress], None],
        replayed_bytes: int,
        before_logging: Callable[[], None],
    ) -> None:
        """`before_logging` is called before each frame: a clean stop has said where the log ends, which is no more so."""
        self._fold = fold
        self._table = table
        self._files = files
        self._layout = layout
        self._wals = wals
        self._tell = tell
        self._before_logging = before_logging
        self._done_bytes = self._total_bytes = replayed_bytes
        self.salvaged: dict[int, Salvage] = {}
        """What the folds were made of that are lost, by their topics' ids."""

    def run(self, behind: Collection[int]) -> int:
        """Bring up the topics of these ids, and those whose fold is lost; how many there were.

        Raises:
            FoldFailed, FoldStalled (for long), OSError: the WAL takes no frame.
        """
        due = [topic for topic in self._table.all() if topic.folds and (topic.id in behind or topic.fold_lost)]
        self._total_bytes += sum(map(_source_bytes, due))
        for topic in due:
            self._repair(topic)
        return len(due)

    def _repair(self, topic: Topic) -> None:
        before, done_bytes = self._fold.applied(topic.id), self._done_bytes
        try:
            if topic.base_wanted and not topic.fold_lost and not before:
                raise DataCorrupt(
                    f"topic {topic.name}: its fold had more than its log, and was lost before a base was made of it",
                    file="fold",
                    offset=0,
                )
            self._build(topic, 0 if topic.fold_lost else before)
        except DataCorrupt as error:
            logger.error("fold_lost", extra=fields(topic=topic.name, error=error.message))
            if not topic.fold_lost:
                self._log(topic, lost=True)
            self.salvaged[topic.id] = self._build(topic, 0, past_damage=True, base_damaged=self._is_base_damaged(topic))
        else:
            logger.warning("fold_made_anew", extra=fields(topic=topic.name, from_seq=before, to_seq=topic.head_seq))
            if topic.fold_lost:
                self._log(topic, lost=False)
        self._done_bytes = done_bytes + _source_bytes(topic)

    def _is_base_damaged(self, topic: Topic) -> bool:
        source = FoldSource(self._files, self._layout, topic, through_seq=topic.head_seq)
        try:
            for _ in source.base():
                pass
        except DataCorrupt:
            return True
        finally:
            source.close()
        return False

    def _build(
        self, topic: Topic, applied_seq: int, *, past_damage: bool = False, base_damaged: bool = False
    ) -> Salvage:
        source = FoldSource(
            self._files,
            self._layout,
            topic,
            through_seq=topic.head_seq,
            applied_seq=applied_seq,
            past_damage=past_damage,
            base_damaged=base_damaged,
        )
        writers = [(name, WriterState(known.fence, known.position)) for name, known in topic.stored_writers()]
        try:
            for _ in rebuild(self._fold, topic.id, source, writers=writers):
                self._tell(RecoveryProgress(self._done_bytes + source.bytes_read, self._total_bytes))
        finally:
            source.close()
        return Salvage(0 if base_damaged else source.base_seq, source.log_first_seq)

    def _log(self, topic: Topic, *, lost: bool) -> None:
        """Say in the log what the next start must know."""
        self._before_logging()
        body, change = fold_change(topic, lost=lost)
        wal = self._wals[topic.id % len(self._wals)]
        wal.write(wal.place([body]))
        wal.sync()
        apply_segment_change(topic, change, self._layout.topic_dir(topic.id))
        self._table.dirty.add(topic)
        self._table.segmented.add(topic)  # it may want a base, though it has no segments


def fold_change(topic: Topic, *, lost: bool) -> tuple[FrameBody, SegmentChange]:
    """The frame that says whether a topic's fold is lost, and what it says. One that was is to have a base: no log gives
    it."""
    change = SegmentChange(stage="fold", next_generation=topic.next_generation, fold_lost=lost, base_wanted=not lost)
    body = segment_change_body(change)
    return control_body(FrameType.SEGMENT_CHANGE, topic.id, body, ts_ms=topic.last_ts_ms), change


def _source_bytes(topic: Topic) -> int:
    base_bytes = topic.base.file_bytes if topic.base is not None else 0
    return topic.segments.file_bytes + topic.index.frame_bytes + base_bytes
