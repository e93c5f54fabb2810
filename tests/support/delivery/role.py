"""Delivery on loopback over a store in process: the role, its server, and subscribers that note what they get."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health, health_pb2

from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.telemetry.tracing import Tracer
from eddyline.core.transport.channel import open_channel
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.role import SERVICES, DeliveryRole, add_services, keep_health
from eddyline.v1 import cluster_pb2_grpc, delivery_pb2_grpc
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.manual_clock import ManualClock
from tests.support.sim.cut_link import CutLink
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from eddyline.core.auth.role import RoleAccess
    from eddyline.store.shard.shard import Shard

PATIENCE_S: Final = 10.0
WIRE: Final = os.environ.get("EDDYLINE_COMMON_WIRE", "grpc")
"""What serves calls in this run of the tests."""
TURNS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class ServedDelivery:
    """A delivery role that serves, over a store whose wire can be cut."""

    store: Shard
    wire: CutLink
    clock: ManualClock
    role: DeliveryRole
    address: str
    channel: grpc.aio.Channel
    delivery: delivery_pb2_grpc.DeliveryServiceStub
    cluster: cluster_pb2_grpc.ClusterServiceStub

    def watch(self, *topics: pb.WatchTopic, **options: object) -> Watch:
        """Open a stream."""
        return Watch(self.delivery.WatchTopics(pb.WatchTopicsRequest(topics=topics, **options)))  # type: ignore[arg-type]

    @asynccontextmanager
    async def watch_narrowly(self, *topics: pb.WatchTopic) -> AsyncIterator[Watch]:
        """Open a stream whose window does not grow: it takes 64 KiB ahead of its reader, and no more."""
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            call = delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(pb.WatchTopicsRequest(topics=topics))
            async with Watch(call) as watch:
                yield watch

    async def refusal(self, *topics: pb.WatchTopic, **options: object) -> grpc.aio.AioRpcError:
        """Open a stream that is refused."""
        try:
            async with self.watch(*topics, **options) as watch:
                got = await watch.next()
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"not refused: {got}")

    async def ready(self, service: str = "") -> bool:
        """The health of the role or of one of its parts."""
        check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
        check = self.channel.unary_unary(
            f"/{health.SERVICE_NAME}/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def until(self, condition: Callable[[], bool], *, passing_s: float = 0.0) -> None:
        """Let the loop run until `condition` holds; time passes by `passing_s` a look."""
        for _ in range(TURNS_MAX):
            if condition():
                return
            if passing_s:
                self.clock.advance(passing_s)
            await asyncio.sleep(0)
        raise AssertionError("it never came to hold")


@dataclass(slots=True)
class Watch:
    """One stream, and what came on it by topic."""

    call: grpc.aio.UnaryStreamCall[pb.WatchTopicsRequest, pb.WatchTopicsResponse]
    frames: list[pb.WatchTopicsResponse] = field(default_factory=list)
    token: bytes = b""
    cursors: dict[str, types.Cursor] = field(default_factory=dict)

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()

    async def next(self) -> pb.WatchTopicsResponse:
        """The next frame. Raises StopAsyncIteration where the stream ended."""
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.call.read()
        if frame is grpc.aio.EOF:
            code = await self.call.code()
            if code is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    code,
                    await self.call.initial_metadata(),
                    await self.call.trailing_metadata(),
                    await self.call.details(),
                )
            raise StopAsyncIteration
        assert isinstance(frame, pb.WatchTopicsResponse)
        self.frames.append(frame)
        if frame.resume_token:
            self.token = frame.resume_token
        if frame.HasField("cursor"):
            self.cursors[frame.topic] = frame.cursor
        return frame

    async def kind(self, kind: str) -> pb.WatchTopicsResponse:
        """The next frame, which is of this kind."""
        frame = await self.next()
        assert frame.WhichOneof("frame") == kind, frame
        return frame

    async def until_kind(self, kind: str) -> pb.WatchTopicsResponse:
        """Frames up to one of this kind."""
        while True:
            frame = await self.next()
            if frame.WhichOneof("frame") == kind:
                return frame

    async def data(self, count: int) -> list[bytes]:
        """Payloads of the next `count` records."""
        found: list[bytes] = []
        while len(found) < count:
            frame = await self.next()
            found += [record.data for record in frame.rows.records]
        assert len(found) == count
        return found


def at(topic: str, seq: int, epoch: int = 0, prefixes: tuple[bytes, ...] = ()) -> pb.WatchTopic:
    """A topic from a cursor."""
    return pb.WatchTopic(topic=topic, cursor=types.Cursor(epoch=epoch, seq=seq), key_prefixes=prefixes)


def tail(topic: str, *prefixes: bytes) -> pb.WatchTopic:
    """A topic from now on."""
    return pb.WatchTopic(topic=topic, point=pb.START_POINT_TAIL, key_prefixes=prefixes)


def earliest(topic: str, *prefixes: bytes) -> pb.WatchTopic:
    """A topic from its beginning."""
    return pb.WatchTopic(topic=topic, point=pb.START_POINT_EARLIEST, key_prefixes=prefixes)


def snapshot(topic: str, *prefixes: bytes) -> pb.WatchTopic:
    """A topic's current values, then its changes."""
    return pb.WatchTopic(topic=topic, point=pb.START_POINT_SNAPSHOT, key_prefixes=prefixes)


@asynccontextmanager
async def served_delivery(
    *,
    seed: int = 0,
    stream_age_ms_max: int = 0,
    access: RoleAccess | None = None,
    trace_ratio: float = 0.0,
    wire: str = WIRE,
    **changes: int,
) -> AsyncIterator[ServedDelivery]:
    """A running role on a free port, over a new store. Its streams get as old as they like: tests make days pass. Both have
    one tracer."""
    clock = ManualClock()
    tracer = Tracer(trace_ratio, clock=clock, rng=Random(seed))
    settings = DeliverySettings(
        listen="127.0.0.1:0",
        stop_grace_ms=0,
        stream_age_ms_max=stream_age_ms_max,
        **changes,  # type: ignore[arg-type]  # of the numbers alone
    )
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(sim_store(clock=clock, tracer=tracer))
        link = CutLink(store)
        role = DeliveryRole(link, clock=clock, random=Random(seed), settings=settings, tracer=tracer)
        server = make_server(settings.listen, access=access, wire=wire)
        add_services(server, role, common=CommonSettings(), clock=clock, host=SystemHost())
        address = await server.start(*SERVICES)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(role.run()), tasks.create_task(keep_health(server, role.tails))]
        stack.callback(lambda: [task.cancel() for task in running])
        stack.push_async_callback(server.stop, 0)
        channel = await stack.enter_async_context(open_channel(address, own_connection=True))
        await role.tails.up.wait()
        yield ServedDelivery(
            store=store,
            wire=link,
            clock=clock,
            role=role,
            address=address,
            channel=channel,
            delivery=delivery_pb2_grpc.DeliveryServiceStub(channel),
            cluster=cluster_pb2_grpc.ClusterServiceStub(channel),
        )
