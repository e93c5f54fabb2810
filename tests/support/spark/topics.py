"""Topics for Spark tests: a store that seals often, records with all that they may hold, and what clients read of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.client.connect import connect
from eddyline.core.records.record import Gap, MetaEntry, Op, Record
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.cluster.processes import store_process
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    import grpc

    from eddyline.client.connect import Client

SEALS_OFTEN = {
    "EDDYLINE_STORE_CHECKPOINT_INTERVAL_MS": "50",
    "EDDYLINE_STORE_SEAL_RECORDS": "1000",
    "EDDYLINE_STORE_SEAL_AGE_MS": "100",
}
APPEND = 5_000
SUMMER_TIME_BEGINS_NS = 1_774_745_999_999_999_999
"""In Europe: a nanosecond before 2026-03-29T01:00Z."""


@asynccontextmanager
async def store_and_client(data_dir: Path, **more: str) -> AsyncIterator[tuple[str, Client]]:
    """A store process that seals often; its address, and a client of it."""
    async with store_process(data_dir, **{**SEALS_OFTEN, **more}) as (_, address), connect(address) as client:
        yield address, client


def plain_records(count: int, *, keys: int = 0, op: Op = Op.APPEND, first: int = 0) -> list[Record]:
    """Small records that differ: keys in turn where there are any, two tags, two nodes, a source time each."""
    return [
        Record(
            op=op,
            key=b"key-%d" % (number % keys) if keys else None,
            data=b"value-%d" % number,
            tag="even" if number % 2 == 0 else "odd",
            node="n1" if number % 3 else "n2",
            source_ts_ns=1_000_000_000 * (number + 1),
        )
        for number in range(first, first + count)
    ]


def odd_records() -> list[Record]:
    """Everything that is easily lost on the way: absent and empty, bytes that are no text, edges of time, large values."""
    return [
        Record(),
        Record(key=b"", data=b"", tag="", node=""),
        Record(key=b"\x00", data=b"\x00"),
        Record(key=b"\xff\xfe", data=bytes(range(256))),
        Record(key="schlüssel-日本-😀".encode(), tag="日本", node="é"),
        Record(key=b"k" * 1024, tag="t" * 256),
        Record(data=b"x" * ((1 << 20) - 64)),
        Record(meta=(MetaEntry("a", b"1"), MetaEntry("a", b""), MetaEntry("", b"\xff"))),
        Record(source_ts_ns=1),
        Record(source_ts_ns=-1),
        Record(source_ts_ns=SUMMER_TIME_BEGINS_NS),
        Record(source_ts_ns=SUMMER_TIME_BEGINS_NS + 1),
        Record(source_ts_ns=(1 << 63) - 1),
    ]


async def append_all(client: Client, topic: str, records: Sequence[Record], *, batch: int = APPEND) -> None:
    """Append in batches."""
    for start in range(0, len(records), batch):
        await client.append(topic, records[start : start + batch])


async def read_all(client: Client, topic: str, *, after: int = 0) -> list[Record]:
    """The topic as the client library reads it, without what was lost."""
    return [item async for item in client.read(topic, after=after) if not isinstance(item, Gap)]


async def until_sealed(channel: grpc.aio.Channel, *, bytes_left: int = 0) -> None:
    """Wait until what was written is in segments."""
    stub = cluster_pb2_grpc.ClusterServiceStub(channel)
    async with asyncio.timeout(HANG_S):
        while True:
            status = await stub.GetStatus(cluster_pb2.GetStatusRequest())
            if status.store.unsegmented_bytes <= bytes_left:
                return
            await asyncio.sleep(0.05)
