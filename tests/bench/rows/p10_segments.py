"""P10: segments: history read from them as columns and rows, hot and cold, and how fast they are made.

StreamRecords of a LOG topic of 100-byte records that is wholly in segments, from a store process, once after its files were
dropped from the page cache (cold) and then again (hot); then by its splits, which are passed on as they lie on disk, one
stream and four at a time; beside it the same segments read and verified in this process, against pyarrow reading the same
files. `EDDYLINE_BENCH_MIB` says how much (128).

Then one segment's records of JSON, with a key each and 50 tags between them, written by `write_segment` to the disk (synced
and read back) in each compression, against pyarrow writing the same batches as an Arrow file and syncing it; and read again.
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

from eddyline.core.records.arrow import arrow_schema, to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.core.runtime.fs import RealFs
from eddyline.store.config import SEAL_RECORDS
from eddyline.store.storage.segment.batching import record_batches
from eddyline.store.storage.segment.footer import Compression, SegmentSource
from eddyline.store.storage.segment.reader import read_batch, read_footer
from eddyline.store.storage.segment.writer import BYTES_MAX, ROWS_MAX, write_segment
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate
from tests.bench.rows.p1_append import OPTIONS, RECORD_BYTES, RECORDS, TOPIC, columns, create_topic
from tests.bench.split_streams import read_all
from tests.support.cluster.processes import free_address, process, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIB = int(os.environ.get("EDDYLINE_BENCH_MIB", "128"))
BATCHES = MIB * (1 << 20) // (RECORDS * RECORD_BYTES)
ROUNDS = 3
TARGET_COLUMNS = 2e6
TARGET_ROWS = 0.5e6
SPLIT_STREAMS = (1, 4)
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zstd")


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


async def split_rate(channel: grpc.aio.Channel, streams: int) -> float:
    """Records a second, by splits."""
    started = time.perf_counter()
    count = await read_all(channel, TOPIC, streams=streams)
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


def appended(records: int) -> list[Batch]:
    """A segment's records of 100 bytes of JSON, `records` an append."""
    rows = [
        Record(
            key=b"device/%013d" % (number * 2_654_435_761 % 10**13),
            tag=f"site-{number % 50:02d}",
            data=(
                b'{"device": %7d, "celsius": %6.2f, "state": "running", "at": "2026-01-01T%02d:%02d:%02dZ", "n": %5d}'
            )
            % (number, number % 9973 / 100, number // 3600 % 24, number // 60 % 60, number % 60, number % 10_007),
        )
        for number in range(SEAL_RECORDS)
    ]
    return [
        Batch.from_rows(rows[start : start + records]).with_seqs(start + 1, 1_767_225_600_000 + start)
        for start in range(0, SEAL_RECORDS, records)
    ]


def sealing(path: Path, batches: list[Batch], compression: Compression) -> Callable[[], Awaitable[float]]:
    """A round: records a second, durable and read back."""

    def seal(paths: list[Path]) -> int:
        source = SegmentSource(1, TOPIC, "LOG", 1, 1)
        footer = write_segment(RealFs(), paths[0], source, batches, compression=compression)
        return footer.summary.rows if footer is not None else 0

    return timed(seal, [path])


def arrow_writing(path: Path, batches: list[Batch], compression: Compression) -> Callable[[], Awaitable[float]]:
    """A round: records a second, durable, by Arrow alone."""
    options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)

    def write(paths: list[Path]) -> int:
        count = 0
        with paths[0].open("wb") as file, ipc.new_file(file, arrow_schema(), options=options) as writer:
            for batch in record_batches(batches, rows_max=ROWS_MAX, bytes_max=BYTES_MAX):
                writer.write_batch(to_arrow(batch))
                count += batch.count
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        return count

    return timed(write, [path])


async def measure_sealing(directory: Path) -> list[Figure]:
    """Segments written, and read again. The ratio of a size is to that of none, of lone appends to that of batches."""
    figures: list[Figure] = []
    thousands, lone = appended(RECORDS), appended(1)
    ours, bare = directory / "ours", directory / "bare"
    plain_bytes = 0
    for compression in COMPRESSIONS:
        sealed, written = await alternate(
            sealing(ours, thousands, compression), arrow_writing(bare, thousands, compression)
        )
        figures.append(Figure("P10", f"seal_{compression}", sealed, "records/s", sealed / written))
        if compression == "lz4":
            sealed, written = await alternate(sealing(bare, lone, compression), sealing(ours, thousands, compression))
            figures.append(Figure("P10", "seal_lz4_lone", sealed, "records/s", sealed / written))
        size = ours.stat().st_size
        plain_bytes = plain_bytes or size
        figures.append(Figure("P10", f"bytes_{compression}", size, "bytes", size / plain_bytes))
        read, by_arrow = await alternate(timed(verified, [ours]), timed(by_pyarrow, [ours]))
        figures.append(Figure("P10", f"read_{compression}", read, "records/s", read / by_arrow))
    return figures


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
                for streams in SPLIT_STREAMS:
                    rate = sorted([await split_rate(channel, streams) for _ in range(ROUNDS)])[ROUNDS // 2]
                    figures.append(Figure("P10", f"splits_{streams}", rate, "records/s", rate / TARGET_COLUMNS, 1))
        paths = sorted((data_dir / "topics").glob("*/*.arrow"))
        ours, bare = await alternate(timed(verified, paths), timed(by_pyarrow, paths), rounds=ROUNDS)
        sealed = await measure_sealing(Path(name))
    return [
        *figures,
        Figure("P10", "in_process", ours, "records/s", ours / bare),
        Figure("P10", "pyarrow_bare", bare, "records/s"),
        *sealed,
    ]
