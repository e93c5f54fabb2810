"""Blocking watches against a scripted delivery: events, positions, interrupts, clean-up."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client import CaughtUp, Position, Records, WatchTopic, errors
from eddyline.client.sync import connect
from eddyline.core.server.server import make_server
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, delivery_pb2, delivery_pb2_grpc
from tests.support.clients.served_thread import served_in_thread
from tests.support.delivery.scripted_roles import (
    ScriptedDelivery,
    WatchScript,
    caught_up_frame,
    rows_frame,
)
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from eddyline.client.sync import Client, Watch


class OneDelivery(cluster_pb2_grpc.ClusterServiceServicer):
    """A cluster of one delivery and no other role."""

    address = ""

    async def GetTopology(
        self, request: cluster_pb2.GetTopologyRequest, context: object
    ) -> cluster_pb2.GetTopologyResponse:
        return cluster_pb2.GetTopologyResponse(cluster_id="test", delivery_addresses=[self.address])

    async def GetStatus(self, request: cluster_pb2.GetStatusRequest, context: object) -> cluster_pb2.GetStatusResponse:
        return cluster_pb2.GetStatusResponse()


class NotedDelivery(ScriptedDelivery):
    """Notes when a watch has ended."""

    def __init__(self, *scripts: WatchScript) -> None:
        super().__init__([*scripts])
        self.ended = threading.Event()

    async def WatchTopics(
        self, request: delivery_pb2.WatchTopicsRequest, context: object
    ) -> AsyncIterator[delivery_pb2.WatchTopicsResponse]:
        try:
            async for frame in super().WatchTopics(request, context):
                yield frame
        finally:
            self.ended.set()


@asynccontextmanager
async def cluster_of(delivery: NotedDelivery) -> AsyncIterator[str]:
    server = make_server("127.0.0.1:0", new_id=lambda: "the-id")
    cluster = OneDelivery()
    delivery_pb2_grpc.add_DeliveryServiceServicer_to_server(delivery, server.grpc)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, server.grpc)
    cluster.address = await server.start()
    try:
        yield cluster.address
    finally:
        await server.stop(0)


@contextmanager
def connected(delivery: NotedDelivery) -> Iterator[Client]:
    with served_in_thread(cluster_of(delivery)) as address, connect(address) as client:
        yield client


def earliest(client: Client) -> Watch:
    return client.watch(WatchTopic("t", "earliest"))


def seqs(event: object) -> list[int]:
    return [record.seq for record in event.records] if isinstance(event, Records) else []


def test_events_come_in_order_with_the_positions_behind_them() -> None:
    delivery = NotedDelivery(WatchScript([rows_frame("t", 1, 2), caught_up_frame(), rows_frame("t", 3)]))
    with connected(delivery) as client, earliest(client) as watch:
        assert watch.positions == {}
        assert seqs(next(watch)) == [1, 2]
        assert watch.positions == {"t": Position(7, 2)}
        assert isinstance(next(watch), CaughtUp)
        assert seqs(next(watch)) == [3]
        assert watch.positions == {"t": Position(7, 3)}
        assert watch.heard_s is not None
    assert watch.positions == {"t": Position(7, 3)}
    assert delivery.ended.wait(HANG_S)


def test_a_watch_goes_on_after_a_break() -> None:
    delivery = NotedDelivery(
        WatchScript([rows_frame("t", 1)], ending=errors.NotReady("gone")), WatchScript([rows_frame("t", 2)])
    )
    with connected(delivery) as client, earliest(client) as watch:
        assert [seqs(next(watch)), seqs(next(watch))] == [[1], [2]]
        assert watch.resume_count == 1


def test_an_event_that_came_during_an_interrupt_is_the_next_one() -> None:
    delivery = NotedDelivery(WatchScript([rows_frame("t", 1), rows_frame("t", 2)]))
    with connected(delivery) as client, earliest(client) as watch:
        assert seqs(next(watch)) == [1]
        # As where the interrupt arrives after the event: fetched, and never returned.
        watch._loop.run(watch._reader.fetch)
        assert watch.positions == {"t": Position(7, 1)}
        assert seqs(next(watch)) == [2]
        assert watch.positions == {"t": Position(7, 2)}


def test_a_wrong_argument_is_raised_by_the_call() -> None:
    with connected(NotedDelivery()) as client, pytest.raises(TypeError, match="key_prefixes"):
        client.watch("t", key_prefixes="k")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_watch_that_is_left_ends_its_call(how: str) -> None:
    delivery = NotedDelivery(WatchScript([rows_frame("t", 1)]))
    with connected(delivery) as client:
        watch = earliest(client)
        next(watch)
        if how == "close":
            watch.close()
            watch.close()
            with pytest.raises(StopIteration):
                next(watch)
        del watch
        assert delivery.ended.wait(HANG_S)


def test_a_start_is_settled_before_the_first_event() -> None:
    delivery = NotedDelivery()
    delivery.heads["t"] = 5
    with connected(delivery) as client, client.watch("t", start="tail") as watch:
        watch.settle()
        assert watch.positions == {"t": Position(7, 5)}
