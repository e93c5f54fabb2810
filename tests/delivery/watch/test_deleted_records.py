"""No stream opened after a delete's answer has the deleted records, whatever the rings hold."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.records.match import Match, MatchField, MatchKind
from tests.support.delivery.role import ServedDelivery, at, earliest, served_delivery, snapshot, tail
from tests.support.manual_clock import settle
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.delivery.role import Watch

ROUNDS: Final = 120


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


async def data_until_caught_up(watch: Watch) -> list[bytes]:
    """Return the data of the records up to caught_up."""
    await watch.until_kind("caught_up")
    return [record.data for frame in watch.frames for record in frame.rows.records]


def key(value: bytes, kind: MatchKind = MatchKind.EQ) -> Match:
    return Match(MatchField.KEY, kind, value)


async def test_late_stream_gets_no_deleted_record_of_the_ring(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        await append(cluster.store, "log", rows("a", "b", "c"))
        assert await first.data(3) == [b"a", b"b", b"c"]
        await cluster.store.delete_records("log", before_seq=3)
        async with cluster.watch(earliest("log")) as late:
            assert await data_until_caught_up(late) == [b"c"]
        await append(cluster.store, "log", rows("d"))
        assert await first.data(1) == [b"d"]


async def test_late_stream_that_comes_before_the_news_of_the_delete_reads_the_log(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        await append(cluster.store, "log", rows("a", "b", "c"))
        await first.data(3)
        cluster.wire.follows_open.clear()
        await cluster.store.delete_records("log", before_seq=3)
        async with cluster.watch(at("log", 1)) as late, cluster.watch(at("log", 0)) as later:
            assert await data_until_caught_up(late) == [b"c"]
            assert await data_until_caught_up(later) == [b"c"]
            cluster.wire.follows_open.set()
            await append(cluster.store, "log", rows("d"))
            for watch in (first, late, later):
                assert await watch.data(1) == [b"d"]


async def test_record_deleted_on_its_way_to_the_ring_is_not_sent_later(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        cluster.wire.follows_open.clear()
        await append(cluster.store, "log", rows("under way"))
        await settle()
        await cluster.store.delete_records("log", before_seq=2)
        async with cluster.watch(earliest("log")) as late:
            assert await data_until_caught_up(late) == []
            cluster.wire.follows_open.set()
            await append(cluster.store, "log", rows("next"))
            assert await late.data(1) == [b"next"]
        async with cluster.watch(earliest("log")) as later:
            assert await data_until_caught_up(later) == [b"next"]


async def test_delete_during_a_broken_follow_empties_the_ring_when_it_is_back(
    cluster: ServedDelivery,
) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        await append(cluster.store, "log", rows("a", "b"))
        await first.data(2)
        cluster.wire.cut_follow()
        await cluster.store.delete_records("log", before_seq=2)
        await append(cluster.store, "log", rows("c"))
        await cluster.until(lambda: cluster.wire.follow_count == 2, passing_s=0.01)
        assert await first.data(1) == [b"c"]
        async with cluster.watch(earliest("log")) as late:
            assert await data_until_caught_up(late) == [b"b", b"c"]


async def test_key_erased_by_a_match_is_in_no_late_log_and_no_late_snapshot(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(tail("kv")) as first:
        await first.kind("caught_up")
        await append(cluster.store, "kv", puts(("a", "1"), ("b", "2"), ("a", "3")))
        await first.data(3)
        cluster.wire.follows_open.clear()
        await cluster.store.delete_records("kv", match=key(b"a"))
        async with cluster.watch(earliest("kv")) as late, cluster.watch(snapshot("kv")) as values:
            assert await data_until_caught_up(late) == [b"2"]
            assert await data_until_caught_up(values) == [b"2"]
        cluster.wire.follows_open.set()
        async with cluster.watch(earliest("kv")) as later:
            assert await data_until_caught_up(later) == [b"2"]


async def test_ring_is_used_again_after_a_delete_and_kept_if_it_removed_no_record(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        await append(cluster.store, "log", rows("a"))
        await first.data(1)
        await cluster.store.delete_records("log", before_seq=2)
        await append(cluster.store, "log", rows("b", "c"))
        await first.data(2)
        await cluster.store.delete_records("log", before_seq=1)
        reads = cluster.wire.read_count
        async with cluster.watch(at("log", 1)) as late:
            assert await data_until_caught_up(late) == [b"b", b"c"]
        assert cluster.wire.read_count == reads, "it was served from the ring"


async def test_stream_that_waits_for_evicted_frames_reads_the_log(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    value = "x" * 60_000
    async with cluster.watch_narrowly(tail("log")) as slow, cluster.watch(tail("log")) as fast:
        await slow.kind("caught_up")
        await fast.kind("caught_up")
        for number in range(40):
            await append(cluster.store, "log", rows(f"{number} {value}"))
            await fast.data(1)
        await cluster.store.delete_records("log", before_seq=39)
        ring = cluster.role.tails.followed[0].ring
        await cluster.until(lambda: ring.nbytes == 0)
        got: list[int] = []
        while not got or got[-1] < 39:
            got += [int(record.data.split()[0]) for record in (await slow.next()).rows.records]
        assert got[-2:] == [38, 39]
        assert got == [*range(len(got) - 2), 38, 39], "what it had not taken was gone"
        assert len(got) < 40


@pytest.mark.parametrize("seed", range(6))
async def test_no_stream_has_a_record_deleted_before_it_was_opened(seed: int) -> None:
    random = Random(seed)
    async with served_delivery(seed=seed, topic_buffer_bytes=random.choice((4_000, 1 << 20))) as cluster:
        await kv_topic(cluster.store)
        gone: set[int] = set()
        there: dict[int, bytes] = {}
        async with cluster.watch(tail("kv")) as first:
            await first.kind("caught_up")
            for number in range(ROUNDS):
                pick = random.random()
                if pick < 0.5:
                    name = random.choice("abcd")
                    result = await append(cluster.store, "kv", puts((name, "x" * random.choice((1, 300)))))
                    there[result.first_seq] = name.encode()
                elif pick < 0.6:
                    before_seq = random.randint(1, number + 1)
                    await cluster.store.delete_records("kv", before_seq=before_seq)
                    gone |= {seq for seq in there if seq < before_seq}
                elif pick < 0.7:
                    name = random.choice("abcd")
                    await cluster.store.delete_records("kv", match=key(name.encode()))
                    gone |= {seq for seq, has in there.items() if has == name.encode()}
                elif pick < 0.75:
                    cluster.wire.cut_follow()
                elif pick < 0.85:
                    (cluster.wire.follows_open.clear if random.random() < 0.5 else cluster.wire.follows_open.set)()
                else:
                    await _see_all(cluster, random, gone=gone, there=there)
                for _ in range(random.choice((0, 0, 5, 60))):
                    await asyncio.sleep(0)
                cluster.clock.advance(random.choice((0, 0.05, 0.6)))
        cluster.wire.follows_open.set()
        assert gone


async def _see_all(cluster: ServedDelivery, random: Random, *, gone: set[int], there: dict[int, bytes]) -> None:
    """A new stream from any start has exactly the live records; those that are still on their way come after a while."""
    after_seq = random.randint(0, max(there, default=0))

    async def go_on() -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        cluster.wire.follows_open.set()
        while True:
            cluster.clock.advance(0.05)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks, cluster.watch(at("kv", after_seq)) as late:
        going = tasks.create_task(go_on())
        await late.until_kind("caught_up")
        going.cancel()
        seqs = [record.seq for frame in late.frames for record in frame.rows.records]
    assert seqs == [seq for seq in sorted(there) if seq > after_seq and seq not in gone]
