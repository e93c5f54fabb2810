"""Fold repair at a start: brings folds up to their catalog's state after damage, a loss, or an interrupted start.

A topic's fold continues from its applied seq if the log reaches back so far, else it is rebuilt from base and log
(`source.py`). If these are damaged too it is lost. The loss is logged and synced first, then the fold is rebuilt from the
readable rest, so that appends are applied to a fold and an operator can accept it (`accept_loss.py`). Its reads are
refused until then; each start tries to rebuild it completely, as files may have been restored.

I1: no fold that is behind its catalog, or incomplete, is served as complete, even if a start is interrupted. I2: memory is
that of one piece of the log.
Threading: the fold's thread, before the store serves.
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
    """Source of a lost fold's rebuild: its base (0 = none, or a damaged one), and the first seq from which the log is
    complete."""

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
        report: Callable[[RecoveryProgress], None],
        replayed_bytes: int,
        before_logging: Callable[[], None],
    ) -> None:
        """`before_logging` is called before each frame: a clean stop recorded the end of the log, which then changes."""
        self._fold = fold
        self._table = table
        self._files = files
        self._layout = layout
        self._wals = wals
        self._report = report
        self._before_logging = before_logging
        self._done_bytes = self._total_bytes = replayed_bytes
        self.salvaged: dict[int, Salvage] = {}
        """Sources of the lost folds, by topic id."""

    def run(self, behind: Collection[int]) -> int:
        """Repair the topics of these ids, and those whose fold is lost; return their number.

        Raises:
            FoldFailed, FoldStalled (for long), OSError: the WAL takes no frame.
        """
        due = [topic for topic in self._table.all() if topic.folds and (topic.id in behind or topic.fold_lost)]
        self._total_bytes += sum(map(_source_bytes, due))
        for topic in due:
            self._repair(topic)
        return len(due)

    def _repair(self, topic: Topic) -> None:
        applied, done_bytes = self._fold.applied(topic.id), self._done_bytes
        try:
            if topic.base_wanted and not topic.fold_lost and not applied:
                raise DataCorrupt(
                    f"topic {topic.name}: its fold was ahead of its log, and was lost before a base was written",
                    file="fold",
                    offset=0,
                )
            self._build(topic, 0 if topic.fold_lost else applied)
        except DataCorrupt as error:
            logger.error("fold_lost", extra=fields(topic=topic.name, error=error.message))
            if not topic.fold_lost:
                self._log(topic, lost=True)
            self.salvaged[topic.id] = self._build(topic, 0, past_damage=True, base_damaged=self._is_base_damaged(topic))
        else:
            logger.warning("fold_made_anew", extra=fields(topic=topic.name, from_seq=applied, to_seq=topic.head_seq))
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
        writers = [(name, WriterState(writer.fence, writer.position)) for name, writer in topic.stored_writers()]
        try:
            for _ in rebuild(self._fold, topic.id, source, writers=writers):
                self._report(RecoveryProgress(self._done_bytes + source.bytes_read, self._total_bytes))
        finally:
            source.close()
        return Salvage(0 if base_damaged else source.base_seq, source.log_first_seq)

    def _log(self, topic: Topic, *, lost: bool) -> None:
        """Log the loss or recovery of the fold for the next start, synced."""
        self._before_logging()
        body, change = fold_change(topic, lost=lost)
        wal = self._wals[topic.id % len(self._wals)]
        wal.write(wal.place([body]))
        wal.sync()
        apply_segment_change(topic, change, self._layout.topic_dir(topic.id))
        self._table.dirty.add(topic)
        self._table.segmented.add(topic)  # it may need a base, though it has no segments


def fold_change(topic: Topic, *, lost: bool) -> tuple[FrameBody, SegmentChange]:
    """Return the frame that marks a topic's fold as lost or valid, and its content. A fold that was lost needs a base,
    because no log can rebuild it."""
    change = SegmentChange(stage="fold", next_generation=topic.next_generation, fold_lost=lost, base_wanted=not lost)
    body = segment_change_body(change)
    return control_body(FrameType.SEGMENT_CHANGE, topic.id, body, ts_ms=topic.last_ts_ms), change


def _source_bytes(topic: Topic) -> int:
    base_bytes = topic.base.file_bytes if topic.base is not None else 0
    return topic.segments.file_bytes + topic.index.frame_bytes + base_bytes
