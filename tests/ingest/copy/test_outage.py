"""Failures while a source copies: of NATS, its consumer, the store, the lease."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from eddyline.core.errors import ClusterMismatch
from eddyline.core.model.source import LEASE_MS_MIN, SourceDefinition
from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.record import Op
from eddyline.ingest.copy.position import StreamPosition, decode_position
from eddyline.ingest.nats.consumer_names import consumer_name, name_prefix
from eddyline.ingest.rpc.status import ingest_status
from eddyline.ingest.sources.creation import create_source
from tests.support.ingest.kit import breakable_kit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from eddyline.core.model.source import SourceInfo
    from tests.support.ingest.kit import BucketKit


async def revisions(kit: BucketKit) -> list[int]:
    """Revision of every record but gaps."""
    return [int.from_bytes(record.version, "big") for record in await kit.records() if record.op != Op.GAP]


async def test_server_killed_and_started_again_is_gone_on_with(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        async with kit.ingest() as role:
            await kit.reaches(await bucket.put("a", b"1"))
            for number in range(2, 4):
                server.kill()
                await kit.is_state("RECOVERING")
                assert not role.readiness.ready
                server.start()
                await kit.is_state("LIVE")
                assert role.readiness.ready
                await asyncio.wait_for(kit.reconnected.wait(), 5)
                kit.reconnected.clear()
                await kit.reaches(await bucket.put("a", b"%d" % number))
            assert len(await kit.consumers()) == 1
        assert [record.data for record in await kit.records()] == [b"1", b"2", b"3"]
        assert await kit.consumers() == []


async def test_ingest_waits_for_a_server_that_comes_later(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        last = await bucket.put("a", b"1")
        server.stop()
        async with kit.ingest() as role:

            async def is_reported() -> bool:
                return (await kit.source()).report.reason.startswith("not connected to NATS")

            await kit.until(is_reported)
            assert not role.readiness.ready
            server.start()
            await kit.reaches(last)


async def test_server_that_hangs_is_noticed_by_its_missing_heartbeat(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_copied_bucket()
        async with kit.ingest():
            await kit.reaches(await bucket.put("a", b"1"))
            await kit.is_state("LIVE")
            server.freeze()
            await kit.is_state("RECOVERING", seconds=3)
            assert "no heartbeat" in (await kit.source()).report.reason
            server.thaw()
            await kit.is_state("LIVE")
            await kit.reaches(await bucket.put("a", b"2"))
            assert len(await kit.consumers()) == 1


async def test_consumer_deleted_at_the_server_is_recreated(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
        (name,) = await kit.consumers()
        await kit.js.delete_consumer(f"KV_{kit.bucket}", name)
        await kit.reaches(await bucket.put("a", b"2"))
        await kit.is_state("LIVE")
        assert len(await kit.consumers()) == 1
        assert await kit.consumers() != [name]
    assert await revisions(kit) == [1, 2]


async def test_a34_consumers_begin_by_sequence_alone_and_go_on_by_it(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    for number in range(3):
        await bucket.put("a", b"%d" % number)
    await kit.js.purge_stream(f"KV_{kit.bucket}", seq=3)  # up to there, exclusive
    async with kit.ingest():
        await kit.reaches(3)
        await kit.is_state("LIVE")
        (first,) = await kit.js.consumers_info(f"KV_{kit.bucket}")
        await kit.js.delete_consumer(f"KV_{kit.bucket}", first.name)
        await kit.reaches(await bucket.put("a", b"3"))
        await kit.is_state("LIVE")
        (second,) = await kit.js.consumers_info(f"KV_{kit.bucket}")
    assert (first.config.opt_start_time, first.config.opt_start_seq) == (None, 3)
    assert second.config.opt_start_time is None
    assert second.config.opt_start_seq == 4
    assert await revisions(kit) == [3, 4]


async def test_no_consumer_is_left_after_a_stop(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        assert len(await kit.consumers()) == 1
    assert await kit.consumers() == []
    assert (await kit.source()).holder == ""


async def test_leftover_consumers_of_older_leases_are_swept_and_others_left(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    stream = f"KV_{kit.bucket}"
    topic = await kit.link.get_topic(kit.bucket)
    prefix = name_prefix("local", kit.bucket, topic)
    own = [consumer_name(prefix, 0, 7), consumer_name(prefix, 1, 99)]
    others = [consumer_name(prefix, 50, 1), consumer_name(name_prefix("local", "other", topic), 0, 1), "somebody"]
    for name in own + others:
        await kit.js.add_consumer(stream, durable_name=name)
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        left = await kit.consumers()
    assert set(left) & set(own) == set()
    assert set(others) <= set(left)


async def test_store_that_is_away_delays_and_doubles_nothing(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest() as role:
        await kit.reaches(await bucket.put("a", b"1"))
        kit.link.away = True
        await bucket.put("a", b"2")
        last = await bucket.put("a", b"3")
        await asyncio.wait_for(_unready(role.readiness.changed, lambda: role.readiness.ready), 5)
        assert role.readiness.reason == "STORE_UNREACHABLE"
        kit.link.away = False
        await kit.reaches(last)
    assert await revisions(kit) == [1, 2, 3]


async def _unready(changed: asyncio.Event, ready: object) -> None:
    assert callable(ready)
    while ready():
        await changed.wait()
        await asyncio.sleep(0)


async def test_batch_applied_without_an_answer_is_not_applied_twice(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.is_state("LIVE")
        kit.link.answers_to_lose = 2
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.reaches(await bucket.put("b", b"2"))
        await kit.reaches(await bucket.put("c", b"3"))
    assert await revisions(kit) == [1, 2, 3]


async def test_another_stored_position_is_adopted(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
        position = decode_position((await kit.source()).position)
        assert position is not None
        await kit.move(StreamPosition(position.created_ns, 0).encode())
        last = await bucket.put("b", b"2")
        await kit.reaches(last)
    assert await revisions(kit) == [1, 1, 2]


async def test_two_replicas_share_no_source_and_one_takes_over_from_the_other(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(holder="one") as first:
        await kit.reaches(await bucket.put("a", b"1"))
        async with kit.ingest(holder="two") as second:
            await kit.reaches(await bucket.put("a", b"2"))
            assert list(first.ownership.held) == [kit.bucket]
            assert second.ownership.held == {}
            # The first is cut off and somebody else is given the source: its fence is stale from now on.
            await kit.store.release_lease(kit.bucket, fence=(await kit.source()).fence)
            third = await kit.store.acquire_lease(kit.bucket, holder="third", lease_ms=LEASE_MS_MIN)

            async def is_taken_over() -> bool:
                source = await kit.source()
                return source.fence > third.fence and source.holder in ("one", "two")

            await kit.until(is_taken_over)
            await kit.reaches(await bucket.put("a", b"3"))
    assert await revisions(kit) == [1, 2, 3]
    assert await kit.consumers() == []


async def test_source_deleted_while_it_is_copied_ends(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest() as role:
        await kit.reaches(await bucket.put("a", b"1"))
        source = await kit.source()
        await kit.link.delete_source(kit.bucket)
        await kit.until(lambda: role.ownership.held == {})
        assert source.position
        assert await kit.consumers() == []


async def test_one_defect_does_not_end_the_other_sources(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await create_source(kit.store, SourceDefinition(name="broken", topic="broken", bucket=kit.bucket), TopicConfig())
    await kit.move(b"not a position of ours", source="broken")

    async def is_told() -> bool:
        report = (await kit.store.get_source("broken")).report
        return report.state == "RECOVERING" and "cannot read" in report.reason

    async with kit.ingest() as role:
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.until(is_told)
        assert set(role.ownership.held) == {"broken", kit.bucket}


async def test_store_of_another_cluster_is_logged_once_and_polled_slowly(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await kit.make_copied_bucket()
    called = asyncio.Event()
    times: list[float] = []

    async def refuse() -> Sequence[SourceInfo]:
        times.append(asyncio.get_running_loop().time())
        called.set()
        raise ClusterMismatch("this store belongs to cluster a, the caller to cluster b", clusterId="a")

    monkeypatch.setattr(kit.link, "list_sources", refuse)
    monkeypatch.setattr("eddyline.ingest.readiness.REFUSED_S", 0.8)
    async with kit.ingest() as role:
        while len(times) < 3:
            called.clear()
            await asyncio.wait_for(called.wait(), 5)
        await role.connection.wait_connected()
        status = ingest_status(role.readiness, role.ownership, role.verifier)
        assert (status.ready, status.reason) == (False, "CLUSTER_MISMATCH")
        monkeypatch.undo()
        await kit.is_state("LIVE")
        assert role.readiness.ready
    assert min(after - before for before, after in pairwise(times)) >= 0.75
    entries = [record for record in caplog.records if record.getMessage() == "the store refuses this role"]
    assert len(entries) == 1
