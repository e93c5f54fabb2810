"""P9: a store starts after kill -9, with a log that no checkpoint covers.

The time until it serves, less that of an empty directory and without the start of a process, for a LOG topic of
100-byte records and a KV topic of 200 000 keys, against reading the same files and their xxh3. `EDDYLINE_BENCH_MIB`
says how much log (256; the row is meant with 1024). The page cache is warm in both, as after a kill.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import grpc
import numpy as np
from xxhash import xxh3_64

from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.store.__main__ import machine_of
from eddyline.store.config import StoreSettings
from eddyline.store.rpc.shard_handle import ShardHandle
from eddyline.store.shard.lifecycle import open_store
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate
from tests.bench.rows.p1_append import OPTIONS, RECORD_BYTES, RECORDS
from tests.support.cluster.processes import free_address, process, serving

CLUSTER_ID = CommonSettings().cluster_id
MIB = int(os.environ.get("EDDYLINE_BENCH_MIB", "256"))
ROUNDS = 3
CALLERS = 8
KEYS = 200_000
KEY_BYTES = 20
TARGET_LOG_BYTES = 300e6
TARGET_LOG_RECORDS = 3e6
TARGET_KV_RECORDS = 0.5e6
KV_PART = 8
"""KV records are folded one by one: an eighth of the bytes takes as long."""


def environment(address: str, data_dir: Path) -> dict[str, str]:
    """A store that takes no checkpoint by itself."""
    settings = {
        "LISTEN": address,
        "DATA_DIR": str(data_dir),
        "CHECKPOINT_BYTES": str(1 << 40),
        "CHECKPOINT_INTERVAL_MS": str(86_400_000),
        "UNSEGMENTED_BYTES_MAX": str(1 << 40),
    }
    return {f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}


def columns(first_key: int, kind: topic_pb2.TopicKind.ValueType) -> types_pb2.ColumnarBatch:
    """A batch of `RECORDS` records; keys go round."""
    offsets = np.arange(0, (RECORDS + 1) * RECORD_BYTES, RECORD_BYTES, dtype="<u4").tobytes()
    data = types_pb2.BinaryColumn(offsets=offsets, values=os.urandom(RECORDS * RECORD_BYTES))
    if kind == topic_pb2.TOPIC_KIND_LOG:
        return types_pb2.ColumnarBatch(count=RECORDS, data=data)
    keys = b"".join(b"%020d" % ((first_key + number) % KEYS) for number in range(RECORDS))
    key_offsets = np.arange(0, (RECORDS + 1) * KEY_BYTES, KEY_BYTES, dtype="<u4").tobytes()
    return types_pb2.ColumnarBatch(
        count=RECORDS, data=data, key=types_pb2.BinaryColumn(offsets=key_offsets, values=keys)
    )


async def fill(data_dir: Path, kind: topic_pb2.TopicKind.ValueType, total_bytes: int) -> int:
    """A directory as kill -9 leaves it; its records."""
    address, count = free_address(), 0
    async with process("eddyline.store", **environment(address, data_dir)) as store:
        await serving(address)
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            topic = topic_pb2.Topic(name="bench", kind=kind)
            await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
            log = log_pb2_grpc.LogServiceStub(channel)
            firsts = range(0, total_bytes // RECORD_BYTES, RECORDS)
            left = iter(firsts)

            async def caller() -> None:
                for first in left:
                    await log.AppendRecords(log_pb2.AppendRecordsRequest(topic="bench", columns=columns(first, kind)))

            async with asyncio.TaskGroup() as callers:
                for _ in range(CALLERS):
                    callers.create_task(caller())
            count = len(firsts) * RECORDS
        store.kill()
        await store.wait()
    return count


async def started_s(data_dir: Path) -> float:
    """Seconds until a store is recovered, in this process: a start's imports take as long as a small log and vary more."""
    settings = StoreSettings(data_dir=str(data_dir))
    machine = machine_of(settings, SystemClock(), SystemHost(), ShardHandle())
    started = time.perf_counter()
    async with open_store(machine, settings, cluster_id=CLUSTER_ID):
        return time.perf_counter() - started


def hashed_s(data_dir: Path) -> float:
    """Seconds to read the log's files and hash them."""
    started = time.perf_counter()
    for path in sorted((data_dir / "wal").glob("*/*.wal")):
        with path.open("rb") as file:
            digest = xxh3_64()
            while piece := file.read(1 << 20):
                digest.update(piece)
    return time.perf_counter() - started


async def recovery(directory: Path, kind: topic_pb2.TopicKind.ValueType, total_bytes: int) -> tuple[int, float, float]:
    """Records, seconds to recover them, seconds to hash their files."""
    filled = directory / "filled"
    count = await fill(filled, kind, total_bytes)
    empty_s = await started_s(directory / "empty")

    async def ours() -> float:
        copy = directory / "copy"
        shutil.copytree(filled, copy)
        try:
            return max(await started_s(copy) - empty_s, 1e-3)
        finally:
            shutil.rmtree(copy)

    async def hashing() -> float:
        return hashed_s(filled)

    recovered_s, read_s = await alternate(ours, hashing, rounds=ROUNDS)
    return count, recovered_s, read_s


async def measure() -> list[Figure]:
    """The row's figures. The ratio of a rate is to what was to be reached, that of `log_read` to reading and hashing."""
    total_bytes = MIB << 20
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "log").mkdir()
        (directory / "kv").mkdir()
        count, seconds, read_s = await recovery(directory / "log", topic_pb2.TOPIC_KIND_LOG, total_bytes)
        kv_count, kv_seconds, _ = await recovery(directory / "kv", topic_pb2.TOPIC_KIND_KV, total_bytes // KV_PART)
    log_bytes = count * RECORD_BYTES / seconds
    return [
        Figure("P9", "log_bytes", log_bytes, "bytes/s", log_bytes / TARGET_LOG_BYTES, 1),
        Figure("P9", "log_records", count / seconds, "records/s", count / seconds / TARGET_LOG_RECORDS, 1),
        Figure("P9", "log_read", log_bytes, "bytes/s", read_s / seconds),
        Figure("P9", "kv_records", kv_count / kv_seconds, "records/s", kv_count / kv_seconds / TARGET_KV_RECORDS, 1),
        Figure("P9", "xxh3_bare", count * RECORD_BYTES / read_s, "bytes/s"),
    ]
