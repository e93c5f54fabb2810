"""A new store begins with an artifact: its source follows NATS from the artifact's position."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.fs import RealFs
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.health import HealthBoard
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.copy.position import decode_position, revision_of
from eddyline.ingest.role import IngestRole
from eddyline.store.artifacts.local_store import LocalArtifactStore
from tests.support.ingest.kit import HEARTBEAT_MS
from tests.support.store.artifacts import exported, fold_of, imported
from tests.support.store.real import real_store, threaded
from tests.support.store.simulated import kv_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from eddyline.store.shard.shard import Shard
    from tests.support.ingest.kit import BucketKit


async def while_ingesting(link: Shard, kit: BucketKit, work: Callable[[], Awaitable[None]]) -> None:
    """Copy while the work runs."""
    role = IngestRole(
        link,
        settings=IngestSettings(nats_url=kit.url, holder="one", lease_ms=600, heartbeat_ms=HEARTBEAT_MS),
        common=CommonSettings(),
        clock=SystemClock(),
        rng=Random(1),
        host=SystemHost(),
        health=HealthBoard(),
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(role.run())
        try:
            await work()
        finally:
            running.cancel()


async def values(link: Shard) -> dict[bytes | None, bytes | None]:
    return {row.key: row.data for row in await fold_of(link)}


async def test_source_of_a_new_store_goes_on_from_the_artifact(kit: BucketKit, tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    bucket = await kit.make_bucket(history=1)
    for number in range(20):
        await bucket.put(f"k{number % 7}", b"%d" % number)

    async with real_store(tmp_path / "one", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", kit.bucket))

        async def copy() -> None:
            assert await link.wait_seq("kv", 7, wait_s=30) >= 7
            await is_copied(link, kit)

        await while_ingesting(link, kit, copy)
        await exported(link)
        old = await values(link)

    await bucket.put("k1", b"later")
    await bucket.delete("k2")
    await bucket.put("new", b"1")

    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("mine", "kv", kit.bucket))
        done = await imported(link)
        assert done.position_set
        assert await values(link) == old
        begin_seq = done.state.fold_seq

        async def follow() -> None:
            assert await link.wait_seq("kv", begin_seq + 3, wait_s=30) == begin_seq + 3

        await while_ingesting(link, kit, follow)
        expected = {**old, b"k1": b"later", b"new": b"1"}
        del expected[b"k2"]
        assert await values(link) == expected
        items = (await link.read_records("kv", after_seq=0)).items
        assert items[0] == Gap(1, begin_seq, GapReason.COMPACTED)
        assert not any(isinstance(item, Gap) for item in items[1:]), "nothing was copied again, and nothing is lost"


async def is_copied(link: Shard, kit: BucketKit) -> None:
    """True = the fold has every live key of the bucket at its last revision."""
    state = (await kit.js.stream_info(f"KV_{kit.bucket}")).state
    live = [row.version for row in await fold_of(link)]
    assert int.from_bytes(max(live), "big") == state.last_seq


async def test_new_source_begins_with_the_newest_artifact(kit: BucketKit, tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    bucket = await kit.make_bucket(history=1)
    for number in range(20):
        await bucket.put(f"k{number % 7}", b"%d" % number)
    await copied_and_exported(kit, tmp_path / "one", artifact_store)
    await bucket.put("k1", b"later")
    last = await bucket.put("new", b"1")

    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", kit.bucket))

        async def follow() -> None:
            while revision_of(decode_position((await link.get_source("s")).position)) < last:
                await link.wait_seq("kv", (await link.get_topic("kv")).head_seq + 1, wait_s=0.2)

        await while_ingesting(link, kit, follow)
        items = (await link.read_records("kv", after_seq=0)).items
        assert isinstance(items[0], Gap)
        assert items[0].reason is GapReason.COMPACTED
        assert sum(item.count for item in items[1:] if isinstance(item, Batch)) == 2, (
            "what the artifact has is not read"
        )
        live = await values(link)
        assert (live[b"k1"], live[b"new"], len(live)) == (b"later", b"1", 8)


async def test_artifact_of_a_recreated_bucket_is_skipped(kit: BucketKit, tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    await (await kit.make_bucket()).put("old", b"1")
    await copied_and_exported(kit, tmp_path / "one", artifact_store)
    await kit.js.delete_key_value(kit.bucket)
    last = await (await kit.make_bucket()).put("new", b"1")

    async with real_store(tmp_path / "two", workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", kit.bucket))

        async def follow() -> None:
            while revision_of(decode_position((await link.get_source("s")).position)) < last:
                await link.wait_seq("kv", 1, wait_s=0.2)

        await while_ingesting(link, kit, follow)
        assert await values(link) == {b"new": b"1"}


async def copied_and_exported(kit: BucketKit, data: Path, artifact_store: LocalArtifactStore) -> None:
    """Copy the bucket into a store of its own, and export that."""
    async with real_store(data, workers=threaded, artifact_store=artifact_store) as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", kit.bucket))

        async def copy() -> None:
            last = (await kit.js.stream_info(f"KV_{kit.bucket}")).state.last_seq
            while revision_of(decode_position((await link.get_source("s")).position)) < last:
                await link.wait_seq("kv", (await link.get_topic("kv")).head_seq + 1, wait_s=0.2)

        await while_ingesting(link, kit, copy)
        await exported(link)
