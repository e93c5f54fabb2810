"""Ingest with one bucket in the test's loop: a real NATS server, the role's own parts, a real store behind a wire to cut."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from nats.js.api import KeyValueConfig

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, Op, Record
from eddyline.ingest.resync.stream_audit import AUDIT_INTERVAL_S
from tests.support.ingest.sources import LEASE_MS, source_kit
from tests.support.sim.cut_link import CutLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

    from eddyline.core.model.source import SourceInfo
    from eddyline.ingest.role import IngestRole
    from eddyline.store.shard.shard import Shard
    from tests.support.ingest.sources import SourceKit

LEASE_MS_LONG: Final = 60_000


class Kit:
    """One bucket's name, a writer of it, and the store it is copied into, under source and topic of the same name.

    `link` is ingest's way to the store, which a test may cut; what is asserted is read from `store` itself.
    """

    def __init__(self, sources: SourceKit, bucket: str, reconnected: asyncio.Event) -> None:
        self._sources = sources
        self.url = sources.url
        self.client: Client = sources.client
        self.js: JetStreamContext = sources.js
        self.bucket = bucket
        self.store: Shard = sources.link
        self.link = CutLink(sources.link)
        self.reconnected = reconnected
        """The writer lost its connection and has another one."""

    async def make_bucket(
        self, *, history: int = 64, ttl: float | None = None, limit_marker_ttl: float | None = None, replicas: int = 1
    ) -> KeyValue:
        """The bucket."""
        config = KeyValueConfig(
            bucket=self.bucket, history=history, ttl=ttl, limit_marker_ttl=limit_marker_ttl, replicas=replicas
        )
        return await self.js.create_key_value(config)

    async def make_source(self) -> None:
        """The source and its topic."""
        await self._sources.define(SourceDefinition(name=self.bucket, topic=self.bucket, bucket=self.bucket))

    async def make_sources(self, count: int) -> None:
        """So many more sources of the bucket, each with a topic of its own."""
        for number in range(count):
            name = f"{self.bucket}.{number}"
            await self._sources.define(SourceDefinition(name=name, topic=name, bucket=self.bucket))

    @asynccontextmanager
    async def ingest(
        self,
        *,
        holder: str = "one",
        lease_ms: int = LEASE_MS,
        audit_interval_s: float = AUDIT_INTERVAL_S,
        nats_domain: str = "",
    ) -> AsyncIterator[IngestRole]:
        """An ingest replica, from start to stop."""
        self.link.reports.clear()
        self._sources.url = self.url
        async with self._sources.ingest(
            holder=holder, lease_ms=lease_ms, audit_interval_s=audit_interval_s, nats_domain=nats_domain, link=self.link
        ) as role:
            yield role

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10.0) -> None:
        """Wait until something holds."""
        try:
            await self._sources.until(holds, seconds=seconds)
        except TimeoutError:
            raise AssertionError(f"did not come about: {await self.store.list_sources()}") from None

    async def reaches(self, revision: int) -> None:
        """Wait until everything up to `revision` is applied."""
        await self.until(lambda: self.is_at(revision))

    async def is_at(self, revision: int) -> bool:
        """True = everything up to `revision` is applied."""
        return await self.revision() >= revision

    async def is_state(self, state: str, *, seconds: float = 10.0) -> None:
        """Wait until the holder of the newest lease says that the source is in `state`."""

        async def holds() -> bool:
            source = await self.source()
            said = [reported for reported in self.link.reports if reported.source == self.bucket]
            return bool(said) and said[-1].fence == source.fence and source.report.state == state

        await self.until(holds, seconds=seconds)

    def states(self) -> list[str]:
        """What holders said of the source since the last replica was started, without repeats."""
        return [reported.report.state for reported in self.link.reports if reported.source == self.bucket]

    async def move(self, position: bytes, *, source: str = "") -> None:
        """Have the store keep another position, as if somebody with the newest lease had said so."""
        name = source or self.bucket
        info = await self.store.get_source(name)
        fence = info.fence or (await self.store.acquire_lease(name, holder="test", lease_ms=LEASE_MS_LONG)).fence
        await self.store.apply_batch(name, fence=fence, previous=info.position, new=position, batch=None)
        if not info.fence:
            await self.store.release_lease(name, fence=fence)

    async def consumers(self) -> list[str]:
        """Names of the stream's consumers, by the server."""
        return sorted(info.name for info in await self.js.consumers_info(f"KV_{self.bucket}"))

    async def source(self) -> SourceInfo:
        """The source."""
        return await self.store.get_source(self.bucket)

    async def revision(self) -> int:
        """Revision that the stored position says."""
        return await self._sources.revision(self.bucket)

    async def records(self) -> list[Record]:
        """Every record, gaps too."""
        items = await self._sources.items(self.bucket)
        return [
            Record(op=Op.GAP, seq=item.seq, data=encode_gap(item)) if isinstance(item, Gap) else item for item in items
        ]

    async def fold(self) -> dict[str, bytes | None]:
        """The live values."""
        return {key.decode(): record.data for key, record in (await self.entries()).items()}

    async def entries(self) -> dict[bytes, Record]:
        """The live entries."""
        return await self._sources.entries(self.bucket)

    async def ops(self) -> list[tuple[int, bytes | None]]:
        """Op and key of every record."""
        return [(record.op, record.key) for record in await self.records()]

    async def gaps(self) -> list[Gap]:
        """What was told as lost."""
        return [item for item in await self._sources.items(self.bucket) if isinstance(item, Gap)]


@asynccontextmanager
async def kit(url: str, directory: Path, bucket: str) -> AsyncIterator[Kit]:
    """A kit for one test; `url` may name several servers with commas."""
    reconnected = asyncio.Event()
    async with source_kit(url, directory, reconnected=reconnected) as sources:
        yield Kit(sources, bucket, reconnected)
