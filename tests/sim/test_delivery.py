"""Delivery over a store that crashes, and dying itself: every subscriber sees everything once, in order, or a told gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.topic import Durability, Kind, TopicConfig
from tests.sim.seeds import naming, seeds
from tests.sim.watchers import Delivery, SnapshotWatcher, Watcher
from tests.sim.wire import SimWire
from tests.sim.world import World
from tests.sim.writers import WINDOW_MS, Keyed, Mover, Plain

if TYPE_CHECKING:
    from eddyline.store.link import LocalLink

pytestmark = pytest.mark.sim

SEEDS = 24
TOPICS = {
    "log": (Kind.LOG, Durability.DISK),
    "safe": (Kind.LOG, Durability.FSYNC),
    "kv": (Kind.KV, Durability.DISK),
    "safe-kv": (Kind.KV, Durability.FSYNC),
}


async def found(world: World, link: LocalLink) -> None:
    """Make the topics."""
    for name, (kind, durability) in TOPICS.items():
        config = TopicConfig(durability, WINDOW_MS, priority=world.random.choice((None, -1000, 0, 1000)))
        world.book.made(name, (await link.create_topic(name, kind, config)).epoch)


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_subscribers_see_everything_once_and_in_order(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with naming(seed, capsys):
        world = World(seed, found=found)
        world.book.names.update(TOPICS)
        for topic in TOPICS:
            world.actors += [kind(world, f"{kind.__name__}-{topic}", topic) for kind in (Plain, Keyed, Mover)]
        wire = SimWire()
        world.always_present.append(wire)
        delivery = Delivery(world, wire)
        watchers = [
            Watcher(world, delivery, ("log",), columns=True),
            Watcher(world, delivery, ("safe", "kv"), columns=False),
            Watcher(world, delivery, tuple(TOPICS), columns=True),
        ]
        values = SnapshotWatcher(world, delivery, "safe-kv")
        world.companions += [delivery, values, *watchers]
        await world.play()
        for watcher in watchers:
            for reader in watcher.readers.values():
                reader.judge()
        values.judge()
        assert values.snapshots
        assert any(watcher.streams > 1 for watcher in watchers)
