"""Delivery's metrics: all from the start, and equal to the sent records and bytes; health of its connection to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.forwarding.stats import ForwardedCalls
from eddyline.core.server.health import STORE_LEG
from eddyline.core.telemetry import names as telemetry
from eddyline.delivery.metrics import delivery_metrics
from tests.support.delivery.role import earliest, served_delivery, snapshot, tail
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows
from tests.support.telemetry.scrape import Scrape, check_complete, in_place

if TYPE_CHECKING:
    from tests.support.delivery.role import ServedDelivery


async def now(served: ServedDelivery) -> Scrape:
    return in_place(await delivery_metrics(served.role, ForwardedCalls(1)))


async def test_all_metrics_exist_at_zero_from_the_start() -> None:
    async with served_delivery() as served:
        seen = await now(served)
        check_complete(seen, "delivery")
        series = {name: seen.series(name) for name in seen.names}
        not_zero = {(name, labels) for name, points in series.items() for labels, value in points.items() if value}
        assert not_zero == {
            (telemetry.DELIVERY_READY, ()),
            (telemetry.DELIVERY_STORE_CONNECTED, ("0",)),
            (telemetry.DELIVERY_PRESSURE_STEP, ("REST",)),
        }


async def test_counts_equal_the_sent_records_and_bytes() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        async with served.watch(tail("log")) as first, served.watch(tail("log")) as second:
            await first.until_kind("caught_up")
            await second.until_kind("caught_up")
            before = await now(served)
            assert before.value(telemetry.DELIVERY_WATCHES) == 2
            assert before.value(telemetry.DELIVERY_FOLLOWED_TOPICS) == 1
            await append(served.store, "log", rows("a", "b", "c"))
            served.clock.advance(0.3)
            assert await first.data(3) == await second.data(3) == [b"a", b"b", b"c"]
            seen = await now(served)
            check_complete(seen, "delivery")
            assert seen.value(telemetry.DELIVERY_DELIVERED_RECORDS) == 6
            assert seen.value(telemetry.DELIVERY_ENCODED_FRAMES) == 1
            assert seen.value(telemetry.DELIVERY_LATENCY_SECONDS) == 1
            assert seen.value(telemetry.DELIVERY_BUFFERED_BYTES) > before.value(telemetry.DELIVERY_BUFFERED_BYTES)
            assert seen.value(telemetry.DELIVERY_DELIVERED_BYTES) > before.value(telemetry.DELIVERY_DELIVERED_BYTES) > 0
            assert seen.value(telemetry.DELIVERY_CATCHUP_READS) == 0
        await served.until(lambda: served.role.stats.watch_count == 0)
        assert (await now(served)).value(telemetry.DELIVERY_WATCHES) == 0


async def test_reads_below_the_ring_are_counted() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        await kv_topic(served.store)
        await append(served.store, "log", rows("a", "b"))
        await append(served.store, "kv", puts(("k", "v")))
        async with served.watch(earliest("log"), snapshot("kv")) as watch:
            await watch.until_kind("caught_up")
        assert (await now(served)).value(telemetry.DELIVERY_CATCHUP_READS) >= 2


async def test_connection_to_the_store_has_a_health_entry() -> None:
    async with served_delivery() as served:
        assert (await now(served)).value(telemetry.DELIVERY_READY) == 1
        assert await served.ready(STORE_LEG)
        served.wire.cut()
        await served.role.tails.down.wait()
        assert (await now(served)).value(telemetry.DELIVERY_READY) == 0
        while await served.ready(STORE_LEG):
            pass
        assert not await served.ready()


async def test_lag_has_the_age_of_the_oldest_missing_record() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        async with served.watch_narrowly(tail("log")) as slow, served.watch(tail("log")) as level:
            for watch in (slow, level):
                await watch.until_kind("caught_up")
            for _ in range(20):
                await append(served.store, "log", rows("x" * (64 << 10)))
                await level.data(1)
            served.clock.advance(2.5)
            seen = await now(served)
            assert 1 <= seen.value(telemetry.DELIVERY_LAG_RECORDS) < 20
            assert seen.value(telemetry.DELIVERY_LAG_SECONDS) == 2.5
            await slow.data(20)
            seen = await now(served)
            assert seen.value(telemetry.DELIVERY_LAG_RECORDS) == seen.value(telemetry.DELIVERY_LAG_SECONDS) == 0
