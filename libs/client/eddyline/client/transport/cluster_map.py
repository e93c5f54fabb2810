"""The addresses of the roles: the topology of the start, requested again when no delivery of it answers.

A watch asks one delivery after the other (`Deliveries`): it starts at a random one, so that many clients spread, and
goes to the next at each try. Before it opens a stream again it asks that one for the topology, which is kept: a stream
that cannot be opened costs grpc.aio 530 bytes that it never gives back (46 MB a day of tries), a small call nothing.
When all have failed, the client calls every known address, at most each `ASK_EVERY_S` for all its watches. An answer of
another cluster is passed over. Channels are kept as long as their addresses are named, and reused; those of addresses
that are named no longer are closed when nothing is connected over them.
Rejected: a new channel for a new try, which dials at once, however long the peer has been down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from eddyline.client.transport.call import STREAM_RETRYABLE, call_once
from eddyline.client.transport.topology import topology_from_pb
from eddyline.core.errors import EddylineError, NotReady
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, delivery_pb2
from eddyline.v1.delivery_pb2_grpc import DeliveryServiceStub

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from eddyline.client.transport.topology import Channels, Topology
    from eddyline.core.runtime.clock import Clock

    WatchCall = grpc.aio.UnaryStreamCall[delivery_pb2.WatchTopicsRequest, delivery_pb2.WatchTopicsResponse]

ASK_TIMEOUT_S: Final = 1.0
"""Of each address. One that hangs delays a watch that has no other address to call."""
ASK_EVERY_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 5.0
"""A role that takes longer for the smallest of its answers is as good as gone."""
SETTLE_TIMEOUT_S: Final = 10.0
"""Delivery looks the starts of a watch up topic by topic, 1 000 at most: a second, unless the store is busy."""


class ClusterMap:
    """The topology of the newest answer; `seeds` are addresses of roles that it may not name."""

    def __init__(self, topology: Topology, *, channels: Channels, clock: Clock, seeds: Sequence[str] = ()) -> None:
        self.topology = topology
        self.channels = channels
        self._clock = clock
        self._seeds = tuple(seeds)
        self._asked_s: float | None = None

    async def ask(self, address: str, *, timeout_s: float) -> bool:
        """Ask one role where all are; False = it is of another cluster, and nothing was learnt.

        Raises:
            EddylineError: it did not answer, or does not know such a call.
        """
        stub = cluster_pb2_grpc.ClusterServiceStub(self.channels.to(address))
        answer = await call_once(stub.GetTopology(cluster_pb2.GetTopologyRequest(), timeout=timeout_s))
        found = topology_from_pb(answer, address)
        if found.cluster_id != self.topology.cluster_id:
            return False
        if found != self.topology:
            self.topology = found
            await self.channels.drop_all_but({*self._seeds, *found.stores, *found.ingests, *found.deliveries})
        return True

    async def ask_all(self) -> None:
        """Call every known role until one answers, unless another watch just did. Without an answer nothing changes."""
        now_s = self._clock.monotonic_s()
        if self._asked_s is not None and now_s - self._asked_s < ASK_EVERY_S:
            return
        self._asked_s = now_s
        known = self.topology
        for address in dict.fromkeys((*self._seeds, *known.stores, *known.ingests, *known.deliveries)):
            try:
                if await self.ask(address, timeout_s=ASK_TIMEOUT_S):
                    return
            except EddylineError:
                continue  # it is away too; the watch says so


class Deliveries:
    """Which delivery one watch asks."""

    def __init__(self, cluster: ClusterMap, *, random_source: random.Random) -> None:
        self._cluster = cluster
        count = len(cluster.topology.deliveries)
        self._turn = int(random_source.uniform(0, count))
        self._away = 0

    def open_call(self, request: delivery_pb2.WatchTopicsRequest) -> WatchCall:
        """Open a watch at the next one.

        Raises:
            NotReady: the cluster names none.
        """
        channel = self._cluster.channels.any_of(self._cluster.topology.deliveries, self._turn, "delivery")
        self._turn += 1
        return DeliveryServiceStub(channel).WatchTopics(request)

    async def explain(self, request: delivery_pb2.WatchTopicsRequest) -> Sequence[delivery_pb2.WatchCost]:
        """Ask the next one where a watch would begin, a topic of it each.

        Raises:
            EddylineError: what it answered. NotReady: the cluster names none.
        """
        channel = self._cluster.channels.any_of(self._cluster.topology.deliveries, self._turn, "delivery")
        self._turn += 1
        explain = delivery_pb2.ExplainWatchRequest(watch=request, page_size=1)
        return (await call_once(DeliveryServiceStub(channel).ExplainWatch(explain, timeout=SETTLE_TIMEOUT_S))).costs

    async def before_retry(self) -> None:
        """See that the next one answers; look for others where none did.

        Raises:
            EddylineError: it does not answer.
        """
        deliveries = self._cluster.topology.deliveries
        if self._away >= max(1, len(deliveries)):
            self._away = 0
            await self._cluster.ask_all()
            deliveries = self._cluster.topology.deliveries
        if not deliveries:
            self._away += 1
            return
        address = deliveries[self._turn % len(deliveries)]
        try:
            if not await self._cluster.ask(address, timeout_s=PROBE_TIMEOUT_S):
                raise NotReady(f"{address} belongs to another cluster now")
        except EddylineError as error:
            if error.code in STREAM_RETRYABLE:
                self._turn += 1
                self._away += 1
                raise
        self._away = 0
