"""Callers without a key take descriptors, and the store's own files still open; where they do not, it goes on by itself."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.errors import Throttled
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import unwrap
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc
from eddyline.v1.types_pb2 import Record, RecordBatch
from tests.support.cluster.processes import free_address, serving
from tests.support.hang import HANG_S
from tests.support.store.served import is_serving, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from eddyline.core.errors import EddylineError

pytestmark = pytest.mark.integration

IDLE = 1_100
DATA = b"x" * (256 << 10)


@asynccontextmanager
async def limited_store(data_dir: Path, limit: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A store under a shell's limit, and its address; each append of `DATA` begins a WAL file."""
    address = free_address()
    settings = {"LISTEN": address, "DATA_DIR": str(data_dir), "WAL_FILE_BYTES": str(256 << 10)}
    started = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'ulimit {limit} && exec "$@"', "sh", sys.executable, "-m", "eddyline.store"),
        env={**os.environ, **{f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await serving(address)
        yield started, address
    finally:
        started.terminate()
        assert await started.wait() == 0


def request() -> log_pb2.AppendRecordsRequest:
    create = log_pb2.CreateIfMissing(kind=topic_pb2.TOPIC_KIND_LOG)
    return log_pb2.AppendRecordsRequest(topic="t", rows=RecordBatch(records=[Record(data=DATA)]), create=create)


async def seq_or_refusal(call: Awaitable[log_pb2.AppendRecordsResponse]) -> int | EddylineError:
    """Return the seq of an append, or the error by which it is refused."""
    try:
        return (await call).last_seq
    except grpc.aio.AioRpcError as error:
        return unwrap(error)


@pytest.mark.parametrize("limit", ["-S -n 1024", "-n 1200"])
async def test_idle_connections_leave_the_store_its_files(tmp_path: Path, limit: str) -> None:
    async with limited_store(tmp_path / "store", limit) as (_, address), open_channel(address) as channel:
        log = log_pb2_grpc.LogServiceStub(channel)
        await log.AppendRecords(request())
        host, _, port = address.rpartition(":")
        with ExitStack() as held:
            for _ in range(IDLE):
                held.enter_context(socket.create_connection((host, int(port))))
            for number in range(2, 12):
                assert (await log.AppendRecords(request())).last_seq == number
            assert await is_serving(channel, "")


async def test_a_store_without_a_descriptor_left_refuses_and_goes_on_by_itself(tmp_path: Path) -> None:
    async with limited_store(tmp_path / "store", "-n 4096") as (store, address), open_channel(address) as channel:
        log = log_pb2_grpc.LogServiceStub(channel)
        await log.AppendRecords(request())
        soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (3, hard))
        # The first one waits for a descriptor; another one waits too, or is refused if it comes after that is known.
        waiting = [asyncio.ensure_future(seq_or_refusal(log.AppendRecords(request()))) for _ in range(3)]  # noqa: TID251
        await serving(address, is_serving=False)
        assert isinstance(await refused(log.AppendRecords(request()), "THROTTLED"), Throttled)
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (soft, hard))
        async with asyncio.timeout(HANG_S):
            outcomes = [await one for one in waiting]
        await serving(address)
        acknowledged = sorted(one for one in outcomes if isinstance(one, int))
        assert acknowledged == list(range(2, 2 + len(acknowledged)))
        assert acknowledged and all(isinstance(one, int | Throttled) for one in outcomes)
        assert (await log.AppendRecords(request())).last_seq == 2 + len(acknowledged)


async def test_first_topic_without_a_descriptor_left_is_refused_and_can_be_made_later(tmp_path: Path) -> None:
    async with limited_store(tmp_path / "store", "-n 4096") as (store, address), open_channel(address) as channel:
        topics = topic_pb2_grpc.TopicServiceStub(channel)
        create = topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name="t", kind=topic_pb2.TOPIC_KIND_LOG))
        assert not (await topics.ListTopics(topic_pb2.ListTopicsRequest())).topics
        soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (3, hard))
        assert isinstance(await refused(topics.CreateTopic(create), "THROTTLED"), Throttled)
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await topics.CreateTopic(create)).topic.name == "t"
