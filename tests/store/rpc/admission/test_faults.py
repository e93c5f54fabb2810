"""Errors that clients get when the disk, the fold or a bound of the store refuses."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from eddyline.core.errors import ApplyLag, DataCorrupt, Throttled
from eddyline.core.runtime.fs import RealFs
from eddyline.core.transport.status import unwrap
from eddyline.store.storage.layout import Layout
from eddyline.v1 import cluster_pb2, fold_pb2, topic_pb2
from eddyline.v1.log_pb2 import AppendStart, AppendStreamRequest, ReadRecordsRequest
from eddyline.v1.types_pb2 import Record
from tests.store.rpc.requests import append_step, keyless, rows
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.store.served import Gate, answers_of, passing_time, refused, served_store, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from eddyline.core.errors import EddylineError
    from eddyline.v1.log_pb2 import AppendRecordsRequest
    from tests.support.store.served import ServedStore

LOG, FSYNC = topic_pb2.TOPIC_KIND_LOG, topic_pb2.DURABILITY_FSYNC
MIB = 1 << 20
APPEND_BYTES = 1_000_000
"""Least bytes of 10 000 keys of 100 bytes."""


async def test_appends_beyond_the_disk_are_throttled_and_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.store.write.admission.STAGED_BYTES_MAX", MIB)
    disk = Gate()
    async with served_store(tmp_path / "store", disk=disk) as store, passing_time(store.clock):
        await store.create("log", LOG)
        disk.close()
        large = append_step(Record(data=bytes(MIB - 1_000)))
        steps = [AppendStreamRequest(start=AppendStart(topic="log")), *[large] * 6]
        call = store.log.AppendStream(iter(steps))
        # A condition that cannot hold is judged after the room is, so this asks without staging anything.
        probe = rows("log", keyless("x"))
        probe.expected_head_seq = 1 << 60
        throttled_count = 0
        while not throttled_count or store.link.measured().measures.refused["THROTTLED"] == throttled_count:
            error = await _refusal(store, probe)
            if isinstance(error, Throttled):
                throttled_count += 1
                assert int(error.metadata["retryAfterMs"]) > 0
        disk.open()  # the stream has met the bound too
        answers, reason = await answers_of(call)
        assert reason == "THROTTLED"
        assert await store.head("log") == len(answers)


async def _refusal(store: ServedStore, request: AppendRecordsRequest) -> EddylineError:
    try:
        await store.log.AppendRecords(request)
    except grpc.aio.AioRpcError as error:
        return unwrap(error)
    raise AssertionError("not refused")


async def test_appends_beyond_the_fold_are_refused_and_not_stored(tmp_path: Path) -> None:
    fold = Gate()
    async with (
        served_store(tmp_path / "store", fold=fold) as store,
        passing_time(store.clock),
        asyncio.TaskGroup() as tasks,
    ):
        await store.create("kv")
        fold.close()
        taken = 0

        async def append() -> None:
            nonlocal taken
            answer = await store.log.AppendRecords(batch)
            taken += answer.last_seq - answer.first_seq + 1

        batch = rows("kv", *[Record(key=b"k" * 100)] * 10_000)
        for number in range(1, 8):
            tasks.create_task(append())
            await until(lambda number=number: store.link.status().apply_lag_bytes >= number * APPEND_BYTES)  # type: ignore[misc]
        error = await refused(store.log.AppendRecords(batch), "APPLY_LAG")
        assert isinstance(error, ApplyLag)
        assert int(error.metadata["retryAfterMs"]) > 0
        fold.open()
        await until(lambda: taken == 70_000)
        assert await store.head("kv") == 70_000


async def test_failed_sync_leaves_outcomes_unknown_and_the_store_read_only(tmp_path: Path) -> None:
    fs = FaultyFs(RealFs())
    async with served_store(tmp_path / "store", fs=fs) as store:
        await store.create("disk", LOG)
        await store.create("sync", LOG, FSYNC)
        await store.log.AppendRecords(rows("disk", keyless("1")))
        fs.next_fault("fdatasync", error=errno.EIO)
        await refused(store.log.AppendRecords(rows("sync", keyless("1"))), "COMMIT_UNKNOWN")
        await refused(store.log.AppendRecords(rows("disk", keyless("2"))), "READ_ONLY")
        topic = topic_pb2.Topic(name="new", kind=LOG)
        await refused(store.topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic)), "READ_ONLY")
        await refused(store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="disk")), "READ_ONLY")
        steps = [AppendStreamRequest(start=AppendStart(topic="disk")), append_step(keyless("2"))]
        assert await answers_of(store.log.AppendStream(iter(steps))) == ([], "READ_ONLY")
        read = await store.log.ReadRecords(ReadRecordsRequest(topic="disk"))
        assert [record.data for record in read.items[0].rows.records] == [b"1"]
        status = await store.cluster.GetStatus(cluster_pb2.GetStatusRequest())
        assert (status.ready, status.reason) == (False, "SYNC_FAILED")


async def test_append_stream_ends_at_the_failed_sync(tmp_path: Path) -> None:
    fs = FaultyFs(RealFs())
    async with served_store(tmp_path / "store", fs=fs) as store:
        await store.create("sync", LOG, FSYNC)
        call = store.log.AppendStream()
        await call.write(AppendStreamRequest(start=AppendStart(topic="sync")))
        await call.write(append_step(keyless("1")))
        assert (await anext(aiter(call))).first_seq == 1
        fs.next_fault("fdatasync", error=errno.EIO)
        await call.write(append_step(keyless("2")))
        with suppress(grpc.aio.AioRpcError):  # the stream may have ended
            await call.write(append_step(keyless("3")))
        answers, reason = await answers_of(call)
        assert (answers, reason) == ([], "COMMIT_UNKNOWN")
        assert await store.head("sync") == 1


async def test_damaged_record_is_never_served(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store", cache_bytes=0) as store:
        await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", keyless("a word that is easily found")))
        directory = Layout(tmp_path / "store").wal_shard(0)
        (damaged,) = [path for path in directory.glob("*.wal") if b"easily found" in path.read_bytes()]
        damaged.write_bytes(damaged.read_bytes().replace(b"easily found", b"easily f0und"))
        error = await refused(store.log.ReadRecords(ReadRecordsRequest(topic="log")), "DATA_CORRUPT")
        assert isinstance(error, DataCorrupt)
        assert error.metadata["file"] == str(damaged)
        assert int(error.metadata["offset"]) >= 0


async def test_range_that_lives_too_long_ends(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(
            rows("kv", *[Record(key=f"k{number:03}".encode(), data=bytes(64 << 10)) for number in range(500)])
        )
        call = store.fold.RangeEntries(fold_pb2.RangeEntriesRequest(topic="kv"))
        await anext(aiter(call))
        store.clock.advance(301)
        answers, reason = await answers_of(call)
        assert reason == "SCAN_EXPIRED"
        assert answers
