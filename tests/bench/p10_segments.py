"""P10: reading history from segments: columns and rows, hot and cold.

StreamRecords of a LOG topic of 100-byte records that is wholly in segments, from a store process, once after its files were
dropped from the page cache (cold) and then again (hot); beside it the same segments read and verified in this process,
against pyarrow reading the same files. `EDDYLINE_BENCH_MIB` says how much (128).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
from pyarrow import ipc

from eddyline.store.storage.fs import RealFs
from eddyline.store.storage.segment_read import read_batch, read_footer
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate
from tests.bench.p1_append import OPTIONS, RECORD_BYTES, RECORDS, TOPIC, columns, create_topic
from tests.support.processes import free_address, process, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = int(os.environ.get("EDDYLINE_BENCH_MIB", "128"))
BATCHES = MIB * (1 << 20) // (RECORDS * RECORD_BYTES)
ROUNDS = 3
TARGET_COLUMNS = 2e6
TARGET_ROWS = 0.5e6


def environment(address: str, data_dir: Path) -> dict[str, str]:
    """A store that seals at every checkpoint, often."""
    settings = {"LISTEN": address, "DATA_DIR": str(data_dir), "CHECKPOINT_INTERVAL_MS": "500"}
    return {f"EDDYLINE_STORE_{name}": value for name, value in settings.items()}


async def fill(channel: grpc.aio.Channel) -> None:
    """A topic, all of it in segments."""
    await create_topic(channel)
    log, request = log_pb2_grpc.LogServiceStub(channel), log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())
    for _ in range(BATCHES):
        await log.AppendRecords(request)
    cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
    deadline = time.perf_counter() + 60
    while (await cluster.GetStatus(cluster_pb2.GetStatusRequest())).store.unsegmented_bytes > 2 << 20:
        assert time.perf_counter() < deadline, "it was not sealed"


async def stream(channel: grpc.aio.Channel, form: types_pb2.BatchFormat.ValueType) -> float:
    """Records a second."""
    started, count = time.perf_counter(), 0
    request = log_pb2.StreamRecordsRequest(topic=TOPIC, format=form)
    async for frame in log_pb2_grpc.LogServiceStub(channel).StreamRecords(request):
        count += frame.columns.count or len(frame.rows.records)
    assert count == BATCHES * RECORDS
    return count / (time.perf_counter() - started)


def drop_cache(paths: list[Path]) -> None:
    """Let the kernel forget the files."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def verified(paths: list[Path]) -> int:
    """Records, every byte checked."""
    fs, count = RealFs(), 0
    for path in paths:
        footer = read_footer(fs, path)
        file = fs.open(path)
        count += sum(read_batch(file, path, entry).count for entry in footer.batches)
        file.close()
    return count


def by_pyarrow(paths: list[Path]) -> int:
    """Records, by Arrow alone."""
    count = 0
    for path in paths:
        with pa.OSFile(str(path)) as source:
            reader = ipc.open_file(source)
            count += sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
    return count


def timed(read: Callable[[list[Path]], int], paths: list[Path]) -> Callable[[], Awaitable[float]]:
    """A round: records a second."""

    async def run() -> float:
        started = time.perf_counter()
        count = read(paths)
        return count / (time.perf_counter() - started)

    return run


async def measure() -> list[Figure]:
    """The row's figures. The ratio of a rate over gRPC is to what was to be reached, in process to pyarrow."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        data_dir, address = Path(name) / "store", free_address()
        async with process("eddyline.store", **environment(address, data_dir)):
            await serving(address)
            async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
                await fill(channel)
        paths = sorted((data_dir / "topics").glob("*/*.arrow"))
        drop_cache(paths)
        address = free_address()
        async with process("eddyline.store", **environment(address, data_dir)):
            await serving(address)
            async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
                for form, what, target in (
                    (types_pb2.BATCH_FORMAT_COLUMNS, "columns", TARGET_COLUMNS),
                    (types_pb2.BATCH_FORMAT_ROWS, "rows", TARGET_ROWS),
                ):
                    drop_cache(paths)
                    cold = await stream(channel, form)
                    hot = sorted([await stream(channel, form) for _ in range(ROUNDS)])[ROUNDS // 2]
                    figures.append(Figure("P10", f"{what}_cold", cold, "records/s", cold / target, 1))
                    figures.append(Figure("P10", f"{what}_hot", hot, "records/s", hot / target, 1))
        paths = sorted((data_dir / "topics").glob("*/*.arrow"))
        ours, bare = await alternate(timed(verified, paths), timed(by_pyarrow, paths), rounds=ROUNDS)
    return [
        *figures,
        Figure("P10", "in_process", ours, "records/s", ours / bare),
        Figure("P10", "pyarrow_bare", bare, "records/s"),
    ]
