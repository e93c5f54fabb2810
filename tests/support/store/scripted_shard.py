"""A store's services over a shard that answers from a test's script and records its calls."""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.transport.channel import open_channel
from eddyline.store.__main__ import SERVICES, add_services
from eddyline.store.rpc.shard_handle import ShardHandle
from eddyline.v1 import cluster_pb2_grpc, fold_pb2_grpc, log_pb2_grpc, segment_pb2_grpc, topic_pb2_grpc
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from eddyline.core.model.topic import Kind
    from eddyline.store.shard.api import ShardApi
    from eddyline.store.stats import ShardStatus


@dataclass(slots=True)
class ScriptedShard:
    """Answers each call by the script of its name: a value, a list of steps for a stream, or an error in either's place;
    a deque of these is one a call, in turn."""

    scripts: dict[str, object]
    kind: Kind | None = None
    asked: list[tuple[str, tuple[object, ...], dict[str, object]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def kind_of(self, name: str) -> Kind | None:
        """The scripted kind, whatever the name."""
        return self.kind

    def status(self) -> ShardStatus:
        """The scripted figures."""
        return cast("ShardStatus", self.scripts["status"])

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self.asked.append((name, args, kwargs))
            answer = self.scripts[name]
            if isinstance(answer, deque):
                answer = answer.popleft()
            return self._steps(name, answer) if isinstance(answer, list) else _answered(answer)

        return call

    async def _steps(self, name: str, steps: list[object]) -> AsyncGenerator[object, None]:
        try:
            for step in steps:
                yield await _answered(step)
        finally:
            self.closed.append(name)


@dataclass(frozen=True, slots=True)
class ScriptedStore:
    """The services, and a stub of each."""

    address: str
    handle: ShardHandle
    topics: topic_pb2_grpc.TopicServiceStub
    log: log_pb2_grpc.LogServiceStub
    fold: fold_pb2_grpc.FoldServiceStub
    segments: segment_pb2_grpc.SegmentServiceStub
    cluster: cluster_pb2_grpc.ClusterServiceStub


@asynccontextmanager
async def scripted_store(door: ScriptedShard | None) -> AsyncIterator[ScriptedStore]:
    """Serve a door on loopback; None = as while the store recovers."""
    handle = ShardHandle()
    if door is not None:
        handle.open(cast("ShardApi", door))  # by name: a call that the test did not script is a KeyError
    server = make_server("127.0.0.1:0")
    add_services(server, handle, common=CommonSettings(), clock=ManualClock(), host=SystemHost())
    address = await server.start(*SERVICES)
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield ScriptedStore(
                address=address,
                handle=handle,
                topics=topic_pb2_grpc.TopicServiceStub(channel),
                log=log_pb2_grpc.LogServiceStub(channel),
                fold=fold_pb2_grpc.FoldServiceStub(channel),
                segments=segment_pb2_grpc.SegmentServiceStub(channel),
                cluster=cluster_pb2_grpc.ClusterServiceStub(channel),
            )
    finally:
        await server.stop(0)


async def _answered(answer: object) -> object:
    if isinstance(answer, Exception):
        raise answer
    return answer
