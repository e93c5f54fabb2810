"""A store on a disk of a few MiB, filled by its own appends: refused before it is full, and taken again by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from eddyline.core.transport.status import unwrap
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.processes import free_address, process, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

DISK_BYTES = 96 << 20
FLOOR_BYTES = 24 << 20
RECORD_BYTES = 1 << 20
SECONDS_MAX = 60


class Disk(NamedTuple):
    """The directory, and a floor that leaves room for some appends."""

    directory: Path
    floor_bytes: int


@contextmanager
def small_disk(directory: Path) -> Iterator[Disk]:
    """A file system of its own; where mounting is not permitted, the last MiB of the one that is there."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        if mounted:
            yield Disk(directory, FLOOR_BYTES)
        else:
            space = os.statvfs(directory)
            yield Disk(directory, space.f_bavail * space.f_frsize - (DISK_BYTES - FLOOR_BYTES))
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_store_on_a_full_disk_reads_deletes_and_recovers_by_itself(tmp_path: Path) -> None:
    address = free_address()
    with small_disk(tmp_path / "disk") as disk:
        settings = {
            "LISTEN": address,
            "DATA_DIR": str(disk.directory / "store"),
            "WAL_FILE_BYTES": str(1 << 20),
            "UNSEGMENTED_BYTES_MAX": str(1 << 30),
            "CHECKPOINT_INTERVAL_MS": "100",
            "DISK_FLOOR_BYTES": str(disk.floor_bytes),
        }
        environment = {f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}
        async with process("eddyline.store", **environment), grpc.aio.insecure_channel(address) as channel:
            await serving(address)
            topics, log = topic_pb2_grpc.TopicServiceStub(channel), log_pb2_grpc.LogServiceStub(channel)
            for name in ("filling", "kept"):
                topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG)
                await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
            await append(log, "kept", b"kept")
            async with asyncio.timeout(SECONDS_MAX):
                taken = 0
                while (refusal := await append(log, "filling", os.urandom(RECORD_BYTES))) != "DISK_FLOOR":
                    assert refusal in ("", "THROTTLED")
                    taken += refusal == ""
            assert taken > 1
            assert await said(channel) == (False, "DISK_FLOOR")
            read = await log.ReadRecords(log_pb2.ReadRecordsRequest(topic="filling", after_seq=taken - 1))
            assert read.head_seq == taken
            assert sum(len(item.rows.records) for item in read.items) == 1

            await topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="filling"))
            async with asyncio.timeout(SECONDS_MAX):
                while await append(log, "kept", b"kept"):  # each refusal lets the disk be looked at
                    pass
            assert await said(channel) == (True, "")
            read = await log.ReadRecords(log_pb2.ReadRecordsRequest(topic="kept"))
            assert {record.data for item in read.items for record in item.rows.records} == {b"kept"}


async def append(log: log_pb2_grpc.LogServiceStub, topic: str, data: bytes) -> str:
    """Append one record; why it was refused, empty where it was not."""
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=data)])
    try:
        await log.AppendRecords(log_pb2.AppendRecordsRequest(topic=topic, rows=rows))
    except grpc.aio.AioRpcError as error:
        return unwrap(error).reason
    return ""


async def said(channel: grpc.aio.Channel) -> tuple[bool, str]:
    """The status: whether all is served, and the reason if not."""
    status = await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())
    return status.ready, status.reason
