"""Sources of every kind in the test's loop: a real NATS server, the role's own parts, a real store in process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import nats

from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.record import Gap, Record
from eddyline.core.runtime.clock import SystemClock, SystemHost, sleep
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.health import HealthBoard
from eddyline.core.server.server import make_server
from eddyline.ingest.config import INBOX_PREFIX, VERIFY_INTERVAL_MS, IngestSettings
from eddyline.ingest.copy.position import decode_position, revision_of
from eddyline.ingest.resync.stream_audit import AUDIT_INTERVAL_S
from eddyline.ingest.role import SERVICES, IngestRole, add_services
from eddyline.ingest.sources.creation import create_source
from tests.support.store.real import real_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js.client import JetStreamContext

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.sources.sources_file import SourcesFile
    from eddyline.store.shard.shard import Shard

LEASE_MS: Final = 600
HEARTBEAT_MS: Final = 200
LOOK_AGAIN_S: Final = 0.005


class SourceKit:
    """A store, NATS, and replicas of ingest between them."""

    def __init__(self, url: str, client: Client, link: Shard) -> None:
        self.url = url
        self.client = client
        self.js: JetStreamContext = client.jetstream()
        self.link = link

    async def define(self, definition: SourceDefinition) -> None:
        """Make a source and its topics."""
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
        """An ingest replica, from start to stop; `link` = its own way to the store; `file` is brought in step first."""
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
        role = IngestRole(
            link or self.link,
            settings=settings,
            common=CommonSettings(),
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
    async def served(self, role: IngestRole) -> AsyncIterator[str]:
        """The role's services at an address."""
        server = make_server("127.0.0.1:0")
        add_services(server, role, link=self.link, common=CommonSettings(), clock=SystemClock(), host=SystemHost())
        address = await server.start(*SERVICES)
        try:
            yield address
        finally:
            await server.stop(0)

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10.0) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(seconds):
            while True:
                held = holds()
                if held if isinstance(held, bool) else await held:
                    return
                await sleep(SystemClock(), LOOK_AGAIN_S)

    async def state(self, source: str) -> str:
        """What the holder last said."""
        return (await self.link.get_source(source)).report.state

    async def is_state(self, source: str, state: str, *, seconds: float = 10.0) -> None:
        """Wait until a holder says that the source is in `state`."""

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
async def nats_writer(url: str, *, reconnected: asyncio.Event | None = None) -> AsyncIterator[Client]:
    """A client that never gives up; `url` may name several servers with commas. `reconnected` is set where it lost its
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
