"""Ingest with a cluster of three nats-servers under load: leaders killed, servers restarted, hung and cut off.

After each failure, without an operator: the fold equals the bucket, each acknowledged revision is there once, the source
is LIVE, and no consumer of ours is left.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from eddyline.core.errors import NatsUnreachable
from tests.support.ingest.kit import bucket_kit
from tests.support.nats.bucket_load import check_copied_once, loaded
from tests.support.nats.cluster import eventually, nats_cluster, stream_leader, wait_current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit
    from tests.support.nats.bucket_load import BucketLoad
    from tests.support.nats.cluster import NatsCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    # nats-py leaves the socket of a try at a server that hangs to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BUCKET: Final = "b"
STREAM: Final = "KV_b"
WRITES: Final = 100
HEALED_S: Final = 45.0
"""An election takes up to 4 s, an unanswered API call 5 s, and a reconnect 2 s."""
CUT_OFF_S: Final = 25.0
"""Longer than MUTE_S and an attempt at another server."""
CONSUMERS_GONE_S: Final = 40.0
"""A consumer that could not be deleted, since its server was away, is removed by its threshold of 30 s."""


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with nats_cluster(tmp_path) as made:
        yield made


class Scene:
    """A bucket of three replicas, a writer on it, and ingest."""

    def __init__(self, cluster: NatsCluster, kit: BucketKit, load: BucketLoad, role: IngestRole) -> None:
        self.cluster = cluster
        self.kit = kit
        self.load = load
        self.role = role

    async def leader(self) -> str:
        """Name of the server that leads the bucket's stream."""
        return await stream_leader(self.kit.js, STREAM)

    def connected_to(self) -> str:
        """Name of the server that ingest is connected to."""
        url = self.role.connection.client.connected_url
        assert url is not None
        return self.cluster.node_at(url.netloc).name

    def writer_at(self) -> str:
        """Name of the server that the writer is connected to."""
        url = self.kit.client.connected_url
        assert url is not None
        return self.cluster.node_at(url.netloc).name

    async def catches_up(self) -> None:
        """Wait until later writes arrive."""
        await self.load.writes(1, seconds=HEALED_S)
        last = max(self.load.acknowledged)
        await self.kit.until(lambda: self.kit.is_at(last), seconds=HEALED_S)


@asynccontextmanager
async def scene(cluster: NatsCluster, folder: Path) -> AsyncIterator[Scene]:
    """Run everything while the body does its damage; then check the outcome."""
    async with bucket_kit(cluster.url, folder, BUCKET) as kit:
        await eventually(lambda: _made(kit), "the bucket was not made")
        await wait_current(kit.js, STREAM)
        await kit.make_source()
        async with kit.ingest() as role:
            async with loaded(kit) as load:
                await load.writes(WRITES)
                await kit.is_state("LIVE")
                yield Scene(cluster, kit, load, role)
                await load.writes(WRITES, seconds=HEALED_S)
            last = await load.last()
            await kit.until(lambda: kit.is_at(last), seconds=HEALED_S)
            await kit.is_state("LIVE")
            await wait_current(kit.js, STREAM)
            await eventually(lambda: _compared_equal(kit, role), "the fold is not equal to the bucket")
            await check_copied_once(kit, load)
            await eventually(lambda: _consumers(kit, 1), "not one consumer", seconds=CONSUMERS_GONE_S)
        await eventually(lambda: _consumers(kit, 0), "consumers are left", seconds=CONSUMERS_GONE_S)
        assert await kit.gaps() == []


async def _compared_equal(kit: BucketKit, role: IngestRole) -> bool:
    try:
        compared = await role.comparer.compare((await kit.source()).definition, name="compare", settle_s=5, limit=10)
    except NatsUnreachable:  # an election
        return False
    return compared.differences == () and compared.fold_count == compared.bucket_count


async def _consumers(kit: BucketKit, count: int) -> bool:
    return len(await kit.consumers()) == count


async def _made(kit: BucketKit) -> bool:
    await kit.make_bucket(replicas=3)
    return True


async def test_a_server_that_is_away_is_named_in_the_sources_warnings(cluster: NatsCluster, tmp_path: Path) -> None:
    async with bucket_kit(cluster.url, tmp_path, BUCKET) as kit:
        await eventually(lambda: _made(kit), "the bucket was not made")
        await wait_current(kit.js, STREAM)
        await kit.make_source()
        async with kit.ingest(audit_interval_s=0.2):
            await kit.is_state("LIVE", seconds=HEALED_S)
            leader = await stream_leader(kit.js, STREAM)
            other = next(node.name for node in cluster.nodes if node.name != leader)

            async def warned() -> bool:
                detail = (await kit.source()).report.detail
                return detail is not None and any(f"NATS server {other} " in text for text in detail.warnings)

            assert not await warned()
            cluster.node(other).kill()
            await kit.until(warned, seconds=HEALED_S)
            await cluster.restart(other)
            await kit.until(lambda: _not(warned()), seconds=HEALED_S)


async def _not(holds: Awaitable[bool]) -> bool:
    return not await holds


async def test_stream_leader_killed_under_load(cluster: NatsCluster, tmp_path: Path) -> None:
    async with scene(cluster, tmp_path) as here:
        for _ in range(2):
            leader = await here.leader()
            cluster.node(leader).kill()
            await here.catches_up()
            await cluster.restart(leader)


async def test_each_server_killed_and_restarted_in_turn(cluster: NatsCluster, tmp_path: Path) -> None:
    async with scene(cluster, tmp_path) as here:
        for node in cluster.nodes:
            node.kill()
            await here.catches_up()
            await cluster.restart(node.name)
            await wait_current(here.kit.js, STREAM)


async def test_all_servers_killed_at_once(cluster: NatsCluster, tmp_path: Path) -> None:
    async with scene(cluster, tmp_path) as here:
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        await cluster.wait_ready()
        await here.catches_up()


async def test_stream_leader_hangs(cluster: NatsCluster, tmp_path: Path) -> None:
    async with scene(cluster, tmp_path) as here:
        leader = await here.leader()
        cluster.node(leader).freeze()
        await here.catches_up()
        cluster.node(leader).thaw()


async def test_server_that_ingest_is_connected_to_hangs(cluster: NatsCluster, tmp_path: Path) -> None:
    async with scene(cluster, tmp_path) as here:
        name = here.connected_to()
        cluster.node(name).freeze()
        await here.catches_up()
        cluster.node(name).thaw()


@pytest.mark.parametrize("whose", ["leader", "ingest", "other"])
async def test_one_server_cut_off_from_the_others(cluster: NatsCluster, tmp_path: Path, whose: str) -> None:
    async with scene(cluster, tmp_path) as here:
        leader, ours = await here.leader(), here.connected_to()
        others = [node.name for node in cluster.nodes if node.name not in (leader, ours)]
        name = {"leader": leader, "ingest": ours, "other": others[0]}[whose]
        cluster.isolate(name)
        await asyncio.sleep(CUT_OFF_S)
        if here.writer_at() != name:
            # Ingest has found its way to a server that has a majority.
            await here.catches_up()
            assert here.connected_to() != name or whose != "ingest"
        cluster.rejoin()
        await here.catches_up()


async def test_server_cut_off_together_with_our_consumer_is_left(cluster: NatsCluster, tmp_path: Path) -> None:
    # Its heartbeats go on, so that only the looks at the stream tell.
    async with scene(cluster, tmp_path) as here:
        ours = here.connected_to()
        await eventually(lambda: _consumer_is_at(here.kit, ours), "no consumer came to be there", seconds=HEALED_S)
        await _writer_elsewhere(here, ours)
        cluster.isolate(ours)
        # On a busy machine the writer may put nothing new before ingest has caught up.
        await eventually(lambda: _is_away(here, ours), "ingest did not leave its server", seconds=HEALED_S)
        await here.catches_up()
        cluster.rejoin()
        await here.catches_up()


async def _is_away(here: Scene, name: str) -> bool:
    try:
        return here.connected_to() != name
    except NatsUnreachable:  # it is on its way
        return False


async def _consumer_is_at(kit: BucketKit, name: str) -> bool:
    """Whether our consumer is at this server; one at another server is deleted, so that a new one is created."""
    for info in await kit.js.consumers_info(STREAM):
        if info.cluster is not None and info.cluster.leader == name:
            return True
        await kit.js.delete_consumer(STREAM, info.name)
    return False


async def _writer_elsewhere(here: Scene, name: str) -> None:
    """Move the writer to another server, if it is at this one."""

    async def look() -> bool:
        if here.writer_at() == name:
            await here.kit.client.force_reconnect()
        return here.kit.client.is_connected and here.writer_at() != name

    await eventually(look, "the writer did not move")
