"""Ingest in the test's loop: a real NATS server, the role's own parts, and a store in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.clock import SystemClock, SystemHost
from eddyline.core.health import HealthBoard
from eddyline.core.record import Op
from eddyline.core.settings import CommonSettings
from eddyline.core.source import SourceDefinition
from eddyline.core.topic import Kind, TopicConfig
from eddyline.ingest.audit import LOOK_S
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.creation import ensure_topic
from eddyline.ingest.position import decode_position, revision_of
from eddyline.ingest.role import IngestRole
from tests.support.memory_link import MemoryLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

    from eddyline.core.record import Record
    from tests.support.memory_link import MemorySource, MemoryTopic

LEASE_MS: Final = 600
HEARTBEAT_MS: Final = 200


class Kit:
    """One bucket's name, a writer of it, and the store it is copied into, under source and topic of the same name."""

    def __init__(self, url: str, client: Client, bucket: str) -> None:
        self.url = url
        self.client = client
        self.js: JetStreamContext = client.jetstream()
        self.bucket = bucket
        self.link = MemoryLink(SystemClock())
        self.reconnected = asyncio.Event()
        """The writer lost its connection and has another one."""

    @property
    def topic(self) -> MemoryTopic:
        """The topic."""
        return self.link.topics[self.bucket]

    @property
    def source(self) -> MemorySource:
        """The source."""
        return self.link.sources[self.bucket]

    @property
    def revision(self) -> int:
        """Revision that the stored position says."""
        return revision_of(decode_position(self.source.position))

    @property
    def records(self) -> list[Record]:
        """Every record, gaps too."""
        return self.topic.records

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
        await ensure_topic(self.link, self.bucket, Kind.KV, TopicConfig())
        await self.link.put_source(SourceDefinition(name=self.bucket, topic=self.bucket, bucket=self.bucket))

    async def make_sources(self, count: int) -> None:
        """So many more sources of the bucket, each with a topic of its own."""
        for number in range(count):
            name = f"{self.bucket}.{number}"
            await ensure_topic(self.link, name, Kind.KV, TopicConfig())
            await self.link.put_source(SourceDefinition(name=name, topic=name, bucket=self.bucket))

    @asynccontextmanager
    async def ingest(
        self, *, holder: str = "one", lease_ms: int = LEASE_MS, look_s: float = LOOK_S, nats_domain: str = ""
    ) -> AsyncIterator[IngestRole]:
        """An ingest replica, from start to stop."""
        settings = IngestSettings(
            nats_url=self.url, nats_domain=nats_domain, holder=holder, lease_ms=lease_ms, heartbeat_ms=HEARTBEAT_MS
        )
        role = IngestRole(
            self.link,
            settings=settings,
            common=CommonSettings(),
            clock=SystemClock(),
            rng=Random(1),
            host=SystemHost(),
            health=HealthBoard(),
            look_s=look_s,
        )
        for source in self.link.sources.values():
            source.reported_fence = 0
        async with asyncio.TaskGroup() as group:
            running = group.create_task(role.run())
            try:
                yield role
            finally:
                running.cancel()

    async def reaches(self, revision: int) -> None:
        """Wait until everything up to `revision` is applied."""
        await self.link.until(lambda: self.revision >= revision)

    async def is_state(self, state: str, *, seconds: float = 10.0) -> None:
        """Wait until the holder of the newest lease says that the source is in `state`."""
        source = self.source
        await self.link.until(
            lambda: source.report.state == state and source.reported_fence == source.fence > 0, seconds=seconds
        )

    async def consumers(self) -> list[str]:
        """Names of the stream's consumers, by the server."""
        return sorted(info.name for info in await self.js.consumers_info(f"KV_{self.bucket}"))

    def fold(self) -> dict[str, bytes | None]:
        """The live values."""
        return {key.decode(): record.data for key, record in self.topic.fold.items()}

    def ops(self) -> list[tuple[int, bytes | None]]:
        """Op and key of every record."""
        return [(record.op, record.key) for record in self.records]

    def gaps(self) -> list[Record]:
        """The gap records."""
        return [record for record in self.records if record.op == Op.GAP]


@asynccontextmanager
async def kit(url: str, bucket: str) -> AsyncIterator[Kit]:
    """A kit for one test; `url` may name several servers with commas."""
    reconnected: list[asyncio.Event] = []

    async def note() -> None:
        for event in reconnected:
            event.set()

    client = await nats.connect(
        url.split(","),
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.05,
        connect_timeout=2,
        ping_interval=1,  # a server that hangs is left within seconds
        reconnected_cb=note,
    )
    try:
        made = Kit(url, client, bucket)
        reconnected.append(made.reconnected)
        yield made
    finally:
        await client.close()
