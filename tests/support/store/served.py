"""A whole store on loopback: real files, real RocksDB, real gRPC; only its clock is moved by hand."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.forwarding.shards import ShardForwarder
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.fs import RealFs
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import unwrap
from eddyline.store.__main__ import SERVICES, add_services, gates_of
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.config import StoreSettings
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.rpc.shard_handle import ShardHandle
from eddyline.store.runtime.workers import ThreadWorker
from eddyline.store.shard.lifecycle import open_store
from eddyline.v1 import (
    apply_pb2_grpc,
    cluster_pb2_grpc,
    fold_pb2_grpc,
    log_pb2_grpc,
    segment_pb2_grpc,
    topic_pb2,
    topic_pb2_grpc,
)
from tests.support.manual_clock import ManualClock
from tests.support.store.real import real_env

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.errors import EddylineError
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.shard.shard import Shard

T = TypeVar("T")
M = TypeVar("M")

CLUSTER_ID: Final = "test"
WAL_FILE_BYTES: Final = 256 << 10
SETTLE_TURNS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store that serves, its parts at hand, and a stub a service."""

    address: str
    clock: ManualClock
    handle: ShardHandle
    link: Shard
    channel: grpc.aio.Channel
    topics: topic_pb2_grpc.TopicServiceStub
    log: log_pb2_grpc.LogServiceStub
    fold: fold_pb2_grpc.FoldServiceStub
    segments: segment_pb2_grpc.SegmentServiceStub
    apply: apply_pb2_grpc.ApplyServiceStub
    cluster: cluster_pb2_grpc.ClusterServiceStub

    async def create(
        self,
        name: str,
        kind: topic_pb2.TopicKind.ValueType = topic_pb2.TOPIC_KIND_KV,
        durability: topic_pb2.Durability.ValueType = topic_pb2.DURABILITY_UNSPECIFIED,
    ) -> topic_pb2.Topic:
        """Create a topic."""
        config = topic_pb2.TopicConfig(durability=durability)
        topic = topic_pb2.Topic(name=name, kind=kind, config=config)
        return (await self.topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))).topic

    async def head(self, topic: str) -> int:
        """A topic's head."""
        return (await self.topics.GetTopic(topic_pb2.GetTopicRequest(topic=topic))).topic.head_seq


class Gate:
    """Holds a store's thread at its next job, as a slow disk would, until it is opened again."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        """Let nothing pass from now on."""
        self._open.clear()

    def open(self) -> None:
        """Let everything pass."""
        self._open.set()

    def worker(self, name: str) -> Worker:
        """A thread behind this gate."""
        return _GatedWorker(ThreadWorker(name), self._open)


class _GatedWorker:
    def __init__(self, worker: Worker, gate: threading.Event) -> None:
        self._worker = worker
        self._gate = gate

    @property
    def is_idle(self) -> bool:
        return False  # its jobs are done behind the gate alone

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        def held() -> T:
            self._gate.wait()
            return job()

        return self._worker.submit(held)

    def close(self) -> None:
        self._worker.close()


@asynccontextmanager
async def served_store(
    data_dir: Path,
    *,
    topics_max: int = 100,
    retained_bytes_max: int = 0,
    cache_bytes: int = 64 << 20,
    recovered: bool = True,
    fs: Fs | None = None,
    disk: Gate | None = None,
    fold: Gate | None = None,
    access: RoleAccess | None = None,
    shard_index: int = 0,
    addresses: Sequence[str] = (),
) -> AsyncIterator[ServedStore]:
    """Serve the store in `data_dir`, behind gates where they are given; `recovered` False = as while it recovers; `access`
    None = to everybody; `addresses` = of all shards, of which this is one."""
    gates = {"wal-0": disk, "fold": fold}
    clock, host, handle = ManualClock(), SystemHost(), ShardHandle()
    settings = StoreSettings(
        listen=addresses[shard_index] if addresses else "127.0.0.1:0",
        shard_index=str(shard_index),
        data_dir=str(data_dir),
        wal_file_bytes=WAL_FILE_BYTES,
        topics_max=topics_max,
        retained_bytes_max=retained_bytes_max,
    )
    artifacts = LocalArtifactStore(RealFs(), data_dir.with_name(f"{data_dir.name}-artifacts"), holder="the test")
    env = real_env(settings, clock=clock, workers=partial(_worker, gates), fs=fs, artifact_store=artifacts)
    env = replace(env, host=host, plan=memory_plan(settings.memory_bytes)._replace(cache_bytes=cache_bytes))
    shards = ShardForwarder(
        addresses, caller=access.caller if access is not None else CallerAccess(), cluster_id=CLUSTER_ID
    )
    gates_before = gates_of(handle, shards, shard_index)
    common = CommonSettings(store_addresses=tuple(addresses)) if addresses else CommonSettings()
    server = make_server(settings.listen, cluster_id=CLUSTER_ID, interceptors=gates_before, access=access)
    add_services(server, handle, common=common, clock=clock, host=host, shard_index=shard_index)
    address = await server.start(*SERVICES)
    try:
        async with (
            shards,
            open_store(env, settings, cluster_id=CLUSTER_ID, shard_count=max(1, len(addresses))) as link,
            open_channel(address, own_connection=True) as channel,
        ):
            try:
                if recovered:
                    handle.open(link)
                yield ServedStore(
                    address=address,
                    clock=clock,
                    handle=handle,
                    link=link,
                    channel=channel,
                    topics=topic_pb2_grpc.TopicServiceStub(channel),
                    log=log_pb2_grpc.LogServiceStub(channel),
                    fold=fold_pb2_grpc.FoldServiceStub(channel),
                    segments=segment_pb2_grpc.SegmentServiceStub(channel),
                    apply=apply_pb2_grpc.ApplyServiceStub(channel),
                    cluster=cluster_pb2_grpc.ClusterServiceStub(channel),
                )
            finally:
                await server.stop(0)
                for gate in (disk, fold):
                    if gate is not None:
                        gate.open()
    finally:
        await server.stop(0)


@asynccontextmanager
async def passing_time(clock: ManualClock) -> AsyncIterator[None]:
    """Let time pass by itself, so that what waits for a while (a window under pressure) goes on."""

    async def tick() -> None:
        while True:
            clock.advance(0.001)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()


def _worker(gates: dict[str, Gate | None], name: str, threads: int) -> Worker:
    gate = gates.get(name)
    return gate.worker(name) if gate is not None else ThreadWorker(name, threads=threads)


async def answers_of(stream: AsyncIterable[M]) -> tuple[list[M], str]:
    """All answers of a stream, and the reason it ended for; empty = OK."""
    answers: list[M] = []
    try:
        async for answer in stream:
            answers.append(answer)  # noqa: PERF401  # what came before a failure is wanted
    except grpc.aio.AioRpcError as error:
        return answers, unwrap(error).reason
    return answers, ""


async def refused(answer: Awaitable[object], reason: str) -> EddylineError:
    """Expect a call to be refused for `reason`, under the code that reason has; the error as its class."""
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        found = unwrap(error)
        assert found.reason == reason, f"{found.reason}: {found.message}"
        assert error.code().name == found.code.name
        return found
    raise AssertionError(f"not refused; expected {reason}")


async def is_serving(channel: grpc.aio.Channel, service: str) -> bool:
    """The health of `service`."""
    check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest(service=service))
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    for _ in range(SETTLE_TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")
