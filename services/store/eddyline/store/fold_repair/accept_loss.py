"""SettleFold: an operator accepts the readable rest of base and log as the fold of a topic whose fold is lost.

The start rebuilt the fold from that rest, and appends were applied to it since (`repair.py`). Accepting it syncs the fold
and logs a frame that makes it valid. The scheduler writes a base of it next, so that the damaged files are no longer
needed. Until then a check of the fold reports that damage, and a second loss of the fold is a loss as before.
Threading: event loop; the fold's own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import NotKv, TopicNotFound
from eddyline.core.model.fold_check import FoldSettled
from eddyline.store.fold_repair.repair import Salvage, fold_change
from eddyline.store.log.control import apply_segment_change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.store.log.topic import Topic
    from eddyline.store.read.fold_reader import FoldReader
    from eddyline.store.storage.layout import Layout
    from eddyline.store.write.engine import Engine


class SettleFold:
    """Accepts lost folds of one store; `salvaged` describes the source of each rebuilt fold."""

    def __init__(self, engine: Engine, entries: FoldReader, layout: Layout, salvaged: Mapping[int, Salvage]) -> None:
        self._engine = engine
        self._entries = entries
        self._layout = layout
        self._salvaged = salvaged

    async def run(self, topic: Topic) -> FoldSettled:
        """Accept a topic's fold; the caller holds the topic's lock.

        Raises:
            NotKv, TopicNotFound (deleted meanwhile), ReadOnly, CommitUnknown.
        """
        if not topic.folds:
            raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
        base_seq = topic.base.seq if topic.base is not None else 0
        salvage = self._salvaged.get(topic.id, Salvage(base_seq, base_seq + 1))
        if not topic.fold_lost:
            return FoldSettled(False, *salvage, self._entries.state(topic, topic.head_seq))
        await self._engine.fold_worker.submit(self._engine.fold.sync)
        frame, change = fold_change(topic, lost=False)

        def committed(_: object) -> None:
            apply_segment_change(topic, change, self._layout.topic_dir(topic.id))
            self._engine.table.segmented.add(topic)  # it needs a base, though it may have no segments

        if topic.closing or topic.deleted:
            raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
        await self._engine.control(frame, committed, topic)
        return FoldSettled(True, *salvage, self._entries.state(topic, topic.head_seq))
