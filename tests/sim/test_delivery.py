"""Delivery over a store whose fold stalls and fails, whose disk fails and whose clock jumps: subscribers' views are checked
as in `test_cluster`, on topics without deletes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Op, Record
from tests.sim.mortal_delivery import Delivery
from tests.sim.seeds import naming, seeds
from tests.sim.subscriber import Cluster, Subscriber
from tests.sim.world import World
from tests.sim.writers import WINDOW_MS, Keyed, Mover, Plain
from tests.support.models.subscriber_view import Head, Judge, Opened, Truth
from tests.support.models.topic_model import Past
from tests.support.sim.wire import SimWire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.store.shard.shard import Shard
    from tests.sim.book import TopicBook

pytestmark = pytest.mark.sim

SEEDS = 24
SUBSCRIBERS = 6
TOPICS = {
    "log": (Kind.LOG, Durability.DISK),
    "safe": (Kind.LOG, Durability.FSYNC),
    "kv": (Kind.KV, Durability.DISK),
    "safe-kv": (Kind.KV, Durability.FSYNC),
}


class RecordingWire(SimWire):
    """A wire that records the topics' heads in the newest life."""

    def __init__(self) -> None:
        super().__init__()
        self._heads: Mapping[str, Head] = {}

    async def run(self, link: Shard) -> None:
        """Be plugged in for one life, and keep its last heads: delivery knows them while the store is away."""
        try:
            await super().run(link)
        finally:
            self._heads = _heads_of(link)

    def heads(self) -> Mapping[str, Head]:
        return self._heads if self._life is None else _heads_of(self._life.link)


def _heads_of(link: Shard) -> Mapping[str, Head]:
    infos = [topic.info() for topic in link._table.page("", "", 1_000)]
    return {info.name: Head(info.epoch, info.head_seq) for info in infos}


class WorldCluster(Cluster):
    """The simulated machine, as subscribers see it."""

    def __init__(self, world: World, wire: RecordingWire) -> None:
        self._world, self._wire = world, wire
        self.clock = world.clock
        self.delivery = Delivery(world, wire)
        self.content = True

    @property
    def resting(self) -> bool:  # type: ignore[override]  # it is the world that rests
        return self._world.resting

    def heads(self) -> Mapping[str, Head]:
        return self._wire.heads()

    def opened(self, topic: str) -> Opened:
        """Return no deletes: `test_cluster` checks them."""
        return Opened()

    async def live(self) -> None:
        """Serve streams in one life of delivery after another."""
        await self.delivery.live()


class SubscriberActor(Subscriber):
    """A subscriber that runs over all lives of the store."""

    @property
    def content(self) -> bool:
        """True = it is caught up."""
        return self.level


async def create_topics(world: World, link: Shard) -> None:
    """Make the topics."""
    for name, (kind, durability) in TOPICS.items():
        config = TopicConfig(durability, WINDOW_MS, priority=world.random.choice((None, -1000, 0, 1000)))
        world.book.made(name, (await link.create_topic(name, kind, config)).epoch)


def truth_of(book: TopicBook) -> Truth:
    """Return a topic's final records. The fold of a DISK topic may be ahead of its log by unknown records."""
    gap_rows = [Record(op=Op.GAP, seq=gap.seq, data=encode_gap(gap)) for gap in book.gaps]
    rows = {record.seq: record for record in (*book.records, *gap_rows)}
    is_known = book.durability is Durability.FSYNC
    return Truth(book.kind, book.gone, 0, Past(rows=rows), sorted(rows), fold_is_known=is_known)


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_subscribers_get_the_logs_records_under_all_faults_of_the_store(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with naming(seed, capsys):
        world = World(seed, found=create_topics)
        world.book.names.update(TOPICS)
        for topic in TOPICS:
            world.actors += [kind(world, f"{kind.__name__}-{topic}", topic) for kind in (Plain, Keyed, Mover)]
        wire = RecordingWire()
        world.always_present.append(wire)
        around = WorldCluster(world, wire)
        watching = [SubscriberActor(around, Random(f"{seed} {one}"), f"s{one}") for one in range(SUBSCRIBERS)]
        world.companions += [around, *watching]
        await world.play()
        topics = {epoch: truth_of(book) for epoch, book in world.book.topics.items()}
        count = 0
        for subscriber in watching:
            for view in subscriber.views:
                judge = Judge(view, topics)
                judge.go()
                count += judge.count + judge.levels
        assert count, "nobody was shown anything"
