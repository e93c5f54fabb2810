"""Writers of a whole cluster: a random walk over a store's operations, and a source that writes by positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CommitUnknown, EddylineError
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.store.log.append import AppendRequest, WriterPosition
from tests.support.models.random_walk import Wanderer
from tests.support.models.topic_model import TopicModel

if TYPE_CHECKING:
    from tests.support.models.history import TopicHistory
    from tests.support.models.recorded_store import Play, Rows

SOURCE: Final = SourceDefinition("copy", "s", "bucket")
TOPICS_MAX: Final = 4


class ClusterWriter(Wanderer):
    """Takes one step at a time; no time passes in a step."""

    _fence = 0
    _position = b""
    _revision = 0

    def begin(self) -> None:
        """Begin a new life of the store: leases and sessions of the previous one are requested again."""
        self._fence = 0

    async def take_step(self, play: Play) -> str:
        """Take one step. Returns its description."""
        topics = [topic for topic in play.history.current() if topic.made and topic.gone is False]
        pick = self.random.random()
        if len(topics) < TOPICS_MAX and (not topics or pick < 0.12):
            if all(topic.name != SOURCE.topic for topic in topics) and self.random.random() < 0.4:
                await self._make_copy(play)
                return "make s"
            await self.make(play)
            return f"make {play.history.topics[-1].name}"
        topic = self.random.choice(topics)
        if pick < 0.7:
            await self.add(play, topic)
            return f"add to {topic.name}: {topic.model.kept.head_seq}"
        if pick < 0.78:
            await self.delete(play, topic)
            return f"delete from {topic.name}"
        if pick < 0.82 and topic.name != SOURCE.topic:
            await self.update(play, topic)
            return f"update {topic.name}"
        if pick < 0.85:
            await play.drop(topic)
            return f"drop {topic.name} {topic.epoch}"
        if pick < 0.93:
            await play.upkeep_or_trouble()
            return "upkeep"
        try:
            await play.checkpoint()
        except OSError:
            return "checkpoint: the disk erred"
        return "checkpoint"

    async def add(self, play: Play, topic: TopicHistory) -> None:
        if topic.name != SOURCE.topic:
            await super().add(play, topic)
            return
        if not self._fence:
            await play.link.put_source(SOURCE)
            lease = await play.link.acquire_lease(SOURCE.name, holder="writer", lease_ms=5_000)
            self._fence, self._position = lease.fence, lease.source.position
            self._revision = int.from_bytes(self._position, "big")
        rows = self._copied()
        now, position = play.now, self._revision.to_bytes(8, "big")
        batch = Batch.from_rows(rows)
        move = WriterPosition(SOURCE.name, self._fence, self._position, position)
        request = AppendRequest(topic.name, batch, writer=move, source=True)
        event = topic.begin(
            partial(TopicModel.take, request=request, now=now),
            lasts=topic.settled.kept.config.durability is Durability.FSYNC,
        )
        try:
            for again in (False, True):
                result = await play.link.apply_batch(
                    SOURCE.name, fence=self._fence, previous=self._position, new=position, batch=batch
                )
                event.is_acknowledged = True
                assert result.deduplicated == again
                if self.random.random() < 0.8:
                    break
        except CommitUnknown:
            raise
        except EddylineError:
            if not event.is_acknowledged:
                topic.refused(event)
            raise
        self._position = position

    def _copied(self) -> Rows:
        """Return a bucket's next changes; some revisions are lost, with a gap."""
        rows: list[Record] = []
        for row in self.rows(Kind.KV):
            self._revision += 1
            if self.random.random() < 0.1:
                lost = self.random.randrange(1, 9)
                gap = Gap(
                    0, 0, GapReason.SOURCE_GAP, source_first=self._revision, source_last=self._revision + lost - 1
                )
                self._revision += lost
                rows.append(Record(op=Op.GAP, data=encode_gap(gap), version=self._revision.to_bytes(8, "big")))
            rows.append(row._replace(version=self._revision.to_bytes(8, "big")))
        return tuple(rows)

    async def _make_copy(self, play: Play) -> None:
        config = TopicConfig(cap_records=self.random.choice((0, 0, 15)))
        durability = self.random.choice((Durability.DISK, Durability.FSYNC))
        await play.make(SOURCE.topic, Kind.KV, durability, config)
        self._fence = 0
