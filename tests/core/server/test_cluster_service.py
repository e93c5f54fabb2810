"""ClusterService over a real server."""

from __future__ import annotations

import pytest

from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.cluster_service import CONTRACT_VERSION, SERVICE, ClusterService, ReportedStatus
from eddyline.core.server.server import make_server
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.manual_clock import ManualClock


class FixedHost:
    def boot_id(self) -> str:
        return "boot"

    def name(self) -> str:
        return "host"

    def pid(self) -> int:
        return 42


@pytest.mark.parametrize(
    ("role", "detail"),
    [
        (cluster_pb2.ROLE_STORE, cluster_pb2.StoreStatus(shard_count=1, topic_count=3)),
        (cluster_pb2.ROLE_INGEST, cluster_pb2.IngestStatus(nats_connected=True)),
        (cluster_pb2.ROLE_DELIVERY, cluster_pb2.DeliveryStatus(watch_count=2)),
    ],
)
async def test_a_role_reports_its_identity_and_status(
    role: cluster_pb2.Role.ValueType,
    detail: cluster_pb2.StoreStatus | cluster_pb2.IngestStatus | cluster_pb2.DeliveryStatus,
) -> None:
    clock = ManualClock()
    service = ClusterService(
        role,
        version="0.1.0",
        common=CommonSettings(cluster_id="test", store_addresses=("127.0.0.1:1",)),
        status=lambda: ReportedStatus(ready=False, reason="SYNC_FAILED", detail=detail),
        clock=clock,
        host=FixedHost(),
        address=lambda: "127.0.0.1:2",
    )
    server = make_server("127.0.0.1:0")
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(service, server.grpc)
    address = await server.start(SERVICE)
    clock.advance(2.5)
    async with open_channel(address) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        status = await stub.GetStatus(cluster_pb2.GetStatusRequest(), timeout=5)
        topology = await stub.GetTopology(cluster_pb2.GetTopologyRequest(), timeout=5)
    await server.stop(0)
    assert (status.role, status.cluster_id, status.version) == (role, "test", "0.1.0")
    assert (status.contract_version, status.ready, status.reason) == (CONTRACT_VERSION, False, "SYNC_FAILED")
    assert (status.pid, status.uptime_ms) == (42, 2500)
    assert getattr(status, status.WhichOneof("detail") or "") == detail
    assert [(shard.shard_index, shard.address) for shard in topology.shards] == [(0, "127.0.0.1:1")], "as it was told"
    own = "127.0.0.1:2" if role == cluster_pb2.ROLE_DELIVERY else "127.0.0.1:7703"
    assert list(topology.delivery_addresses) == [own]
    assert list(topology.ingest_addresses) == ["127.0.0.1:2" if role == cluster_pb2.ROLE_INGEST else "127.0.0.1:7702"]
