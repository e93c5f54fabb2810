"""Composition of the delivery role over any `StoreLink`.

`__main__` runs it over gRPC; tests and simulations over a store in process.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.forwarding.interceptor import ForwardingInterceptor
from eddyline.core.forwarding.routes import (
    ENTRY_CALLS,
    FOLD_SERVICE,
    LOG_SERVICE,
    READ_CALLS,
    TOPIC_CALLS,
    TOPIC_SERVICE,
    methods_of,
)
from eddyline.core.forwarding.services import add_forwarded
from eddyline.core.model.sharding import shard_of
from eddyline.core.server.cluster_service import SERVICE as CLUSTER_SERVICE
from eddyline.core.server.cluster_service import ClusterService
from eddyline.core.server.server import RawMethod
from eddyline.core.store_link.sharded import shards_of
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.delivery.feed.dispatcher import Dispatcher
from eddyline.delivery.feed.fan import Fan
from eddyline.delivery.feed.ring import RingBudget
from eddyline.delivery.feed.tail import Tails
from eddyline.delivery.feed.tails import AllTails
from eddyline.delivery.fetch.fetcher import Fetcher
from eddyline.delivery.fetch.scan_slots import ScanSlots
from eddyline.delivery.rpc.explain import DeliveryService
from eddyline.delivery.rpc.status import delivery_status
from eddyline.delivery.rpc.watch import SERVICE, WATCH_TOPICS, WatchMethod
from eddyline.delivery.schedule.timer_wheel import TimerWheel
from eddyline.delivery.stats import DeliveryStats
from eddyline.delivery.watch.lag import largest_lag
from eddyline.delivery.watch.subscription import SubscriptionDeps
from eddyline.delivery.watch.watches import Watches
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, delivery_pb2, delivery_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    import grpc

    from eddyline.core.forwarding.shards import ShardForwarder
    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.server.server import RoleServer
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.delivery.config import DeliverySettings
    from eddyline.delivery.watch.lag import Lag

FORWARDED: Final = (
    methods_of(LOG_SERVICE, READ_CALLS) | methods_of(FOLD_SERVICE, ENTRY_CALLS) | methods_of(TOPIC_SERVICE, TOPIC_CALLS)
)
"""Calls of the stores that delivery accepts and forwards."""
SERVICES: Final = (SERVICE, TOPIC_SERVICE, LOG_SERVICE, FOLD_SERVICE, CLUSTER_SERVICE)


class DeliveryRole:
    """The parts of one delivery process, and `run`, which runs their tasks."""

    def __init__(
        self,
        link: StoreLink,
        *,
        clock: Clock,
        random: Random,
        settings: DeliverySettings,
        tracer: Tracer = NOOP_TRACER,
    ) -> None:
        self.tracer = tracer
        self._link = link
        self._clock = clock
        self.stats = DeliveryStats(start_s=clock.monotonic_s())
        self.budget = RingBudget(settings.buffer_bytes)
        self._wheel = TimerWheel(clock)
        self.fan = Fan(clock=clock, stats=self.stats)
        self._dispatcher = Dispatcher(clock=clock, stats=self.stats, fan=self.fan)
        shards = shards_of(link)
        shard_by_topic = partial(shard_of, count=len(shards))
        self.fetchers = tuple(Fetcher() for _ in shards)
        self.tails = AllTails(
            [
                Tails(
                    shard,
                    clock=clock,
                    random=random,
                    wheel=self._wheel,
                    budget=self.budget,
                    topic_bytes_max=settings.topic_buffer_bytes,
                    notify=self._dispatcher.notify,
                    latency=self.stats.latency,
                    tracer=tracer,
                    shard=index,
                    shard_count=len(shards),
                )
                for index, shard in enumerate(shards)
            ],
            shard_by_topic=shard_by_topic,
        )
        self.slots = ScanSlots(clock=clock, wheel=self._wheel)
        deps = SubscriptionDeps(
            link=link,
            tails=self.tails,
            fetcher_of=lambda topic: self.fetchers[shard_by_topic(topic)],
            slots=self.slots,
            wheel=self._wheel,
            random=random,
            request=self._dispatcher.request,
            on_sent=self._dispatcher.on_sent,
            remove=self._dispatcher.remove,
        )
        self.watches = Watches(
            deps,
            clock=clock,
            stats=self.stats,
            watches_max=settings.watches_max,
            age_s_max=settings.stream_age_ms_max / 1000,
        )

    async def lag(self) -> Lag:
        """Return the largest lag of any subscription."""
        return await largest_lag(self.watches.opened, self._clock.now_ms())

    def unary_service(self) -> DeliveryService:
        """Return the service of delivery's unary calls."""
        # WatchTopics is served as raw bytes
        return DeliveryService(self.watches, self._dispatcher, link=self._link, clock=self._clock)  # type: ignore[abstract]

    async def run(self) -> None:
        """Follow the store and serve subscribers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.tails.run())
                tasks.create_task(self._dispatcher.run())
                tasks.create_task(self._dispatcher.sample_pressure())
                for fetcher in self.fetchers:
                    tasks.create_task(fetcher.run())
        finally:
            self._wheel.close()


def interceptors_of(shards: ShardForwarder) -> tuple[grpc.aio.ServerInterceptor, ...]:
    """Return the interceptors before delivery's handlers: forwarding to the stores."""
    return (ForwardingInterceptor(shards, methods=FORWARDED),)


def add_services(
    server: RoleServer,
    role: DeliveryRole,
    *,
    common: CommonSettings,
    clock: Clock,
    host: Host,
    metrics_address: Callable[[], str] = str,
) -> None:
    """Add every service of delivery to `server`. `metrics_address` = address of its metrics; by default none."""
    delivery_pb2_grpc.add_DeliveryServiceServicer_to_server(role.unary_service(), server.grpc)
    role.fan.send_to_all = server.send_to_all
    watch = RawMethod(
        WatchMethod(role.watches, server.backlog, server.fan_call).answer,
        delivery_pb2.WatchTopicsRequest.FromString,
        response_stream=True,
    )
    server.add_raw_methods(SERVICE, {WATCH_TOPICS: watch})
    add_forwarded(server, FORWARDED, role="delivery")
    cluster = ClusterService(
        cluster_pb2.ROLE_DELIVERY,
        version=version("eddyline-delivery"),
        common=common,
        status=partial(delivery_status, role.stats, tails=role.tails, budget=role.budget, clock=clock),
        clock=clock,
        host=host,
        address=lambda: server.address,
        metrics_address=metrics_address,
    )
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, server.grpc)


async def keep_health(server: RoleServer, tails: AllTails) -> NoReturn:
    """Report in health which stores are followed, until cancelled.

    Delivery is ready if it follows any of them: it serves that store's topics.
    """
    while True:
        tails.changed.clear()
        reached = tails.reached
        await server.health.set_stores(reached)
        await server.health.set_ready(any(reached))
        await tails.changed.wait()
