"""A real store with more entries than memory: stopped under scans, scanned a hundred times at once, out of files."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY
from eddyline.core.transport.status import unwrap
from eddyline.store.fold.fold import VIEWS_MAX
from eddyline.store.limits.memory_guard import PROCESS_BYTES
from eddyline.store.rpc.limits import CLIENT_SCANS_MAX
from eddyline.v1 import fold_pb2, fold_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.process_figures import peak_bytes
from tests.support.cluster.processes import free_address, process, serving
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.integration

MEMORY_BYTES = 256 << 20
ENTRIES = 200_000
BATCH = 4_000
DATA_BYTES = 600
STOPPED_SCANS = 50
CLIENT_SCANS, ROLE_SCANS = 70, 30
DRAINED = 6
ROLE = ((CLUSTER_ID_KEY, "local"),)
"""The metadata of a role's calls: its scans do not count as the clients'."""
OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]


class Running(NamedTuple):
    """A store's process, and a channel to it."""

    process: asyncio.subprocess.Process
    address: str
    channel: grpc.aio.Channel

    async def append(self, records: list[types_pb2.Record], *, timeout_s: float | None = None) -> str:
        """Append to `kv`; why it was refused, empty where it was not."""
        rows = types_pb2.RecordBatch(records=records)
        try:
            await log_pb2_grpc.LogServiceStub(self.channel).AppendRecords(
                log_pb2.AppendRecordsRequest(topic="kv", rows=rows), timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            return unwrap(error).reason
        return ""


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[Running]:
    """A store with a topic `kv`."""
    address = free_address()
    settings = {
        "LISTEN": address,
        "DATA_DIR": str(data_dir),
        "MEMORY_BYTES": str(MEMORY_BYTES),
        "CHECKPOINT_BYTES": str(16 << 20),
        "STOP_GRACE_MS": "1000",
    }
    environment = {f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}
    async with (
        process("eddyline.store", **environment) as started,
        grpc.aio.insecure_channel(address, options=OPTIONS) as channel,
    ):
        await serving(address)
        topic = topic_pb2.Topic(name="kv", kind=topic_pb2.TOPIC_KIND_KV)
        topics = topic_pb2_grpc.TopicServiceStub(channel)
        if not (await topics.ListTopics(topic_pb2.ListTopicsRequest())).topics:
            await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        yield Running(started, address, channel)


def entry(number: int) -> types_pb2.Record:
    return types_pb2.Record(op=types_pb2.OP_PUT, key=b"%08d" % number, data=(b"%08d" % number) + os.urandom(DATA_BYTES))


async def fill(store: Running, count: int) -> None:
    for first in range(0, count, BATCH):
        records = [entry(number) for number in range(first, first + BATCH)]
        while reason := await store.append(records):
            assert reason in ("THROTTLED", "APPLY_LAG", "MEMORY_FULL")


class Scan:
    """One scan on a connection of its own; the test takes its answers one by one."""

    def __init__(self, address: str, *, of_role: bool) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        stub = fold_pb2_grpc.FoldServiceStub(self.channel)
        request = fold_pb2.RangeEntriesRequest(topic="kv")
        self.call = stub.RangeEntries(request, metadata=ROLE if of_role else ())
        self._answers = aiter(self.call)
        self.keys = list[bytes]()

    async def take(self) -> str:
        """One answer; the reason why there is none, "END" behind the last."""
        try:
            answer = await anext(self._answers)
        except StopAsyncIteration:
            return "END"
        except grpc.aio.AioRpcError as error:
            return unwrap(error).reason
        self.keys += [record.key for record in answer.rows.records]
        return ""


@asynccontextmanager
async def scanning(address: str, of_role: Sequence[bool]) -> AsyncIterator[list[Scan]]:
    """Scans, closed at the end."""
    scans = [Scan(address, of_role=one) for one in of_role]
    try:
        yield scans
    finally:
        for scan in scans:
            scan.call.cancel()
            await scan.channel.close()


async def whole(address: str) -> list[bytes]:
    """The keys of a whole scan."""
    async with scanning(address, [False]) as (scan,):
        while not (end := await scan.take()):
            pass
        assert end == "END"
        return scan.keys


async def test_store_terminated_under_fifty_open_scans_exits_with_zero_and_leaves_no_core(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as store:
        await fill(store, ENTRIES // 5)
        async with scanning(store.address, [number % 2 == 0 for number in range(STOPPED_SCANS)]) as scans:
            assert [await scan.take() for scan in scans] == [""] * STOPPED_SCANS
            store.process.terminate()
            async with asyncio.timeout(HANG_S):
                assert await store.process.wait() == 0
            assert all(len(scan.keys) < ENTRIES // 5 for scan in scans), "none had come to its end"
    assert not [path for path in Path.cwd().glob("core*") if path.is_file()]
    async with running(tmp_path / "store") as store:
        assert len(await whole(store.address)) == ENTRIES // 5


async def test_hundred_scans_of_more_than_memory_next_to_overwrites_stay_within_it(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as store:
        await fill(store, ENTRIES)
        of_role = [number >= CLIENT_SCANS for number in range(CLIENT_SCANS + ROLE_SCANS)]
        async with scanning(store.address, of_role) as scans:
            begun = [await scan.take() for scan in scans]
            assert Counter(begun) == {"": VIEWS_MAX, "TOO_MANY_SCANS": len(scans) - VIEWS_MAX}
            assert begun[:CLIENT_SCANS].count("") <= CLIENT_SCANS_MAX
            await fill(store, ENTRIES)
            opened = [scan for scan, reason in zip(scans, begun, strict=True) if not reason]
            for scan in opened[:: len(opened) // DRAINED]:
                while not (end := await scan.take()):
                    pass
                assert end == "END"
                assert scan.keys == [b"%08d" % number for number in range(ENTRIES)]
        assert store.process.returncode is None
        assert peak_bytes(store.process.pid) <= MEMORY_BYTES + PROCESS_BYTES


async def test_store_out_of_file_descriptors_serves_nothing_wrong_and_has_all_after_a_restart(tmp_path: Path) -> None:
    count = ENTRIES // 5
    async with running(tmp_path / "store") as store:
        await fill(store, count)
        pid = store.process.pid
        used = len(os.listdir(f"/proc/{pid}/fd"))
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, hard))
        taken: set[int] = set()
        for number in range(count, count + 60):
            # Each of half a MiB: files of the log and tables of the fold are due meanwhile. Whoever waits for the fold waits
            # until it can be opened again: callers' deadlines end that.
            records = [entry(number * 1_000 + i) for i in range(800)]
            if await store.append(records, timeout_s=10):
                break
            taken.add(number)
        assert len(taken) < 60, "it came to the bound"
        keys = [b"%08d" % number for number in range(0, count, 97)]
        try:
            answer = await fold_pb2_grpc.FoldServiceStub(store.channel).BatchGetEntries(
                fold_pb2.BatchGetEntriesRequest(topic="kv", keys=keys), timeout=10
            )
            assert all(found.entry.data.startswith(found.entry.key) for found in answer.entries)
        except grpc.aio.AioRpcError as error:
            assert unwrap(error).reason not in ("DATA_CORRUPT", "FOLD_LOST", "KEY_NOT_FOUND")
        store.process.kill()
    async with running(tmp_path / "store") as store:
        expected = {b"%08d" % number for number in range(count)}
        expected |= {b"%08d" % (number * 1_000 + i) for number in taken for i in range(800)}
        assert expected <= set(await whole(store.address))
    assert not (tmp_path / "store" / "orphans").exists(), "nothing was taken for damaged"
