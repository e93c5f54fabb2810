"""Two real delivery processes under a rolling restart, with many subscribers: each of them gets everything once, in order.

`EDDYLINE_TEST_SUBSCRIBERS` = how many (200 unless it says otherwise; 1 000 take about a minute on two cores).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import Records
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.settings import CommonSettings
from tests.support.clients.clients import client_at
from tests.support.cluster.processes import delivery_at, free_address, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from eddyline.client.watch.plan import StartPoint
    from eddyline.client.watch.watch import Watch
    from eddyline.core.errors import EddylineError

SUBSCRIBERS = int(os.environ.get("EDDYLINE_TEST_SUBSCRIBERS", "200"))
STARTS: tuple[StartPoint, StartPoint] = ("snapshot", "earliest")
ROUNDS = 2
PATIENCE_S = 120.0 + SUBSCRIBERS / 5

pytestmark = [pytest.mark.integration, pytest.mark.timeout(PATIENCE_S + 60)]


class Subscriber:
    """One watch, and what came on it."""

    def __init__(self, client: Client, start: StartPoint) -> None:
        self.errors: list[EddylineError] = []
        self.seqs: list[int] = []
        self.values: dict[bytes, int] = {}
        self.watch: Watch = client.watch("kv", start=start, heartbeat_ms=1000, on_retry=self.errors.append)

    async def read(self, finished: asyncio.Event, heads: list[int]) -> None:
        """Read until the head that the writer sends at the end."""
        async with self.watch as events:
            async for event in events:
                if isinstance(event, Records):
                    for record in event.records:
                        assert record.key is not None
                        self.values[record.key] = record.seq
                        if not event.in_snapshot:
                            self.seqs.append(record.seq)
                if finished.is_set() and self.seqs and self.seqs[-1] >= heads[0]:
                    return


async def write(client: Client, stop: asyncio.Event) -> int:
    """Append until told to stop; the last seq."""
    number = last_seq = 0
    while not stop.is_set():
        number += 1
        record = Record(op=Op.PUT, key=b"k%d" % (number % 50), data=b"%d" % number)
        last_seq = (await client.append("kv", [record], idempotency_key=f"w{number}")).last_seq
        await asyncio.sleep(0.01)
    return last_seq


@dataclass(frozen=True, slots=True)
class Replicas:
    """A store, two replicas of delivery, each in a stack of its own, and a client of all."""

    store: str
    of_address: dict[str, AsyncExitStack]
    client: Client

    async def start(self, address: str) -> None:
        """Start one. Its topology is the client's: a watch that retries requests it."""
        await self.of_address[address].enter_async_context(
            delivery_at(address, self.store, EDDYLINE_COMMON_DELIVERY_ADDRESSES=",".join(self.of_address))
        )

    async def restart_one_after_the_other(self) -> None:
        """Stop and start each replica."""
        for _ in range(ROUNDS):
            for address, replica in self.of_address.items():
                await replica.aclose()
                await self.start(address)
                await asyncio.sleep(0.3)


@asynccontextmanager
async def two_replicas(directory: Path) -> AsyncIterator[Replicas]:
    """Start them, with a topic that has values."""
    of_address = {free_address(): AsyncExitStack() for _ in range(2)}
    async with AsyncExitStack() as stack:
        more = {"EDDYLINE_COMMON_DELIVERY_ADDRESSES": ",".join(of_address)}
        _, store = await stack.enter_async_context(store_process(directory, **more))
        topology = Topology(CommonSettings().cluster_id, (store,), (), tuple(of_address))
        client = await stack.enter_async_context(client_at(topology, random_source=Random(1)))
        replicas = Replicas(store, of_address, client)
        for address, replica in of_address.items():
            stack.push_async_callback(replica.aclose)
            await replicas.start(address)
        await client.create_topic("kv", Kind.KV)
        await client.append("kv", [Record(op=Op.PUT, key=b"k%d" % number, data=b"") for number in range(50)])
        yield replicas


async def watched(client: Client, subscribers: list[Subscriber], meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Let them read under a writer while something is done, and judge what they got."""
    stop, finished, heads = asyncio.Event(), asyncio.Event(), [0]
    async with asyncio.TaskGroup() as tasks:
        for subscriber in subscribers:
            tasks.create_task(subscriber.read(finished, heads))
        writing = tasks.create_task(write(client, stop))
        await meanwhile()
        stop.set()
        await writing
        # the last record tells who waits that it is the last
        heads[0] = writing.result() + 1
        finished.set()
        end = await client.append("kv", [Record(op=Op.PUT, key=b"end", data=b"")])
        assert end.last_seq == heads[0]
    for number, subscriber in enumerate(subscribers):
        first = subscriber.seqs[0] if number % 2 == 0 else 1
        assert subscriber.seqs == list(range(first, heads[0] + 1)), f"subscriber {number}"
        assert subscriber.values == subscribers[1].values


async def test_rolling_restart_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), two_replicas(tmp_path / "store") as replicas:
        subscribers = [Subscriber(replicas.client, STARTS[number % 2]) for number in range(SUBSCRIBERS)]

        async def restart() -> None:
            await asyncio.sleep(1.0)
            await replicas.restart_one_after_the_other()

        await watched(replicas.client, subscribers, restart)
        moved = sum(subscriber.watch.move_count for subscriber in subscribers)
        assert moved >= SUBSCRIBERS, "each of them was told to go on elsewhere at least once"
        reasons = {error.reason for subscriber in subscribers for error in subscriber.errors}
        assert reasons <= {"DRAINING", "NOT_READY"}


async def test_streams_and_connections_that_reach_their_age_move_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDDYLINE_DELIVERY_STREAM_AGE_MS_MAX", "2000")
    async with asyncio.timeout(PATIENCE_S), two_replicas(tmp_path / "store") as replicas:
        subscribers = [Subscriber(replicas.client, STARTS[number % 2]) for number in range(40)]
        await watched(replicas.client, subscribers, lambda: asyncio.sleep(9.0))
        assert min(subscriber.watch.move_count for subscriber in subscribers) >= 2
        # A stream that is opened just as its connection ends may meet that end, and goes on by itself.
        assert {error.reason for subscriber in subscribers for error in subscriber.errors} <= {"NOT_READY"}
