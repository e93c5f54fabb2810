"""A store that hangs while a bucket is written at full speed: ingest holds no more than its window, and then continues."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats
import pytest
from nats.js.api import KeyValueConfig

from eddyline.core.records.batch import Batch
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.channel import open_channel
from tests.support.cluster.process_figures import resident_bytes
from tests.support.cluster.processes import ingest_process, nats_server, store_process

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient

    from eddyline.core.store_link.protocol import StoreLink

pytestmark = pytest.mark.integration

BUCKET: Final = "b"
BEFORE: Final = 10_000
MEANWHILE: Final = 100_000
VALUE: Final = b"x" * 1_000
"""A hundred megabytes while the store hangs."""
STALL_S: Final = 6.0
"""Longer than a lease."""
GROWTH_BYTES_MAX: Final = 32 << 20
"""The window's 4 096 messages are 4 MiB of this, and as much again in flight to the store."""
SETTLE_S: Final = 60.0


async def test_store_that_hangs_costs_ingest_no_memory_and_loses_nothing(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as url, store_process(tmp_path / "store") as (store, store_address):
        writer = await nats.connect(url)
        try:
            await writer.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=1))
            async with (
                ingest_process(store_address, url, tmp_path, BUCKET) as (ingest, _),
                open_channel(store_address) as channel,
            ):
                link = GrpcLink(channel)
                await publish(writer, 0, BEFORE)
                await copied(link, BEFORE)
                before = resident_bytes(ingest.pid)
                store.send_signal(signal.SIGSTOP)
                try:
                    highest = await peak_while_written(writer, ingest.pid)
                finally:
                    store.send_signal(signal.SIGCONT)
                assert highest - before < GROWTH_BYTES_MAX
                await copied(link, BEFORE + MEANWHILE)
                assert resident_bytes(ingest.pid) - before < GROWTH_BYTES_MAX
                keys = await keys_in(link)
        finally:
            await writer.close()
    assert keys == [b"k%d" % number for number in range(BEFORE + MEANWHILE)]


async def publish(writer: NatsClient, first: int, count: int) -> None:
    """Write so many keys, each once."""
    for number in range(first, first + count):
        await writer.publish(f"$KV.{BUCKET}.k{number}", VALUE)
        if number % 1_000 == 0:
            await writer.flush()
    await writer.flush()


async def peak_while_written(writer: NatsClient, pid: int) -> int:
    """Write at full speed while the store hangs; returns the peak of `pid`'s resident memory."""
    highest = 0
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(publish(writer, BEFORE, MEANWHILE))
        until = asyncio.get_running_loop().time() + STALL_S
        while not writing.done() or asyncio.get_running_loop().time() < until:
            highest = max(highest, resident_bytes(pid))
            await asyncio.sleep(0.05)
    return highest


async def copied(link: StoreLink, count: int) -> None:
    """Wait until so many records are stored."""
    async with asyncio.timeout(SETTLE_S):
        while True:
            if (await link.get_topic(BUCKET)).head_seq >= count:
                return
            await asyncio.sleep(0.1)


async def keys_in(link: StoreLink) -> list[bytes | None]:
    """Keys of all records, in order."""
    keys: list[bytes | None] = []
    while True:
        result = await link.read_records(BUCKET, after_seq=len(keys))
        for item in result.items:
            assert isinstance(item, Batch), item
            keys += item.keys()
        if result.caught_up:
            return keys
