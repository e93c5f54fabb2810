"""A writer of a bucket at a steady rate that knows which revisions were acknowledged, whatever happens to the servers."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import nats
import nats.errors
import nats.js.errors
from nats.js.api import KeyValueConfig

from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.ingest.kit import BucketKit

KEYS: Final = 100
"""A key comes again after 100 writes: 64 revisions of it last 6 400, more than a test writes."""
DELETES: Final = 0.05
PUT_TIMEOUT_S: Final = 1.0
PAUSE_S: Final = 0.05
LAST_PUT_S: Final = 20.0

_FAILURES: Final = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError, asyncio.InvalidStateError)


class BucketLoad:
    """Puts and deletes keys of a kit's bucket. `acknowledged` by revision: key and value, None = deleted."""

    def __init__(self, kit: BucketKit, *, rate: float = 200.0) -> None:
        self.acknowledged: dict[int, tuple[str, bytes | None]] = {}
        self._at = kit
        self._js = kit.client.jetstream(timeout=PUT_TIMEOUT_S)
        self._pause_s = 1 / rate
        self._random = Random(1)
        self._number = 0
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Write until the stop event: the client may swallow a cancellation."""
        while not self.stop.is_set():
            if not await self._write():
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(self._pause_s)

    async def writes(self, count: int, *, seconds: float = LAST_PUT_S) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.perf_counter() + seconds
        while len(self.acknowledged) < wanted:
            assert time.perf_counter() < deadline, f"{len(self.acknowledged)} of {wanted} writes were acknowledged"
            await asyncio.sleep(0.01)

    async def last(self) -> int:
        """Write once more, until it is acknowledged; returns its revision."""
        deadline = time.perf_counter() + LAST_PUT_S
        while not (revision := await self._write()):
            assert time.perf_counter() < deadline, "nothing is acknowledged any more"
            await asyncio.sleep(PAUSE_S)
        return revision

    async def _write(self) -> int:
        """Make one write; returns its revision, 0 = not acknowledged, perhaps stored."""
        self._number += 1
        key = f"k{self._number % KEYS}"
        deletes = self._random.random() < DELETES
        value = None if deletes else b"%d" % self._number
        headers = {"KV-Operation": "DEL"} if deletes else None
        try:
            answer = await self._js.publish(f"$KV.{self._at.bucket}.{key}", value or b"", headers=headers)
        except _FAILURES:
            return 0
        self.acknowledged[answer.seq] = (key, value)
        return answer.seq


@asynccontextmanager
async def loaded(kit: BucketKit, *, rate: float = 200.0) -> AsyncIterator[BucketLoad]:
    """Run a writer while the body runs."""
    load = BucketLoad(kit, rate=rate)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        try:
            yield load
        finally:
            load.stop.set()


async def check_copied_once(kit: BucketKit, load: BucketLoad) -> None:
    """Check that each acknowledged revision is there once, in order, as it was written."""
    copied = [record for record in await kit.records() if record.source_ts_ns]
    revisions = [int.from_bytes(record.version, "big") for record in copied]
    assert revisions == sorted(set(revisions)), "revisions came again or out of order"
    stored = {
        revision: ((record.key or b"").decode(), record.data if record.op == Op.PUT else None)
        for revision, record in zip(revisions, copied, strict=True)
    }
    missing = sorted(load.acknowledged.keys() - stored.keys())
    assert not missing, f"{len(missing)} of {len(load.acknowledged)} acknowledged revisions are missing: {missing[:10]}"
    assert {revision: stored[revision] for revision in load.acknowledged} == load.acknowledged


async def fill_bucket(url: str, bucket: str, count: int) -> None:
    """Create a bucket with so many keys."""
    client = await nats.connect(url)
    try:
        values = await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=1))
        for number in range(count):
            await values.put(f"k{number}", b"v")
    finally:
        await client.close()
