"""A topic that the Spark writer's own classes create and fill, without Spark."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from eddyline.client.connect import connect
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from eddyline.core.runtime.clock import SystemClock
from eddyline.spark.writer.partition import PartitionWriter, Target
from eddyline.spark.writer.store_channel import open_store_channel

if TYPE_CHECKING:
    from eddyline.core.model.topic import TopicInfo
    from eddyline.spark.writer.partition import RowSource, WriteResult


class TopicAt(NamedTuple):
    """A topic of a store."""

    address: str
    topic: str
    kind: Kind = Kind.LOG

    def make(self) -> TopicInfo:
        """Create it."""
        with open_store_channel([self.address], self.topic) as link:
            return link.create_topic(self.kind)

    def info(self) -> TopicInfo:
        """As it is now."""
        with open_store_channel([self.address], self.topic) as link:
            return link.get_topic()

    async def records(self) -> list[Record]:
        """All it holds."""
        async with connect(self.address) as client:
            return [record async for record in client.read(self.topic) if isinstance(record, Record)]

    async def data(self) -> list[bytes]:
        """The data of its records, in order."""
        return [record.data or b"" for record in await self.records()]

    def write(
        self, rows: RowSource, *, writer: str = "w", run: int = 0, epoch: int = 0, patience_s: float = 30.0
    ) -> WriteResult:
        """Write rows as one partition."""
        target = Target((self.address,), self.topic, self.kind, epoch, writer, run, patience_s)
        return PartitionWriter(rows, target, clock=SystemClock(), random_source=random.Random(7)).write()
