"""A delivery role under pressure, over gRPC: its status, and its subscribers' frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import ConfigChange
from eddyline.delivery.feed.dispatcher import SEND_BYTES_MAX
from eddyline.delivery.schedule.governor import SAMPLE_S, WINDOW_S_MAX
from eddyline.v1 import cluster_pb2
from tests.support.delivery.role import ServedDelivery, served_delivery, tail
from tests.support.store.simulated import append, log_topic, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery(watches_max=8) as cluster:
        yield cluster


async def test_status_has_the_pressure_and_its_reason(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        cluster.role.stats.queued_bytes += SEND_BYTES_MAX // 2
        await append(cluster.store, "log", rows("a"))
        await watch.data(1)
        await cluster.until(lambda: cluster.role.stats.reading.pressure > 0, passing_s=SAMPLE_S)
        cluster.clock.advance(3 - cluster.clock.monotonic_s() + cluster.role.stats.reading.since_s)
        pressure = (await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())).delivery.pressure
        assert (pressure.step, pressure.step_ms) == (cluster_pb2.PRESSURE_STEP_COALESCE, 3_000)
        assert pressure.reason == "queued send bytes at 0.50: above 0.2"
        assert (pressure.pressure, pressure.ready_part, pressure.latency_part) == (pressure.send_bytes_part, 0, 0)
        assert pressure.send_bytes_part == pytest.approx(0.5, rel=0.01)
        assert pressure.window_us == pytest.approx(7_500, rel=0.01)
        assert pressure.queued_bytes >= SEND_BYTES_MAX // 2
        cluster.role.stats.queued_bytes -= SEND_BYTES_MAX // 2


async def test_changed_priority_applies_to_a_watched_topic(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await cluster.store.update_topic("log", ConfigChange(priority=-7))
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        (followed,) = cluster.role.tails.followed
        assert followed.priority == -7
        await cluster.store.update_topic("log", ConfigChange(priority=900))
        await cluster.until(lambda: followed.priority == 900)
        await cluster.store.update_topic("log", ConfigChange(clear_priority=True))
        await cluster.until(lambda: followed.priority is None)


async def test_records_gathered_under_pressure_are_one_frame(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        cluster.role.stats.queued_bytes += SEND_BYTES_MAX
        await append(cluster.store, "log", rows("a"))
        await watch.data(1)
        await cluster.until(lambda: cluster.role.stats.reading.window_s == WINDOW_S_MAX, passing_s=SAMPLE_S)
        await append(cluster.store, "log", rows("first"))
        assert await watch.data(1) == [b"first"], "after a pause at once"
        (followed,) = cluster.role.tails.followed
        for text in ("b", "c", "d"):
            await append(cluster.store, "log", rows(text))
        await cluster.until(lambda: followed.ring.end_seq == 5)
        assert followed.ring.open_seq == 2
        # time passes repeatedly, rather than once: the hold may begin only now
        await cluster.until(lambda: followed.ring.open_seq == 5, passing_s=WINDOW_S_MAX)
        frame = await watch.until_kind("rows")
        assert [record.data for record in frame.rows.records] == [b"b", b"c", b"d"]
        assert frame.cursor.seq == 5
        cluster.role.stats.queued_bytes -= SEND_BYTES_MAX
