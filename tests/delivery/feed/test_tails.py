"""Each shard is followed independently: the followed and the missing ones, and the role's readiness."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.store_link.sharded import ShardedLink
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.role import DeliveryRole
from eddyline.delivery.rpc.status import delivery_status
from tests.support.manual_clock import ManualClock
from tests.support.sim.cut_link import CutLink
from tests.support.store.shards import names_on
from tests.support.store.simulated import rows, sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TURNS_MAX = 20_000
FIRST, SECOND = names_on(0, 2, 1)[0], names_on(1, 2, 1)[0]


class Scene:
    """A delivery role over two stores that can be disconnected one by one."""

    def __init__(self, wires: tuple[CutLink, CutLink], clock: ManualClock) -> None:
        self.wires, self.clock = wires, clock
        self.link = ShardedLink(wires)
        self.role = DeliveryRole(self.link, clock=clock, random=Random(1), settings=DeliverySettings())

    @property
    def status(self) -> tuple[bool, str]:
        """Return the readiness, and the reason if not ready."""
        role = self.role
        status = delivery_status(role.stats, tails=role.tails, budget=role.budget, clock=self.clock)
        return status.ready, status.reason

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds."""
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.clock.advance(0.01)
            await asyncio.sleep(0)
        raise AssertionError("it never came to hold")


@asynccontextmanager
async def two_shards() -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(sim_store(clock=clock, shard_count=2, shard_index=str(shard)))
            for shard in range(2)
        ]
        scene = Scene((CutLink(stores[0]), CutLink(stores[1])), clock)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.role.run())
            await scene.until(lambda: all(scene.role.tails.reached))
            yield scene
            running.cancel()


async def test_an_unreachable_shard_is_named_and_the_others_stay_followed() -> None:
    async with two_shards() as scene:
        tails = scene.role.tails
        assert scene.status == (True, "")
        for name in (FIRST, SECOND):
            await scene.link.create_topic(name, Kind.LOG, TopicConfig())
        followed = {name: tails.attach(name, lambda: None) for name in (FIRST, SECOND)}
        await scene.until(lambda: all(tail.resolved.is_set() for tail in followed.values()))
        scene.wires[0].cut()
        await scene.until(lambda: not tails.reached[0])
        assert (tails.up.is_set(), tails.down.is_set()) == (True, False)
        assert scene.status == (False, "STORE_UNREACHABLE (shard 0)")
        await scene.link.append(SECOND, rows("still followed"))
        await scene.until(lambda: followed[SECOND].ring.end_seq == 1)
        scene.wires[1].cut()
        await scene.until(lambda: not any(tails.reached))
        assert (tails.up.is_set(), tails.down.is_set()) == (False, True)
        assert scene.status == (False, "STORE_UNREACHABLE (shard 0) STORE_UNREACHABLE (shard 1)")
        for wire in scene.wires:
            wire.mend()
        await scene.until(lambda: all(tails.reached))
        await scene.link.append(FIRST, rows("followed again"))
        await scene.until(lambda: followed[FIRST].ring.end_seq == 1)
        assert scene.status == (True, "")


async def test_topics_of_all_shards_are_counted_together_and_released_on_their_shard() -> None:
    async with two_shards() as scene:
        tails, heard = scene.role.tails, list[str]()
        for name in (FIRST, SECOND):
            await scene.link.create_topic(name, Kind.LOG, TopicConfig())

        def listen() -> None:
            heard.append("news")

        made = [tails.attach(name, listen) for name in (FIRST, SECOND)]
        await scene.until(lambda: all(tail.info is not None for tail in made))
        assert (len(tails), [len(each) for each in tails.shards]) == (2, [1, 1])
        assert {tail.name for tail in tails.followed} == {FIRST, SECOND}
        assert FIRST in tails
        await scene.link.append(FIRST, rows("a"))
        await scene.until(lambda: made[0].ring.end_seq == 1)
        for tail in made:
            tails.detach(tail, listen)
        await scene.until(lambda: len(tails) == 0)
        assert FIRST not in tails
