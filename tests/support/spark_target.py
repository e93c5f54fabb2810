"""A store's process to write to, and what its topics hold; used by tests that block, so everything here does too."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from eddyline.client.connect import connect
from eddyline.core.clock import SystemClock
from eddyline.core.record import Record
from eddyline.core.topic import Kind
from eddyline.spark.write_link import open_link
from eddyline.spark.write_partition import PartitionWriter, Target
from tests.support.processes import free_address, process, serving, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from eddyline.core.topic import TopicInfo
    from eddyline.spark.write_partition import Rows, Written


class TopicAt(NamedTuple):
    """A topic of a store."""

    address: str
    topic: str
    kind: Kind = Kind.LOG

    def make(self) -> TopicInfo:
        """Create it."""
        with open_link([self.address], self.topic) as link:
            return link.create_topic(self.kind)

    def info(self) -> TopicInfo:
        """As it is now."""
        with open_link([self.address], self.topic) as link:
            return link.get_topic()

    async def records(self) -> list[Record]:
        """All it holds."""
        async with connect(self.address) as client:
            return [record async for record in client.read(self.topic) if isinstance(record, Record)]

    async def data(self) -> list[bytes]:
        """What its records carry, in order."""
        return [record.data or b"" for record in await self.records()]

    def write(
        self, rows: Rows, *, writer: str = "w", run: int = 0, epoch: int = 0, patience_s: float = 30.0
    ) -> Written:
        """Write rows as one partition."""
        target = Target((self.address,), self.topic, self.kind, epoch, writer, run, patience_s)
        return PartitionWriter(rows, target, clock=SystemClock(), random_source=random.Random(7)).write()


@contextmanager
def store_for_many(directory: Path) -> Iterator[str]:
    """A store for a session's tests, each with a topic of its own; its address."""
    with asyncio.Runner() as runner:
        store = store_process(directory / "store")
        _, address = runner.run(store.__aenter__())
        try:
            yield address
        finally:
            runner.run(store.__aexit__(None, None, None))


class KillableStore:
    """A store that is killed and comes back, at the same address."""

    def __init__(self, directory: Path) -> None:
        self.address = free_address()
        self._settings = {
            "EDDYLINE_STORE_LISTEN": self.address,
            "EDDYLINE_STORE_DATA_DIR": str(directory / "store"),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Its process, once it serves."""
        async with process("eddyline.store", **self._settings) as started:
            await serving(self.address)
            yield started
