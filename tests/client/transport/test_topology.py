"""Which addresses a client goes on by: advertised ones from outside, the roles' own ones where it is beside them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.client.transport.topology import is_name_of
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.cluster_service import ClusterService, ReportedStatus
from eddyline.core.server.server import make_server
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOWHERE = "nowhere.invalid:7701"


@asynccontextmanager
async def delivery_of(common: CommonSettings) -> AsyncIterator[str]:
    """A delivery that tells a topology, its own address among the roles'; the address."""
    server = make_server("127.0.0.1:0")
    rpc = ClusterService(
        cluster_pb2.ROLE_DELIVERY,
        version="1",
        common=common,
        status=lambda: ReportedStatus(True),
        clock=SystemClock(),
        host=SystemHost(),
        address=lambda: server.address,
    )
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(rpc, server.grpc)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def test_client_from_outside_goes_on_by_what_is_advertised(tmp_path: Path) -> None:
    """As on the host of docker-compose.yml: a name of the network behind a published port."""
    async with served_store(tmp_path) as store:
        common = CommonSettings(
            store_addresses=(NOWHERE,),
            store_advertised_addresses=(store.address,),
            delivery_addresses=("delivery:7703",),
            delivery_advertised_addresses=("127.0.0.1:17703",),
        )
        async with delivery_of(common) as seed, connect(seed) as client:
            assert client.topology.stores == (store.address,)
            assert client.topology.deliveries == ("127.0.0.1:17703",)
            assert client.topology.ingests == ("127.0.0.1:7702",), "nothing else is advertised"
            await client.append("log", [Record(data=b"1")], create=Kind.LOG)


async def test_a_client_near_the_roles_uses_their_names(tmp_path: Path) -> None:
    """As a container of that network: what is advertised is its own loopback there."""
    async with served_store(tmp_path) as store:
        common = CommonSettings(store_addresses=(store.address,), store_advertised_addresses=(NOWHERE,))
        async with delivery_of(common) as seed, connect(seed) as client:
            assert client.topology.stores == (store.address,)
            await client.append("log", [Record(data=b"1")], create=Kind.LOG)


async def test_one_address_lists_all_stores() -> None:
    common = CommonSettings(store_addresses=("a:1", "b:1", "c:1"), store_advertised_addresses=("all.example.com:7701",))
    async with delivery_of(common) as seed:
        async with connect(seed) as client:
            assert client.topology.stores == ("a:1", "b:1", "c:1"), "the seed is beside them"
        common = CommonSettings(
            store_addresses=common.store_addresses,
            store_advertised_addresses=common.store_advertised_addresses,
            delivery_addresses=("elsewhere:7703",),
        )
    async with delivery_of(common) as seed, connect(seed) as client:
        assert client.topology.stores == ("all.example.com:7701",) * 3


@pytest.mark.parametrize(
    ("asked", "address", "expected"),
    [
        ("store:7701", "store:7701", True),
        ("STORE:7701", "store:7701", True),
        ("store:7702", "store:7701", False),
        ("demo-ingest:7702", "demo-ingest.streams.svc.cluster.local:7702", True),
        ("demo-ingest.streams:7702", "demo-ingest.streams.svc.cluster.local:7702", True),
        ("demo:7702", "demo-ingest.streams.svc.cluster.local:7702", False),
        ("s.streams.svc.cluster.local:7701", "s-0.s.streams.svc.cluster.local:7701", True),
        ("localhost:7701", "store:7701", False),
        ("127:7701", "127.0.0.1:7701", False),
        ("1:7701", "127.0.0.1:7701", False),
        ("[::1]:7701", "[::1]:7701", True),
    ],
)
def test_name_of_an_address_may_leave_out_labels(asked: str, address: str, expected: bool) -> None:
    assert is_name_of(asked, address) is expected
