"""ClusterService as every role serves it: the addresses of all roles, and the status of this one.

The topology comes from the settings. If they leave out the role's own address, it is the one that the role listens at.
Clients get the advertised addresses if there are any; then the internal ones are in fields of their own, for clients
inside the cluster. The role's callable returns the status at each call, on the event loop, so it must not block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from eddyline.core.runtime.settings import CommonSettings
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock, Host

    AddressesName = Literal["store_addresses", "ingest_addresses", "delivery_addresses"]

SERVICE: Final = "eddyline.v1.ClusterService"
CONTRACT_VERSION: Final = "v1.3"
"""`v1.<minor>` of the contract in `proto/`. The minor is one above that of the frozen image
(`tests/golden/contract_version.txt`) after the first addition, and stays there until `make proto-freeze`, however much is
added. A change that breaks a client is v2.
`tests/house/test_contract_version.py` holds it."""


@dataclass(frozen=True, slots=True)
class ReportedStatus:
    """Status of a role. `reason` = why it is not ready, or not all of it; `detail` = the role's own part."""

    ready: bool
    reason: str = ""
    detail: cluster_pb2.StoreStatus | cluster_pb2.IngestStatus | cluster_pb2.DeliveryStatus | None = None


class ClusterService(cluster_pb2_grpc.ClusterServiceServicer):
    """Service of one role, which listens at `address` ("" = not yet) and has metrics at `metrics_address` ("" = none)."""

    def __init__(
        self,
        role: cluster_pb2.Role.ValueType,
        *,
        version: str,
        common: CommonSettings,
        status: Callable[[], ReportedStatus],
        clock: Clock,
        host: Host,
        address: Callable[[], str] = lambda: "",
        metrics_address: Callable[[], str] = str,
    ) -> None:
        self._role = role
        self._version = version
        self._common = common
        self._status = status
        self._clock = clock
        self._host = host
        self._address = address
        self._metrics_address = metrics_address
        self._started_s = clock.monotonic_s()

    async def GetTopology(
        self, request: cluster_pb2.GetTopologyRequest, context: object
    ) -> cluster_pb2.GetTopologyResponse:
        stores = self._addresses(cluster_pb2.ROLE_STORE, "store_addresses")
        ingests = self._addresses(cluster_pb2.ROLE_INGEST, "ingest_addresses")
        deliveries = self._addresses(cluster_pb2.ROLE_DELIVERY, "delivery_addresses")
        common = self._common
        client_stores = common.store_advertised_addresses or stores
        if len(client_stores) == 1:
            client_stores *= len(stores)
        answer = cluster_pb2.GetTopologyResponse(
            cluster_id=common.cluster_id,
            shards=[
                cluster_pb2.Shard(shard_index=index, address=address) for index, address in enumerate(client_stores)
            ],
            ingest_addresses=common.ingest_advertised_addresses or ingests,
            delivery_addresses=common.delivery_advertised_addresses or deliveries,
        )
        if (
            common.store_advertised_addresses
            or common.ingest_advertised_addresses
            or common.delivery_advertised_addresses
        ):
            answer.internal_store_addresses.extend(stores)
            answer.internal_ingest_addresses.extend(ingests)
            answer.internal_delivery_addresses.extend(deliveries)
        return answer

    def _addresses(self, role: cluster_pb2.Role.ValueType, name: AddressesName) -> tuple[str, ...]:
        """Return a role's addresses from the settings; our own address if ours are left at the default."""
        configured: tuple[str, ...] = getattr(self._common, name)
        is_ours = role == self._role and bool(self._address())
        return (self._address(),) if is_ours and configured == getattr(CommonSettings(), name) else configured

    async def GetStatus(self, request: cluster_pb2.GetStatusRequest, context: object) -> cluster_pb2.GetStatusResponse:
        status = self._status()
        answer = cluster_pb2.GetStatusResponse(
            role=self._role,
            cluster_id=self._common.cluster_id,
            version=self._version,
            contract_version=CONTRACT_VERSION,
            ready=status.ready,
            reason=status.reason,
            pid=self._host.pid(),
            uptime_ms=round((self._clock.monotonic_s() - self._started_s) * 1000),
            metrics_address=self._metrics_address(),
        )
        match status.detail:
            case cluster_pb2.StoreStatus():
                answer.store.CopyFrom(status.detail)
            case cluster_pb2.IngestStatus():
                answer.ingest.CopyFrom(status.detail)
            case cluster_pb2.DeliveryStatus():
                answer.delivery.CopyFrom(status.detail)
            case None:
                pass
        return answer
