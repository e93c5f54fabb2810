"""A store with simulated faults, writers and readers: seeded, on one loop.

`make test-sim` runs some dozens of seeds; `SEED=n` replays one; EDDYLINE_TEST_SEEDS=n runs n of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from tests.sim.readers import Auditor, Follower, Poller, Reader
from tests.sim.seeds import naming, seeds
from tests.sim.world import World
from tests.sim.writers import (
    WINDOW_MS,
    Compare,
    Keyed,
    Mover,
    Plain,
    SourceWriter,
    TopicChurner,
)

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard

pytestmark = pytest.mark.sim

SEEDS = 40
TOPICS = {
    "log": (Kind.LOG, Durability.DISK),
    "safe": (Kind.LOG, Durability.FSYNC),
    "kv": (Kind.KV, Durability.DISK),
    "safe-kv": (Kind.KV, Durability.FSYNC),
    "certs": (Kind.KV, Durability.DISK),
    "safe-certs": (Kind.KV, Durability.FSYNC),
}
SOURCED = ("certs", "safe-certs")
CHURNED = {"churn": (Kind.LOG, Durability.DISK), "churn-kv": (Kind.KV, Durability.DISK)}


async def create_topics(world: World, link: Shard) -> None:
    """Make the lasting topics."""
    for name, (kind, durability) in TOPICS.items():
        info = await link.create_topic(name, kind, TopicConfig(durability, WINDOW_MS))
        world.book.made(name, info.epoch)
    for topic in SOURCED:
        await link.put_source(SourceDefinition(f"source-{topic}", topic, "bucket"))


def populate(world: World) -> None:
    """Add all writers, readers and auditors."""
    world.book.names.update(TOPICS | CHURNED)
    for topic in ("log", "safe", "kv", "safe-kv"):
        for kind in (Plain, Keyed, Mover, Compare):
            world.actors.append(kind(world, f"{kind.__name__}-{topic}", topic))
    world.actors.append(Compare(world, "Compare2-kv", "kv"))
    for topic in SOURCED:
        world.actors.append(SourceWriter(world, f"source-{topic}", topic))
    for topic in CHURNED:
        world.actors.append(TopicChurner(world, f"Churner-{topic}", topic))
    for topic in (*TOPICS, *CHURNED):
        world.actors.append(Follower(world, topic))
        world.actors.append(Poller(world, topic))
        world.actors.append(Auditor(world, topic))


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_store_keeps_its_promises(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with naming(seed, capsys):
        world = World(seed, found=create_topics)
        populate(world)
        await world.play()
        for actor in world.actors:
            if isinstance(actor, Reader):
                actor.check()
        assert sum(len(topic.records) for topic in world.book.topics.values()) > 100, "the simulation did nothing"
