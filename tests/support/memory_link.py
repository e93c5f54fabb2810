"""A store in memory: `StoreLink` for one loop, with positions and fences enforced, and faults on demand.

Not a model of the store's log: records get seqs and the fold follows, nothing is durable, nothing is followed.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from eddyline.core.batch import Batch
from eddyline.core.clock import wait_event
from eddyline.core.errors import (
    ArtifactsNotConfigured,
    LeaseHeld,
    NotKv,
    SourceExists,
    SourceNotFound,
    StaleFence,
    StalePosition,
    StoreUnreachable,
    TopicExists,
    TopicHasSource,
    TopicNotEmpty,
    TopicNotFound,
)
from eddyline.core.read import ALL_RECORDS, EntryPage, FoldState, RangePage, ReadResult
from eddyline.core.record import Op, Record
from eddyline.core.source import NO_ORDERS, Lease, Renewal, SourceInfo, SourceOrders, SourceReport, changed_source
from eddyline.core.store_link import AppendResult
from eddyline.core.topic import Kind, TopicInfo, check_name
from eddyline.core.validate import validated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from eddyline.core.artifact import Artifact, ArtifactProgress, FoldImported
    from eddyline.core.clock import Clock
    from eddyline.core.read import RecordFilter
    from eddyline.core.source import SourceChange, SourceDefinition
    from eddyline.core.store_link import Follow
    from eddyline.core.topic import TopicConfig

RANGE_PAGE = 1_000


@dataclass
class MemoryTopic:
    """A topic's records and fold."""

    info: TopicInfo
    records: list[Record] = field(default_factory=list)
    fold: dict[bytes, Record] = field(default_factory=dict)
    batch_sizes: list[int] = field(default_factory=list)
    acknowledged: dict[str, AppendResult] = field(default_factory=dict)
    """By idempotency key."""

    def append(self, batch: Batch, ts_ms: int) -> tuple[int, int]:
        """Take a batch: first and last seq."""
        first_seq = len(self.records) + 1
        placed = batch.with_place(first_seq, ts_ms)
        for record in placed.to_rows():
            self.records.append(record)
            if record.op == Op.GAP:
                continue
            assert record.key is not None, "a record of a source has a key"
            if record.op == Op.APPEND:
                continue
            if record.op == Op.PUT:
                self.fold[record.key] = record
            else:
                self.fold.pop(record.key, None)
        self.batch_sizes.append(batch.count)
        return first_seq, len(self.records)


@dataclass
class MemorySource:
    """A source as the store keeps it."""

    definition: SourceDefinition
    position: bytes = b""
    fence: int = 0
    holder: str = ""
    lease_ms: int = 0
    deadline_s: float = 0.0
    report: SourceReport = field(default_factory=SourceReport)
    reported_fence: int = 0
    orders: SourceOrders = NO_ORDERS
    reports: list[SourceReport] = field(default_factory=list)


class MemoryLink:
    """See the module. `down` = nothing gets through; `lose_answers` = so many applies happen unanswered;
    `gate` cleared = applies wait; `failed` = applies that did not get through."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.topics: dict[str, MemoryTopic] = {}
        self.sources: dict[str, MemorySource] = {}
        self.down = False
        self.lose_answers = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.applying = 0
        self.failed = 0
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when a batch was applied, and replaced by a fresh one."""
        self.looks = 0
        """How often a source was read."""

    async def until(self, predicate: Callable[[], bool], *, seconds: float = 10.0) -> None:
        """Wait for something that a call brings about."""
        deadline_s = self._clock.monotonic_s() + seconds
        while not predicate():
            self._changed.clear()
            remaining_s = deadline_s - self._clock.monotonic_s()
            assert remaining_s > 0, f"did not come about: {self.describe()}"
            await wait_event(self._clock, self._changed, min(remaining_s, 0.25))

    def describe(self) -> str:
        """What is there, for failing tests."""
        reports = {name: (source.report, source.fence) for name, source in self.sources.items()}
        return f"{reports} heads { ({name: len(topic.records) for name, topic in self.topics.items()}) }"

    # StoreLink ---------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        self._reach()
        check_name(name, "topic")
        if name in self.topics:
            raise TopicExists(f"topic {name} exists", topic=name)
        info = TopicInfo(name, len(self.topics) + 1, kind, config, 0, 1, "", self._clock.now_ms())
        self.topics[name] = MemoryTopic(info)
        return info

    async def get_topic(self, name: str) -> TopicInfo:
        topic = self._topic(name)
        return replace(topic.info, head_seq=len(topic.records))

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None
    ) -> AppendResult:
        self.applying += 1
        try:
            await self.gate.wait()
            self.failed += self.down
            self._reach()
            found = self._source(source)
            if fence != found.fence:
                raise StaleFence(f"fence {found.fence}", fence=found.fence)
            topic = self._topic(found.definition.topic)
            if new == found.position:
                return AppendResult(0, 0, topic.info.epoch, 0, deduplicated=True)
            if previous != found.position:
                raise StalePosition("another position is stored", position=found.position.hex())
            first_seq = last_seq = 0
            if batch is not None and batch.count:
                first_seq, last_seq = topic.append(validated(batch, source=True), self._clock.now_ms())
            found.position = new
            if self.lose_answers > 0:
                self.lose_answers -= 1
                raise StoreUnreachable("the answer was lost")
            return AppendResult(first_seq, last_seq, topic.info.epoch, self._clock.now_ms())
        finally:
            self.applying -= 1
            self._changed.set()
            self._moved.set()
            self._moved = asyncio.Event()

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        found = self._topic(topic)
        if idempotency_key and idempotency_key in found.acknowledged:
            return found.acknowledged[idempotency_key]._replace(deduplicated=True)
        first_seq, last_seq = found.append(validated(batch), self._clock.now_ms())
        result = AppendResult(first_seq, last_seq, found.info.epoch, self._clock.now_ms())
        if idempotency_key:
            found.acknowledged[idempotency_key] = result
        return result

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        known = self.sources.get(definition.name)
        self._reach()
        if known is not None:
            if known.definition != definition:
                raise SourceExists(
                    f"source {definition.name} copies {known.definition.origin} to topic {known.definition.topic}",
                    bucket=known.definition.bucket,
                    topic=known.definition.topic,
                )
            return self._info(known), False
        topic = self._topic(definition.topic)
        if any(source.definition.topic == definition.topic for source in self.sources.values()):
            raise TopicHasSource(f"topic {definition.topic} has a source")
        if topic.records:
            raise TopicNotEmpty(f"topic {definition.topic} has records")
        self.sources[definition.name] = MemorySource(definition)
        return self._info(self.sources[definition.name]), True

    async def get_source(self, name: str) -> SourceInfo:
        self.looks += 1
        return self._info(self._source(name))

    async def list_sources(self) -> Sequence[SourceInfo]:
        self._reach()
        return [self._info(self.sources[name]) for name in sorted(self.sources)]

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        found = self._source(name)
        known = found.orders
        found.orders = SourceOrders(known.paused if paused is None else paused, known.resync_serial + resync)
        return self._info(found)

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        found = self._source(name)
        found.definition = changed_source(found.definition, change)
        return self._info(found)

    async def delete_source(self, name: str) -> None:
        self._source(name)
        del self.sources[name]
        self._changed.set()

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        found = self._source(source)
        remaining_ms = self._remaining_ms(found)
        if found.holder and found.holder != holder and remaining_ms > 0:
            raise LeaseHeld(f"held by {found.holder}", holder=found.holder, remainingMs=remaining_ms)
        found.fence += 1
        found.holder = holder
        found.lease_ms = lease_ms
        found.deadline_s = self._clock.monotonic_s() + lease_ms / 1000
        self._changed.set()
        return Lease(found.fence, self._info(found))

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        found = self._held(source, fence)
        found.deadline_s = self._clock.monotonic_s() + found.lease_ms / 1000
        found.report = report
        found.reported_fence = fence
        if not found.reports or found.reports[-1].state != report.state:
            found.reports.append(report)
        self._changed.set()
        return Renewal(found.lease_ms, found.orders, found.definition.changeable)

    async def release_lease(self, source: str, *, fence: int) -> None:
        self._held(source, fence).holder = ""
        self._changed.set()

    async def read_records(
        self,
        topic: str,
        *,
        after_seq: int,
        epoch: int = 0,
        limit: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
        record_filter: RecordFilter = ALL_RECORDS,
    ) -> ReadResult:
        found = self._topic(topic)
        if wait_ms and after_seq >= len(found.records):
            await wait_event(self._clock, self._moved, wait_ms / 1000)
        rows = found.records[after_seq : after_seq + limit if limit else None]
        return ReadResult((Batch.from_rows(rows),), after_seq + len(rows), len(found.records), 1, found.info.epoch)

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        found = self._kv(topic)
        return EntryPage(self._state(found), tuple(found.fold.get(key) for key in keys))

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        found = self._kv(topic)
        found_keys = [
            key for key in sorted(found.fold) if key.startswith(key_prefix) and (key > after_key or not after_key)
        ]
        rows = [found.fold[key] for key in found_keys]
        for start in range(0, max(len(rows), 1), RANGE_PAGE):
            page = rows[start : start + RANGE_PAGE]
            yield RangePage(self._state(found), Batch.from_rows(page) if page else None)

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        raise ArtifactsNotConfigured("no artifacts here")

    async def import_fold(
        self, topic: str, *, artifact: str = ""
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        raise ArtifactsNotConfigured("no artifacts here")
        yield

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[Follow]:
        _not_here()
        yield

    # inside ------------------------------------------------------------------------------------------------------

    def _reach(self) -> None:
        if self.down:
            raise StoreUnreachable("the store is down")

    def _topic(self, name: str) -> MemoryTopic:
        self._reach()
        if name not in self.topics:
            raise TopicNotFound(f"no topic {name}", topic=name)
        return self.topics[name]

    def _kv(self, name: str) -> MemoryTopic:
        topic = self._topic(name)
        if topic.info.kind is not Kind.KV:
            raise NotKv(f"topic {name} has no fold", topic=name)
        return topic

    def _source(self, name: str) -> MemorySource:
        self._reach()
        if name not in self.sources:
            raise SourceNotFound(f"no source {name}", source=name)
        return self.sources[name]

    def _held(self, name: str, fence: int) -> MemorySource:
        found = self._source(name)
        if fence != found.fence or not found.holder:
            raise StaleFence(f"fence {found.fence}", fence=found.fence)
        return found

    def _remaining_ms(self, source: MemorySource) -> int:
        return max(int((source.deadline_s - self._clock.monotonic_s()) * 1000), 0) if source.holder else 0

    def _state(self, topic: MemoryTopic) -> FoldState:
        return FoldState(len(topic.records), topic.info.epoch)

    def _info(self, source: MemorySource) -> SourceInfo:
        remaining_ms = self._remaining_ms(source)
        topic = self.topics.get(source.definition.topic)
        return SourceInfo(
            definition=source.definition,
            position=source.position,
            fence=source.fence,
            holder=source.holder if remaining_ms else "",
            lease_remaining_ms=remaining_ms,
            report=source.report,
            reported_ms=0 if source.reports else -1,
            head_seq=len(topic.records) if topic is not None else 0,
            orders=source.orders,
        )


def _not_here() -> NoReturn:
    raise NotImplementedError("nothing is followed here")
