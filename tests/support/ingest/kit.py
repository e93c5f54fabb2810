"""The kit of ingest's tests: a real NATS server, ingest replicas in the test's loop, and a store.

`source_kit` has sources of every kind and a real store in process; `bucket_kit` one bucket, copied into a store behind a
link that a test may cut. `running_role` runs a replica over any `StoreLink`; `served` does so over gRPC.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, Op, Record
from eddyline.core.runtime.clock import SystemClock, SystemHost, sleep
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.health import HealthBoard
from eddyline.core.server.server import make_server
from eddyline.ingest.config import INBOX_PREFIX, VERIFY_INTERVAL_MS, IngestSettings
from eddyline.ingest.copy.position import decode_position, revision_of
from eddyline.ingest.resync.stream_audit import AUDIT_INTERVAL_S
from eddyline.ingest.role import SERVICES, IngestRole, add_services
from eddyline.ingest.sources.creation import create_source
from tests.support.nats.server import running_nats
from tests.support.sim.cut_link import CutLink
from tests.support.store.real import real_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

    from eddyline.core.model.source import SourceInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.sources.sources_file import SourcesFile
    from eddyline.store.shard.shard import Shard
    from tests.support.nats.server import NatsServer

LEASE_MS: Final = 600
LEASE_MS_LONG: Final = 60_000
HEARTBEAT_MS: Final = 200
LOOK_AGAIN_S: Final = 0.005


class SourceKit:
    """A store, NATS, and replicas of ingest between them."""

    def __init__(self, url: str, client: Client, link: Shard) -> None:
        self.url = url
        self.client = client
        self.js: JetStreamContext = client.jetstream()
        self.link = link

    async def make_bucket(self, name: str, *, history: int = 64) -> KeyValue:
        """Create a bucket."""
        return await self.js.create_key_value(KeyValueConfig(bucket=name, history=history))

    async def make_copied_bucket(self, name: str, *, history: int = 64) -> KeyValue:
        """Create a bucket and source `s`, which copies it into topic `t`."""
        bucket = await self.make_bucket(name, history=history)
        await self.define(SourceDefinition("s", "t", name))
        return bucket

    async def define(self, definition: SourceDefinition) -> None:
        """Create a source and its topics."""
        await create_source(self.link, definition, TopicConfig())

    @asynccontextmanager
    async def ingest(
        self,
        *,
        holder: str = "one",
        lease_ms: int = LEASE_MS,
        audit_interval_s: float = AUDIT_INTERVAL_S,
        nats_domain: str = "",
        nats_inbox_prefix: str = INBOX_PREFIX,
        verify_interval_ms: int = VERIFY_INTERVAL_MS,
        verify_repair: bool = False,
        link: StoreLink | None = None,
        file: SourcesFile | None = None,
    ) -> AsyncIterator[IngestRole]:
        """Run an ingest replica, from start to stop. `link` = its own link to the store; the sources of `file` are created
        first."""
        settings = IngestSettings(
            nats_url=self.url,
            nats_domain=nats_domain,
            nats_inbox_prefix=nats_inbox_prefix,
            holder=holder,
            lease_ms=lease_ms,
            heartbeat_ms=HEARTBEAT_MS,
            verify_interval_ms=verify_interval_ms,
            verify_repair=verify_repair,
        )
        async with running_role(link or self.link, settings, audit_interval_s=audit_interval_s, file=file) as role:
            yield role

    @asynccontextmanager
    async def served(self, role: IngestRole) -> AsyncIterator[str]:
        """Serve the role's services, and yield their address."""
        server = make_server("127.0.0.1:0")
        add_services(server, role, link=self.link, common=CommonSettings(), clock=SystemClock(), host=SystemHost())
        address = await server.start(*SERVICES)
        try:
            yield address
        finally:
            await server.stop(0)

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10.0) -> None:
        """Poll until a condition holds."""
        async with asyncio.timeout(seconds):
            while True:
                held = holds()
                if held if isinstance(held, bool) else await held:
                    return
                await sleep(SystemClock(), LOOK_AGAIN_S)

    async def state(self, source: str) -> str:
        """State in the holder's last report."""
        return (await self.link.get_source(source)).report.state

    async def is_state(self, source: str, state: str, *, seconds: float = 10.0) -> None:
        """Wait until a holder reports the source in `state`."""

        async def holds() -> bool:
            info = await self.link.get_source(source)
            return info.report.state == state and bool(info.holder)

        try:
            await self.until(holds, seconds=seconds)
        except TimeoutError:
            info = await self.link.get_source(source)
            raise AssertionError(f"{source} is {info.report}, not {state}") from None

    async def revision(self, source: str) -> int:
        """Revision up to which everything is applied."""
        return revision_of(decode_position((await self.link.get_source(source)).position))

    async def reaches(self, source: str, revision: int) -> None:
        """Wait until everything up to `revision` is applied."""

        async def holds() -> bool:
            return await self.revision(source) >= revision

        await self.until(holds)

    async def move(self, source: str, position: bytes, batch: Batch | None = None) -> None:
        """Store another position, with records, as a holder of the newest lease would."""
        info = await self.link.get_source(source)
        fence = info.fence or (await self.link.acquire_lease(source, holder="test", lease_ms=LEASE_MS_LONG)).fence
        await self.link.apply_batch(source, fence=fence, previous=info.position, new=position, batch=batch)
        if not info.fence:
            await self.link.release_lease(source, fence=fence)

    async def items(self, topic: str) -> list[Record | Gap]:
        """Every record and gap of a topic's log."""
        found: list[Record | Gap] = []
        after_seq = 0
        while True:
            result = await self.link.read_records(topic, after_seq=after_seq, limit=1_000)
            for item in result.items:
                found += [item] if isinstance(item, Gap) else item.to_rows()
            if result.caught_up:
                return found
            after_seq = result.next_after_seq

    async def rows(self, topic: str) -> list[Record]:
        """Every record of a topic's log."""
        return [item for item in await self.items(topic) if isinstance(item, Record)]

    async def gaps(self, topic: str) -> list[tuple[int, int]]:
        """First and last lost revision of each gap."""
        return [(item.source_first, item.source_last) for item in await self.items(topic) if isinstance(item, Gap)]

    async def entries(self, topic: str) -> dict[bytes, Record]:
        """The fold's entries."""
        found: dict[bytes, Record] = {}
        async for page in self.link.range_entries(topic):
            if page.batch is not None:
                found |= {row.key or b"": row for row in page.batch.to_rows()}
        return found

    async def fold(self, topic: str) -> dict[bytes, bytes | None]:
        """The live values."""
        return {key: row.data for key, row in (await self.entries(topic)).items()}


class BucketKit:
    """One bucket's name, a writer of it, and the store it is copied into, under source and topic of the same name.

    `link` is ingest's link to the store, which a test may cut; assertions read `store` itself.
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
        """Set after the writer lost its connection and has another one."""

    async def make_bucket(
        self, *, history: int = 64, ttl: float | None = None, limit_marker_ttl: float | None = None, replicas: int = 1
    ) -> KeyValue:
        """Create the bucket."""
        config = KeyValueConfig(
            bucket=self.bucket, history=history, ttl=ttl, limit_marker_ttl=limit_marker_ttl, replicas=replicas
        )
        return await self.js.create_key_value(config)

    async def make_copied_bucket(
        self, *, history: int = 64, ttl: float | None = None, limit_marker_ttl: float | None = None
    ) -> KeyValue:
        """Create the bucket and its source."""
        bucket = await self.make_bucket(history=history, ttl=ttl, limit_marker_ttl=limit_marker_ttl)
        await self.make_source()
        return bucket

    async def make_source(self) -> None:
        """Create the source and its topic."""
        await self._sources.define(SourceDefinition(name=self.bucket, topic=self.bucket, bucket=self.bucket))

    async def make_sources(self, count: int) -> None:
        """Create so many more sources of the bucket, each with a topic of its own."""
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
        """Run an ingest replica, from start to stop."""
        self.link.reports.clear()
        self._sources.url = self.url
        async with self._sources.ingest(
            holder=holder, lease_ms=lease_ms, audit_interval_s=audit_interval_s, nats_domain=nats_domain, link=self.link
        ) as role:
            yield role

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10.0) -> None:
        """Poll until a condition holds."""
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
        """Wait until the holder of the newest lease reports the source in `state`."""

        async def holds() -> bool:
            source = await self.source()
            said = [reported for reported in self.link.reports if reported.source == self.bucket]
            return bool(said) and said[-1].fence == source.fence and source.report.state == state

        await self.until(holds, seconds=seconds)

    def states(self) -> list[str]:
        """States reported since the last replica was started, without repeats."""
        return [reported.report.state for reported in self.link.reports if reported.source == self.bucket]

    async def move(self, position: bytes, *, source: str = "") -> None:
        """Store another position, as a holder of the newest lease would."""
        await self._sources.move(source or self.bucket, position)

    async def consumers(self) -> list[str]:
        """Names of the stream's consumers, from the server."""
        return sorted(info.name for info in await self.js.consumers_info(f"KV_{self.bucket}"))

    async def source(self) -> SourceInfo:
        """The source."""
        return await self.store.get_source(self.bucket)

    async def revision(self) -> int:
        """Revision of the stored position."""
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
        """Every gap of the log."""
        return [item for item in await self._sources.items(self.bucket) if isinstance(item, Gap)]


@asynccontextmanager
async def source_kit(
    url: str, directory: Path, *, reconnected: asyncio.Event | None = None
) -> AsyncIterator[SourceKit]:
    """A kit for one test, see `nats_writer`."""
    async with (
        nats_writer(url, reconnected=reconnected) as client,
        real_store(directory / "store", clock=SystemClock()) as link,
    ):
        yield SourceKit(url, client, link)


@asynccontextmanager
async def bucket_kit(url: str, directory: Path, bucket: str) -> AsyncIterator[BucketKit]:
    """A kit for one test; `url` may name several servers with commas."""
    reconnected = asyncio.Event()
    async with source_kit(url, directory, reconnected=reconnected) as sources:
        yield BucketKit(sources, bucket, reconnected)


@asynccontextmanager
async def breakable_kit(folder: Path, *, config: str = "") -> AsyncIterator[tuple[NatsServer, BucketKit]]:
    """A kit for bucket `b` with a server of its own, which a test may break."""
    with running_nats(folder, config=config) as server:
        async with bucket_kit(server.url, folder, "b") as kit:
            yield server, kit


@asynccontextmanager
async def running_role(
    link: StoreLink,
    settings: IngestSettings,
    *,
    common: CommonSettings | None = None,
    audit_interval_s: float = AUDIT_INTERVAL_S,
    file: SourcesFile | None = None,
) -> AsyncIterator[IngestRole]:
    """Run an ingest replica, from start to stop, once the sources of `file` exist."""
    role = IngestRole(
        link,
        settings=settings,
        common=common or CommonSettings(),
        clock=SystemClock(),
        rng=Random(1),
        host=SystemHost(),
        health=HealthBoard(),
        audit_interval_s=audit_interval_s,
        file=file,
    )
    await role.ensure()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(role.run())
        try:
            yield role
        finally:
            running.cancel()


@asynccontextmanager
async def nats_writer(url: str, *, reconnected: asyncio.Event | None = None) -> AsyncIterator[Client]:
    """A client that never gives up; `url` may name several servers with commas. `reconnected` is set after it lost its
    connection and has another one."""

    async def note() -> None:
        if reconnected is not None:
            reconnected.set()

    client = await nats.connect(
        url.split(","),
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.05,
        connect_timeout=2,
        ping_interval=1,  # a server that hangs is left within seconds
        reconnected_cb=note,
    )
    try:
        yield client
    finally:
        await client.close()
