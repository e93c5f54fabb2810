"""A real store exports and imports a million keys within its memory, and is killed in the middle of both."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import pytest

from eddyline.client.connect import Client, connect
from eddyline.core.errors import EddylineError, TopicNotEmpty
from eddyline.core.model.artifact import FoldExported, FoldImported
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from tests.support.cluster.process_figures import peak_bytes
from tests.support.cluster.processes import free_address, process, serving

pytestmark = pytest.mark.integration

KEYS: Final = 1_000_000
BATCH: Final = 10_000
GROWTH_BYTES_MAX: Final = 192 << 20
"""An export of 300 000 keys takes as much as one of 2 500 000: 90 to 110 MiB, most of it RocksDB's buffers."""
KILLS: Final = 6


def settings(address: str, path: Path) -> dict[str, str]:
    chosen = {"LISTEN": address, "DATA_DIR": str(path / "store"), "ARTIFACTS": str(path / "artifacts")}
    ours = {f"EDDYLINE_STORE_{name}": value for name, value in chosen.items()}
    return {**ours, "EDDYLINE_COMMON_STORE_ADDRESSES": address}


async def fill(client: Client, count: int) -> None:
    await client.create_topic("kv", Kind.KV)
    for start in range(0, count, BATCH):
        rows = [
            Record(op=Op.PUT, key=b"key/%012d" % number, data=b"%064d" % number)
            for number in range(start, start + BATCH)
        ]
        await client.append("kv", rows)


async def export(client: Client) -> FoldExported:
    async with aclosing(client.export_fold("kv")) as steps:
        done = [step async for step in steps][-1]
    assert isinstance(done, FoldExported)
    return done


async def import_(client: Client, topic: str) -> FoldImported:
    async with aclosing(client.import_fold(topic, from_topic="kv")) as steps:
        done = [step async for step in steps][-1]
    assert isinstance(done, FoldImported)
    return done


@pytest.mark.timeout(300)
async def test_a_million_keys_go_out_and_in_within_bounded_memory(tmp_path: Path) -> None:
    address = free_address()
    async with process("eddyline.store", **settings(address, tmp_path)) as store:
        await serving(address)
        async with connect(address) as client:
            await fill(client, KEYS)
            before = peak_bytes(store.pid)
            done = await export(client)
            assert done.artifact.entry_count == KEYS
            exported = peak_bytes(store.pid)
            assert exported - before <= GROWTH_BYTES_MAX
            await client.create_topic("copy", Kind.KV)
            assert (await import_(client, "copy")).state.fold_seq == KEYS
            assert peak_bytes(store.pid) - exported <= GROWTH_BYTES_MAX
            for number in (0, KEYS // 2, KEYS - 1):
                page = await client.get_topic("copy")
                assert page.head_seq == KEYS
                entry = await client.get("copy", b"key/%012d" % number)
                assert entry is not None
                assert entry.data == b"%064d" % number


@pytest.mark.timeout(300)
async def test_a_store_killed_in_the_middle_has_all_or_nothing(tmp_path: Path) -> None:
    address = free_address()
    environment = settings(address, tmp_path)
    count = 5 * BATCH
    for kill in range(KILLS):
        async with process("eddyline.store", **environment) as store:
            await serving(address)
            async with connect(address) as client:
                if not kill:
                    await fill(client, count)
                    await export(client)
                topic = f"copy{kill}"
                await client.create_topic(topic, Kind.KV)
                work = export(client) if kill % 3 == 2 else import_(client, topic)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(quietly(work))
                    await asyncio.sleep(0.15 * (kill + 1))
                    store.kill()
    async with process("eddyline.store", **environment):
        await serving(address)
        async with connect(address) as client:
            for artifact in await client.list_artifacts("kv"):
                assert artifact.entry_count == count
            for kill in range(KILLS):
                topic = f"copy{kill}"
                try:
                    await import_(client, topic)
                except TopicNotEmpty:
                    assert (await client.get_topic(topic)).head_seq == count
                assert [row.key async for row in client.range(topic, limit=3)] == [
                    b"key/%012d" % number for number in range(3)
                ]
                assert sum([1 async for _ in client.range(topic)]) == count


async def quietly(work: object) -> None:
    with suppress(EddylineError):
        await work  # type: ignore[misc]  # one of two coroutines
