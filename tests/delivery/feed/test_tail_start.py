"""A tail starts once: records appended while its stream is broken come with the next stream, wherever it broke."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import Records
from eddyline.client.watch.plan import WatchTopic
from eddyline.core.errors import NotReady
from eddyline.delivery.watch.subscriber import Subscriber
from eddyline.v1 import delivery_pb2 as pb
from tests.support.clients.clients import client_at
from tests.support.delivery.role import earliest, served_delivery, snapshot, tail
from tests.support.hang import HANG_S
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.delivery.role import ServedDelivery

OTHER_BYTES = 50_000
BESIDE = 4
"""Of another topic, and as large as a frame each: so many frames come before the watch has caught up."""
FRAMES = range(1, BESIDE + 3)


async def fill(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store, "tail")
    await append(cluster.store, "tail", rows("before"))
    await kv_topic(cluster.store, "other")
    for number in range(BESIDE):
        await append(cluster.store, "other", puts((f"{number}", "x" * OTHER_BYTES)))


@pytest.mark.parametrize("others", [(), (snapshot("other"),), (earliest("other"),)], ids=["alone", "values", "log"])
async def test_first_frame_of_a_tail_has_its_start_position(others: tuple[pb.WatchTopic, ...]) -> None:
    async with served_delivery() as cluster:
        await fill(cluster)
        async with cluster.watch(tail("tail"), *others) as watch:
            token = (await watch.next()).resume_token
        await append(cluster.store, "tail", rows("while it was broken"))
        async with cluster.watch(tail("tail"), *others, resume_token=token) as watch:
            await watch.until_kind("caught_up")
            seen = [row.data for frame in watch.frames if frame.topic == "tail" for row in frame.rows.records]
            assert seen == [b"while it was broken"]


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize("start", ["snapshot", "earliest"])
async def test_client_misses_no_record_if_its_stream_breaks_after_any_frame(
    frames: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_delivery() as cluster:
        await fill(cluster)
        whole, streams, appended = Subscriber.frames, 0, [f"{number}" for number in range(3)]

        async def broken(self: Subscriber) -> AsyncGenerator[bytes, None]:
            nonlocal streams
            stream, left = streams, frames if not streams else 1
            streams += 1
            async for frame in whole(self):
                yield frame
                left -= 1
                if left == 0 and stream < len(appended):
                    await append(cluster.store, "tail", rows(appended[stream]))
                    raise NotReady("the test broke it")

        monkeypatch.setattr(Subscriber, "frames", broken)
        wanted = [WatchTopic("tail", "tail"), WatchTopic("other", start)]  # type: ignore[arg-type]  # one of two words
        seen: list[bytes | None] = []
        async with (
            client_at(Topology("local", (), (), (cluster.address,))) as client,
            client.watch(wanted, heartbeat_ms=60_000) as events,
            asyncio.timeout(HANG_S),
        ):
            async for event in events:
                if isinstance(event, Records) and event.topic == "tail":
                    seen += [record.data for record in event.records]
                    if len(seen) == len(appended):
                        break
        assert seen == [value.encode() for value in appended]
