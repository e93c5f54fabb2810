"""The path from ingest to NATS: links that break, servers that come and go, consumers that vanish, and a leaf node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats
import pytest

from eddyline.ingest.copy.progress import CopyProgress
from eddyline.ingest.rpc.status import ingest_status
from tests.ingest.copy.test_outage import revisions
from tests.support.ingest.kit import HEARTBEAT_MS, breakable_kit, bucket_kit
from tests.support.nats.leaf_node import leaf_node
from tests.support.nats.tcp_proxy import RouteProxy

if TYPE_CHECKING:
    from pathlib import Path

    from nats.js.kv import KeyValue

    from eddyline.ingest.copy.progress import State
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit

FLAPS = 50
TRIES = 100
"""More than the 60 after which nats-py gives up."""


async def test_consumer_deleted_under_an_idle_bucket_is_noticed_without_traffic(kit: BucketKit) -> None:
    await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.is_state("LIVE")
        (name,) = await kit.consumers()
        await kit.js.delete_consumer(f"KV_{kit.bucket}", name)
        async with asyncio.timeout(3 * HEARTBEAT_MS / 1000):
            while await kit.consumers() in ([], [name]):
                pass
        await kit.is_state("LIVE")
        assert len(await kit.consumers()) == 1


async def test_idle_source_stays_live_while_its_heartbeats_come(kit: BucketKit) -> None:
    await kit.make_copied_bucket()
    async with kit.ingest() as role:
        await kit.is_state("LIVE")
        since = role.ownership.held[kit.bucket].progress
        await kit.until(lambda: since.since_ms > 6 * HEARTBEAT_MS)
    assert kit.states()[-1] == "LIVE"
    assert "RECOVERING" not in kit.states()


async def test_server_restarted_three_times_at_once_leaves_one_consumer_and_a_whole_fold(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        for number in range(300):
            await kit.client.publish(f"$KV.b.k{number}", b"x")
        await kit.client.flush()
        async with kit.ingest():
            await kit.reaches(300)
            for _ in range(3):
                kit.reconnected.clear()
                server.kill()
                server.start()
                await asyncio.wait_for(kit.reconnected.wait(), 5)
            await kit.reaches(await bucket.put("after", b"1"))
            await kit.is_state("LIVE")
            assert len(await kit.consumers()) == 1
        assert await revisions(kit) == list(range(1, 302))
        assert await kit.consumers() == []


async def test_outage_of_more_tries_than_clients_have_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        async with kit.ingest() as role:
            await kit.reaches(await bucket.put("a", b"1"))
            monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MIN", 0.001)
            monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MAX", 0.002)
            server.kill()
            await kit.until(lambda: role.connection._attempts > TRIES, seconds=20)
            assert not role.readiness.ready
            assert role.readiness.reason == "NATS_UNREACHABLE"
            server.start()
            await kit.until(lambda: role.readiness.ready)
            await kit.is_state("LIVE")
            await asyncio.wait_for(kit.reconnected.wait(), 5)
            await kit.reaches(await bucket.put("a", b"2"))


async def test_empty_bucket_over_a_restart_takes_its_first_key(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        async with kit.ingest():
            await kit.is_state("LIVE")
            server.kill()
            await kit.is_state("RECOVERING")
            server.start()
            await kit.is_state("LIVE")
            await asyncio.wait_for(kit.reconnected.wait(), 5)
            await kit.reaches(await bucket.put("first", b"1"))
        assert await kit.fold() == {"first": b"1"}


@pytest.mark.integration
async def test_link_that_flaps_fifty_times_leaves_one_consumer(kit: BucketKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MIN", 0.001)
    monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MAX", 0.005)
    bucket = await kit.make_copied_bucket()
    async with RouteProxy(kit.url.removeprefix("nats://")) as link:
        kit.url = f"nats://{link.address}"
        async with kit.ingest() as role:
            for number in range(FLAPS):
                await role.connection.wait_connected()
                await bucket.put(f"k{number}", b"x")
                link.cut()
                await asyncio.wait_for(role.connection.lost.wait(), 5)
                link.mend()
            await kit.reaches(await bucket.put("last", b"x"))
            await kit.is_state("LIVE")
            assert len(await kit.consumers()) <= 2
            await kit.until(lambda: role.readiness.ready)
    assert await revisions(kit) == list(range(1, FLAPS + 2))
    assert await kit.consumers() == []


async def test_fifty_sources_that_start_under_a_writer_are_live_with_all_that_was_there(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await kit.make_bucket()
    live: list[int] = []
    before = 0

    def entered(progress: CopyProgress, state: State, reason: str = "", *, detail: str = "") -> None:
        if state == "LIVE" != progress.state:
            live.append(progress.position_revision)
        enter(progress, state, reason, detail=detail)

    enter = CopyProgress.set_state
    monkeypatch.setattr(CopyProgress, "set_state", entered)
    for number in range(500):
        before = await bucket.put(f"k{number}", b"x")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_write(bucket, stop))
        try:
            await kit.make_sources(50)
            async with kit.ingest():
                await kit.until(lambda: len(live) >= 50, seconds=20)
        finally:
            stop.set()
    assert len(live) == 50
    assert min(live) >= before


async def _write(bucket: KeyValue, stop: asyncio.Event) -> None:
    """Put until the stop event: the client may swallow a cancellation."""
    number = 0
    while not stop.is_set():
        number += 1
        await bucket.put(f"w{number % 50}", b"x")


async def test_each_connection_has_a_reason_of_its_own(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with RouteProxy(kit.url.removeprefix("nats://")) as link:
        kit.url = f"nats://{link.address}"
        async with kit.ingest() as role:
            await kit.reaches(await bucket.put("a", b"1"))
            link.cut()
            await kit.is_state("RECOVERING")
            assert ingest_state(role) == (False, "NATS_UNREACHABLE", False)
            kit.link.away = True
            await bucket.put("a", b"2")
            await kit.until(lambda: "STORE_UNREACHABLE" in role.readiness.reason)
            assert ingest_state(role) == (False, "NATS_UNREACHABLE STORE_UNREACHABLE", False)
            link.mend()
            await kit.until(lambda: role.readiness.nats_connected)
            assert ingest_state(role) == (False, "STORE_UNREACHABLE", True)
            kit.link.away = False
            await kit.reaches(2)
            await kit.until(lambda: role.readiness.ready)
            assert ingest_state(role) == (True, "", True)


def ingest_state(role: IngestRole) -> tuple[bool, str, bool]:
    """GetStatus of the replica: ready, the reason, and whether NATS is connected."""
    status = ingest_status(role.readiness, role.ownership, role.verifier)
    return status.ready, status.reason, status.detail.nats_connected  # type: ignore[union-attr]


async def test_bucket_of_a_hub_is_copied_through_a_leaf_node_with_a_domain(tmp_path: Path) -> None:
    async with leaf_node(tmp_path) as (hub, leaf):
        async with bucket_kit(hub, tmp_path, "b") as kit:
            bucket = await kit.make_copied_bucket()
            await bucket.put("a", b"1")
            kit.url = leaf
            async with kit.ingest(nats_domain="hub") as role:
                await kit.reaches(1)
                await kit.is_state("LIVE")
                await kit.js.purge_stream("KV_b", subject="$KV.b.a")
                await kit.reaches(await bucket.put("b", b"2"))
                assert role.connection.client.connected_url is not None
                assert role.connection.client.connected_url.geturl() == leaf
                assert len(await kit.consumers()) == 1
            assert (await revisions(kit))[:2] == [1, 2]
            assert await kit.consumers() == []
        async with await nats.connect(leaf) as client:
            # The leaf's own JetStream has no such bucket: without the domain nothing would be found there.
            assert await client.jetstream().streams_info() == []
