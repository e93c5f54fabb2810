"""The addresses of the roles, requested once from any role, and the channels to them, opened at their first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import NotReady
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from eddyline.client.transport.call import Retry

ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Topology:
    """Addresses, `host:port`, by role; `stores` by shard index."""

    cluster_id: str
    stores: tuple[str, ...]
    ingests: tuple[str, ...]
    deliveries: tuple[str, ...]


class Channels:
    """Open channels by address, all with the same access. Owned by the client, which closes them."""

    def __init__(self, access: CallerAccess | None = None) -> None:
        self._access = access if access is not None else CallerAccess()
        self._open: dict[str, grpc.aio.Channel] = {}

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to an address; opened at the first ask."""
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = self._access.open_channel(address)
        return channel

    def any_of(self, addresses: Sequence[str], attempt: int, role: str) -> grpc.aio.Channel:
        """The channel to the `attempt`-th of the addresses, round and round.

        Raises:
            NotReady: the cluster names none.
        """
        if not addresses:
            raise NotReady(f"the cluster names no {role}")
        return self.to(addresses[attempt % len(addresses)])

    async def drop_all_but(self, addresses: Collection[str]) -> None:
        """Close channels to other addresses, but for those that are connected: something may be going on there."""
        for address in [address for address in self._open if address not in addresses]:
            if self._open[address].get_state() is not grpc.ChannelConnectivity.READY:
                await self._open.pop(address).close()

    async def close(self) -> None:
        """Close all channels."""
        while self._open:
            _address, channel = self._open.popitem()
            await channel.close()


async def find_topology(channels: Channels, addresses: Sequence[str], *, retry: Retry, timeout_s: float) -> Topology:
    """Ask the addresses in turn until one answers. Addresses of the answer are those for a client at that one.

    Raises:
        NotReady: none did in time.
    """
    attempt = -1

    async def ask(left_s: float) -> cluster_pb2.GetTopologyResponse:
        nonlocal attempt
        attempt += 1
        stub = cluster_pb2_grpc.ClusterServiceStub(channels.any_of(addresses, attempt, "address"))
        return await stub.GetTopology(cluster_pb2.GetTopologyRequest(), timeout=min(left_s, ASK_TIMEOUT_S))

    answer = await retry.run(ask, timeout_s=timeout_s)
    return topology_from_pb(answer, addresses[attempt % len(addresses)])


def topology_from_pb(answer: cluster_pb2.GetTopologyResponse, dialed: str) -> Topology:
    """Return the topology of the answer from the role at address `dialed`.

    A client that reached it by a name that the roles have among each other calls all of them so: what is advertised to
    others may lead nowhere from there, e.g. to loopback in a container.
    """
    internal = (
        tuple(answer.internal_store_addresses),
        tuple(answer.internal_ingest_addresses),
        tuple(answer.internal_delivery_addresses),
    )
    if any(is_name_of(dialed, address) for of_role in internal for address in of_role):
        stores, ingests, deliveries = internal
    else:
        stores = tuple(shard.address for shard in sorted(answer.shards, key=lambda shard: shard.shard_index))
        ingests, deliveries = tuple(answer.ingest_addresses), tuple(answer.delivery_addresses)
    return Topology(cluster_id=answer.cluster_id, stores=stores, ingests=ingests, deliveries=deliveries)


def is_name_of(dialed: str, address: str) -> bool:
    """Whether two addresses name the same: the whole of `address`, or its host without the last labels (a Service
    within its namespace) or without the first (all pods of a headless one)."""
    host, _, port = dialed.lower().rpartition(":")
    of_host, _, of_port = address.lower().rpartition(":")
    if port != of_port:
        return False
    labels, of_labels = host.split("."), of_host.split(".")
    is_number = of_labels[-1].isdecimal() or ":" in of_host
    return labels == of_labels or (
        not is_number and (labels == of_labels[: len(labels)] or labels == of_labels[-len(labels) :])
    )
