"""Random lives of a source, by seed: whatever happens to bucket, server, store and replica, the fold ends equal to the
bucket, no revision is applied twice or out of order, and none that was readable is missing."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING

import pytest
from nats.js.errors import KeyNotFoundError

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import Op
from tests.support.ingest.kit import breakable_kit
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from pathlib import Path

    from nats.js.kv import KeyValue

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit

STEPS = 100
KEYS = 8
SHORT = "short."
STEPS_BY_WEIGHT = {
    "put": 30,
    "burst": 6,
    "delete": 8,
    "purge": 5,
    "vanish": 4,
    "markers": 2,
    "expire": 4,
    "keep": 3,
    "rollup": 3,
    "rollup_all": 1,
    "purge_all": 1,
    "toggle": 6,
    "blink": 3,
    "lose": 4,
    "drop": 3,
    "restart": 1,
}


class Life:
    """One seeded run."""

    def __init__(self, kit: BucketKit, bucket: KeyValue, server: NatsServer, seed: int) -> None:
        self.kit = kit
        self.bucket = bucket
        self.server = server
        self.random = Random(seed)
        self.stack = AsyncExitStack()
        self.role: IngestRole | None = None
        self.last = 0

    def key(self) -> str:
        """Return a random key."""
        return f"k{self.random.randrange(KEYS)}"

    async def step(self) -> None:
        """Take one random step."""
        kit = self.kit
        match self.random.choices(
            tuple(STEPS_BY_WEIGHT),
            tuple(STEPS_BY_WEIGHT.values()),
        )[0]:
            case "put":
                self.last = await self.bucket.put(self.key(), self.random.randbytes(self.random.randrange(20)))
            case "burst":
                for number in range(self.random.randrange(1, 300)):
                    await kit.client.publish(f"$KV.{kit.bucket}.{self.key()}", b"%d" % number)
                await kit.client.flush()
            case "delete":
                await self.bucket.delete(self.key())
            case "purge":
                await self.bucket.purge(self.key())
            case "vanish":
                await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.{self.key()}")
            case "markers":
                key = self.key()
                await self.bucket.delete(key)
                await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.{key}")
            case "expire":
                # Keys of their own: where a younger value expires, NATS shows the older one again.
                await kit.js.publish(f"$KV.{kit.bucket}.{SHORT}{self.random.randrange(KEYS)}", b"short", msg_ttl=1.0)
            case "keep":
                kept = self.random.randrange(1, 3)
                await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.{self.key()}", keep=kept)
            case "rollup" | "rollup_all" as step:
                headers = {"Nats-Rollup": "sub" if step == "rollup" else "all"}
                await kit.js.publish(f"$KV.{kit.bucket}.{self.key()}", b"rolled up", headers=headers)
            case "purge_all":
                await kit.js.purge_stream(f"KV_{kit.bucket}")
            case "toggle":
                await self.toggle()
            case "blink":
                kit.link.away = not kit.link.away
            case "lose":
                kit.link.answers_to_lose = 1
            case "drop":
                for name in await kit.consumers():
                    await kit.js.delete_consumer(f"KV_{kit.bucket}", name)
            case "restart":
                kit.reconnected.clear()
                self.server.kill()
                self.server.start()
                await asyncio.wait_for(kit.reconnected.wait(), 10)

    async def toggle(self) -> None:
        """Start or stop the replica."""
        if self.role is None:
            self.role = await self.stack.enter_async_context(self.kit.ingest())
        else:
            await self.stack.aclose()
            self.role = None


async def settled(life: Life) -> IngestRole:
    """Run a replica until all changes are applied; it starts behind the stream's end, so it compares key sets."""
    kit = life.kit
    await life.stack.aclose()
    kit.link.away = False
    kit.link.answers_to_lose = 0
    while (await kit.js.stream_info(f"KV_{kit.bucket}", subjects_filter=f"$KV.{kit.bucket}.{SHORT}>")).state.subjects:
        await kit.client.flush()
    last = await life.bucket.put("end", b"")
    role = await life.stack.enter_async_context(kit.ingest())
    await kit.reaches(last)
    await kit.is_state("LIVE")
    return role


async def check_order(kit: BucketKit) -> None:
    """Check that records of messages are in the order of their revisions, each once."""
    revisions = [int.from_bytes(record.version, "big") for record in await kit.records() if record.source_ts_ns]
    assert all(first < second for first, second in itertools.pairwise(revisions))


@pytest.mark.parametrize("seed", range(6))
async def test_fold_ends_as_the_bucket(seed: int, tmp_path: Path) -> None:
    async with breakable_kit(tmp_path) as (server, kit):
        bucket = await kit.make_bucket(history=(1, 3, 64)[seed % 3], limit_marker_ttl=1 if seed % 2 else None)
        life = Life(kit, bucket, server, seed)
        await kit.make_source()
        for _ in range(STEPS):
            await life.step()
        role = await settled(life)
        definition = SourceDefinition(name="b", topic="b", bucket="b")
        comparison = await role.comparer.compare(definition, name="compare", settle_s=2, limit=10)
        assert comparison.differences == (), f"seed {seed}"
        assert comparison.fold_count == comparison.bucket_count
        await check_order(kit)
        assert len(await kit.consumers()) == 1
        # Every live key of the fold is the bucket's newest value.
        for key, record in (await kit.entries()).items():
            entry = await life.bucket.get(key.decode())
            assert (entry.value or b"") == record.data
        with pytest.raises(KeyNotFoundError):
            await life.bucket.get("never")
        assert all(record.op != Op.APPEND for record in await kit.records())
        await life.stack.aclose()
        assert await kit.consumers() == []
