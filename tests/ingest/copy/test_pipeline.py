"""Two batches of a source in flight: whatever happens to each, all are applied once and in order."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import StaleFence, StoreUnreachable
from eddyline.core.model.source import LEASE_MS_MIN, SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.tasks import task_group
from eddyline.core.telemetry.metrics import Histogram
from eddyline.ingest.copy.forward import Forward
from eddyline.ingest.copy.pipeline import STEPS_MAX, Pipeline
from eddyline.ingest.copy.position import StreamPosition
from eddyline.ingest.copy.progress import SourceCounts
from tests.support.manual_clock import ManualClock
from tests.support.sim.link_proxy import LinkProxy
from tests.support.store.simulated import all_rows, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.store.shard.shard import Shard

T = TypeVar("T")
Fault = Literal["", "refused", "lost"]
RETRY_S_MAX = 60


class FaultyLink(LinkProxy):
    """Applies batches with a fate each: turns of the loop before it reaches the store, and what becomes of it."""

    def __init__(self, link: StoreLink, fates: Iterable[tuple[int, Fault]]) -> None:
        self._link = link
        self._fates = iter(fates)
        self.in_flight = self.in_flight_max = 0

    async def around(self, name: str, call: Callable[[StoreLink], Awaitable[T]]) -> T:
        assert name == "apply_batch"
        turns, fault = next(self._fates, (0, ""))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            if fault == "refused":
                raise StoreUnreachable("it did not get there")
            result = await call(self._link)
            await asyncio.sleep(0)
            if fault == "lost":
                raise StoreUnreachable("the answer was lost")
            return result
        finally:
            self.in_flight -= 1


class Copied:
    """A source with a lease, whose batches go through `link`."""

    def __init__(self, store: Shard, link: FaultyLink, fence: int) -> None:
        self.store = store
        self.clock = ManualClock()
        self.counts = SourceCounts()
        self.applied: list[int] = []
        self.forward = Forward(
            cast("StoreLink", link),
            source="s",
            fence=fence,
            stored=b"",
            clock=self.clock,
            rng=Random(1),
            on_trouble=lambda _: None,
            counts=self.counts,
            apply_s=Histogram(),
        )

    async def send_all(self, sizes: list[int]) -> None:
        revision = 0
        async with task_group() as tasks:
            pipeline = Pipeline(
                self.forward,
                self.clock,
                tasks,
                on_applied=lambda position: self.applied.append(position.revision),
                on_failed=lambda: None,
            )
            try:
                for size in sizes:
                    rows = [put(revision + row) for row in range(1, size + 1)]
                    revision += size
                    await pipeline.send(Batch.from_rows(rows), StreamPosition(7, revision))
                await pipeline.settle()
            finally:
                pipeline.cancel()

    async def play(self, sizes: list[int]) -> None:
        """Send batches of so many records, while time passes."""
        async with task_group() as tasks:
            sending = tasks.create_task(self.send_all(sizes))
            while not sending.done():
                await asyncio.sleep(0)
                self.clock.advance(RETRY_S_MAX)


def put(revision: int) -> Record:
    return Record(op=Op.PUT, key=b"k%d" % (revision % 3), data=b"v", version=revision.to_bytes(8, "big"))


async def copied(store: Shard, fates: Iterable[tuple[int, Fault]]) -> tuple[Copied, FaultyLink]:
    await store.create_topic("t", Kind.KV, TopicConfig())
    await store.put_source(SourceDefinition("s", "t", "bucket"))
    lease = await store.acquire_lease("s", holder="me", lease_ms=LEASE_MS_MIN)
    link = FaultyLink(store, fates)
    return Copied(store, link, lease.fence), link


async def revisions(store: Shard) -> list[int]:
    return [int.from_bytes(record.version, "big") for record in await all_rows(store, "t")]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["", "", "", "refused", "lost"])), max_size=24),
)
async def test_batches_are_applied_once_and_in_order(sizes: list[int], fates: list[tuple[int, Fault]]) -> None:
    async with sim_store() as store:
        source, link = await copied(store, fates)
        await source.play(sizes)
        total = sum(sizes)
        assert await revisions(store) == list(range(1, total + 1))
        assert source.applied == [sum(sizes[: index + 1]) for index in range(len(sizes))]
        assert source.forward.stored == StreamPosition(7, total).encode()
        assert source.counts.applied == total
        assert link.in_flight_max <= STEPS_MAX


async def test_a_second_batch_is_on_its_way_while_the_first_is_applied() -> None:
    async with sim_store() as store:
        source, link = await copied(store, [(5, ""), (5, ""), (5, "")])
        await source.play([1, 1, 1])
        assert link.in_flight_max == STEPS_MAX


async def test_both_applied_and_both_answers_lost_is_no_refusal() -> None:
    async with sim_store() as store:
        source, _ = await copied(store, [(0, "lost"), (3, "lost"), (0, "refused")])
        await source.play([2, 2])
        assert await revisions(store) == [1, 2, 3, 4]
        assert source.applied == [2, 4]


async def test_a_lost_lease_ends_both_and_nothing_behind_them_is_sent() -> None:
    async with sim_store() as store:
        source, _ = await copied(store, [(0, ""), (0, "refused")])
        await store.release_lease("s", fence=1)
        await store.acquire_lease("s", holder="another", lease_ms=LEASE_MS_MIN)
        with pytest.raises(ExceptionGroup) as ended:
            await source.play([1, 1, 1, 1])
        assert ended.value.split(StaleFence)[1] is None
        assert source.applied == []
        assert await revisions(store) == []
