"""The shard in process: every call of its RPCs and, in a simulation, of the other roles.

Implements `eddyline.core.store_link.protocol.StoreLink` and the store's own calls (`eddyline.store.shard.api.ShardApi`).
Each call takes a few lines: find the topic, check the request, delegate to the part that owns the work.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import NotReady, TopicExists, TopicHasSource, TopicNotEmpty, TopicNotFound
from eddyline.core.model.deletion import check_delete
from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.model.source import ControlState, Lease, changed_source, check_definition, source_conflict
from eddyline.core.model.topic import Kind, TopicConfig, check_config, check_name, merged
from eddyline.core.records.batch import Batch
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.log.control import apply_config, config_body, topic_body, topic_from_body
from eddyline.store.log.sources import (
    change_writer,
    check_takes_source,
    control_change_body,
    put_body,
    stop_after,
    update_body,
)
from eddyline.store.log.topic import Topic
from eddyline.store.read.follow import LocalFollow
from eddyline.store.runtime.keyed_locks import KeyedLocks
from eddyline.store.shard.arrow_import import import_arrow
from eddyline.store.shard.parts import unserved_reason
from eddyline.store.stats import Measured, ShardStatus
from eddyline.store.storage.wal.frame import FrameType, control_body
from eddyline.store.write.validation import check_epoch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
    from eddyline.core.model.deletion import DeleteResult, EraseProgress
    from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
    from eddyline.core.model.read import EntryPage, RangePage, ReadResult, RecordFilter, SeqFound
    from eddyline.core.model.source import Renewal, SourceChange, SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import ConfigChange, TopicInfo
    from eddyline.core.records.match import Match
    from eddyline.core.records.record import Gap
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.log.append import Ack
    from eddyline.store.log.sources import RegisteredSource
    from eddyline.store.read.point_read import StoredPage
    from eddyline.store.shard.parts import ShardParts
    from eddyline.store.splits.model import PlanRequest, SplitFrame, SplitPlan, SplitRead


T = TypeVar("T")


class Shard:
    """One shard of the store; see the module."""

    def __init__(self, parts: ShardParts, *, instance: int) -> None:
        self._parts = parts
        self._instance = instance
        self._engine = parts.engine
        self._table = parts.engine.table
        self._reader = parts.reader
        self._entries = parts.entries
        self._sources = parts.sources
        self._locks = KeyedLocks()
        self._follows: set[LocalFollow] = set()
        self._closing = False

    # topics ------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        check_name(name, "topic")
        check_config(config, kind)
        self._check_open()
        async with self._locks.hold(name):
            existing = self._table.find(name)
            if existing is not None:
                kind_name, durability = existing.kind.name, existing.config.durability.name
                message = f"topic {name} exists: kind {kind_name}, durability {durability}"
                raise TopicExists(message, topic=name, kind=kind_name, durability=durability)
            return (await self._create(name, kind, config)).info()

    async def get_topic(self, name: str) -> TopicInfo:
        topic = self._table.get(name)
        await self._parts.retention.enforce(topic)
        return topic.info()

    def kind_of(self, name: str) -> Kind | None:
        """Return a topic's kind, which decides the default op of an append; None = there is no such topic."""
        topic = self._table.find(name)
        return topic.kind if topic is not None else None

    async def list_topics(self, name_prefix: str, after_name: str, limit: int) -> list[TopicInfo]:
        """Return up to `limit` topics above `after_name`, in order of their names."""
        topics = self._table.page(name_prefix, after_name, limit)
        for topic in topics:
            await self._parts.retention.enforce(topic)
        return [topic.info() for topic in topics if not topic.deleted]

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        self._check_open()
        async with self._locks.hold(name):
            topic = self._table.get(name)
            check_epoch(name, topic.id, if_epoch)
            if if_no_source and topic.source:
                raise TopicHasSource(f"topic {name} has source {topic.source}", topic=name, source=topic.source)
            if if_empty:
                await self._parts.retention.enforce(topic)
                # A topic with a fold is empty only if it never had a record: the fold keeps entries that the log has lost.
                if topic.has_records if topic.folds else topic.staged_count:
                    has = "is a KV topic that has, or had," if topic.folds else "has"
                    raise TopicNotEmpty(f"topic {name} {has} records", topic=name)

            def committed(_: object) -> None:
                self._sources.remove(topic.source)
                self._table.remove(topic)
                self._parts.garbage.add_topic(topic)
                topic.moved()

            body = control_body(FrameType.TOPIC_DELETE, topic.id, {"name": name}, ts_ms=self._stamp(topic))
            topic.closing = True  # for good: after a delete that fails the shard takes no appends at all
            await self._engine.control(body, committed, topic)
            return topic.id

    async def update_topic(self, name: str, change: ConfigChange, *, if_epoch: int = 0) -> TopicInfo:
        self._check_open()
        async with self._locks.hold(name):
            topic = self._table.get(name)
            check_epoch(name, topic.id, if_epoch)
            config = merged(topic.config, change, topic.kind, topic.source)
            if config != topic.config:
                await self._parts.retention.enforce(topic)  # records that are due under the old settings go first
                body = {**config_body(config), "config_version": topic.config_version + 1}
                frame = control_body(FrameType.CONFIG_UPDATE, topic.id, body, ts_ms=self._stamp(topic))

                def committed(_: object) -> None:
                    apply_config(topic, body)
                    topic.moved()  # wakes the topic's followers

                await self._engine.control(frame, committed, topic)
                self._parts.retention.on_topic_changed(topic)
                await self._parts.retention.enforce(topic)
            return topic.info()

    async def _create(self, name: str, kind: Kind, config: TopicConfig) -> Topic:
        if not len(self._table):
            await import_arrow(self._parts.background)
        with self._engine.gate.topic_room(self._table) as add:
            self._engine.gate.check_disk()
            topic_id = self._table.take_id()
            now_ms = self._engine.clock.now_ms()
            body = topic_body(name, kind, config)
            topic = topic_from_body(topic_id, body, now_ms, self._table.key_budget)
            topic.last_ts_ms = now_ms
            topic.last_commit_s = self._engine.clock.monotonic_s()
            frame = control_body(FrameType.TOPIC_CREATE, topic_id, dict(body), ts_ms=now_ms)
            await self._engine.control(frame, lambda _: add(topic))
        return topic

    # appends -----------------------------------------------------------------------------------------------------

    async def stage(self, request: AppendRequest) -> Ack:
        """Stage an append; return when it has its place. The future is its acknowledgement.

        Raises:
            the contract's errors of AppendRecords; nothing was staged then.
        """
        self._check_open()
        topic = self._table.find(request.topic)
        if topic is None and request.create is not None:
            check_name(request.topic, "topic")
            self._engine.check_new(self._unsaved_topic(request.topic, *request.create), request)
            topic = await self._create_if_missing(request.topic, *request.create)
        return await self._engine.stage(topic or self._table.get(request.topic), request)

    def stage_now(self, request: AppendRequest) -> Ack | None:
        self._check_open()
        topic = self._table.find(request.topic)
        if topic is None and request.create is not None:
            return None
        return self._engine.stage_now(topic or self._table.get(request.topic), request)

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        return await (await self.stage(AppendRequest(topic, batch, idempotency_key=idempotency_key)))

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        self._check_open()
        live_source = self._sources.get(source)
        request = AppendRequest(
            topic=live_source.definition.topic,
            batch=batch if batch is not None else Batch.from_rows([]),
            writer=WriterPosition(source, fence, previous, new),
            source=True,
            traceparent=traceparent,
        )
        result = await (await self._engine.stage(live_source.topic, request))
        if batch is not None and not result.deduplicated:
            self._sources.applied(live_source, batch)
        return result

    async def _create_if_missing(self, name: str, kind: Kind, config: TopicConfig) -> Topic:
        async with self._locks.hold(name):
            return self._table.find(name) or await self._create(name, kind, config)

    def _unsaved_topic(self, name: str, kind: Kind, config: TopicConfig) -> Topic:
        """Return the topic that an append would create, with id 0, to check the append against."""
        return topic_from_body(0, topic_body(name, kind, config), 0, self._table.key_budget)

    # reads -------------------------------------------------------------------------------------------------------

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
        live_topic = self._table.get(topic)
        result = await self._reader.read(
            live_topic,
            after_seq=after_seq,
            epoch=epoch,
            limit=limit,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            record_filter=record_filter,
        )
        if live_topic.deleted:
            raise TopicNotFound(f"topic {topic} was deleted", topic=topic)
        return result

    async def wait_seq(self, topic: str, seq: int, *, wait_s: float) -> int:
        """Wait until `seq` is applied and visible, at most `wait_s`. Return the head, which is below `seq` if the time ran
        out.

        Raises:
            InvalidName, TopicNotFound: there is no such topic, or it was deleted meanwhile.
        """
        live_topic = self._table.get(topic)
        await live_topic.wait_head(seq, self._engine.clock, wait_s)
        if live_topic.deleted:
            raise TopicNotFound(f"topic {topic} was deleted", topic=topic)
        return live_topic.head_seq

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        return await self._entries.get(self._table.get(topic), keys, min_seq=min_seq)

    async def get_stored_entries(self, topic: str, keys: Sequence[bytes]) -> StoredPage:
        return await self._entries.get_stored(self._table.get(topic), keys)

    def get_cached_entries(self, topic: str, keys: Sequence[bytes]) -> StoredPage | None:
        return self._entries.get_cached(self._table.get(topic), keys)

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncGenerator[RangePage, None]:
        live_topic = self._table.get(topic)
        return self._entries.scan(live_topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq)

    def verify_fold(self, topic: str) -> AsyncGenerator[FoldCheckProgress | FoldVerdict, None]:
        return self._parts.folds.verify.run(self._table.get(topic))

    async def settle_fold(self, topic: str, *, if_epoch: int = 0) -> FoldSettled:
        self._check_open()
        async with self._locks.hold(topic):
            return await self._parts.folds.settle.run(self._get(topic, if_epoch))

    # artifacts ---------------------------------------------------------------------------------------------------

    def export_fold(self, topic: str, *, if_epoch: int = 0) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
        return self._parts.folds.artifacts.exports.run(self._get(topic, if_epoch))

    def import_fold(
        self, topic: str, *, from_topic: str = "", artifact: str = "", if_epoch: int = 0
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        self._check_open()
        check_name(from_topic or topic, "topic")
        return self._parts.folds.artifacts.imports.run(
            self._get(topic, if_epoch),
            from_topic=from_topic or topic,
            artifact=artifact,
            hold=partial(self._locks.hold, topic),
        )

    async def list_artifacts(self, topic: str) -> list[Artifact]:
        check_name(topic, "topic")
        return await self._parts.folds.artifacts.list(topic)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[LocalFollow]:
        follow = LocalFollow(self._table, self._reader, self._engine.traces.recent)
        self._follows.add(follow)
        try:
            yield follow
        finally:
            self._follows.discard(follow)
            follow.close()

    # the past ----------------------------------------------------------------------------------------------------

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        live_topic = self._get(topic, epoch)
        if source_time_ns is not None:
            return _if_live(live_topic, await self._parts.history.find_seq.by_source_time(live_topic, source_time_ns))
        assert commit_time_ms is not None, "exactly one of the two"
        return _if_live(live_topic, await self._parts.history.find_seq.by_commit_time(live_topic, commit_time_ms))

    async def delete_records(
        self, topic: str, *, epoch: int = 0, before_seq: int = 0, match: Match | None = None
    ) -> DeleteResult:
        self._check_open()
        live_topic = self._get(topic, epoch)
        check_delete(before_seq, match, live_topic.kind)
        return await self._parts.history.deletes.delete(live_topic, before_seq=before_seq, match=match)

    def erase_topic(self, name: str, *, if_epoch: int = 0) -> AsyncGenerator[EraseProgress, None]:
        self._check_open()
        topic = self._table.get(name)
        check_epoch(name, topic.id, if_epoch)
        return self._parts.maintenance.erasures.erase(topic)

    async def entry_at(
        self, topic: str, key: bytes, *, at_seq: int | None = None, at_time_ms: int | None = None
    ) -> EntryPage:
        live_topic = self._table.get(topic)
        if at_seq is not None:
            return _if_live(live_topic, await self._parts.history.as_of.at_seq(live_topic, key, at_seq))
        assert at_time_ms is not None, "exactly one of the two"
        return _if_live(live_topic, await self._parts.history.as_of.at_time(live_topic, key, at_time_ms))

    def key_history(
        self, topic: str, key: bytes, *, after_seq: int = 0, limit: int = 0, epoch: int = 0
    ) -> AsyncGenerator[Batch | Gap, None]:
        return self._parts.history.keys.read(self._get(topic, epoch), key, after_seq=after_seq, limit=limit)

    async def plan_splits(self, topic: str, request: PlanRequest, *, epoch: int = 0) -> SplitPlan:
        return await self._parts.history.splits.plan(self._get(topic, epoch), request)

    def read_split(self, topic: str, request: SplitRead, *, epoch: int) -> AsyncGenerator[SplitFrame, None]:
        return self._parts.history.split_reads.read(self._get(topic, epoch), request)

    def _get(self, name: str, epoch: int) -> Topic:
        """Return the topic of a name, if it has this epoch (0 = any)."""
        topic = self._table.get(name)
        check_epoch(name, topic.id, epoch)
        return topic

    # sources -----------------------------------------------------------------------------------------------------

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        check_definition(definition)
        self._check_open()
        async with self._locks.hold("source " + definition.name), self._locks.hold(definition.topic):
            existing = self._sources.find(definition.name)
            if existing is not None:
                if existing.definition != definition:
                    raise source_conflict(existing.definition, definition)
                return self._sources.info(existing), False
            topic = self._table.get(definition.topic)
            check_takes_source(topic, definition)
            topic.source = definition.name  # from here on appends of other callers are refused
            await self._change_writer(topic, put_body(definition))
            return self._sources.info(self._sources.get(definition.name)), True

    async def get_source(self, name: str) -> SourceInfo:
        return self._sources.info(self._sources.get(name))

    def source_kind(self, name: str) -> Kind:
        """Return the kind of a source's topic.

        Raises:
            InvalidName, SourceNotFound.
        """
        return self._sources.get(name).topic.kind

    async def list_sources(self) -> Sequence[SourceInfo]:
        return await self.list_sources_page("", len(self._sources))

    async def list_sources_page(self, after: str, limit: int) -> list[SourceInfo]:
        """Return up to `limit` sources above `after`, in order of their names."""
        return [self._sources.info(self._sources.get(name)) for name in self._sources.names_after(after, limit)]

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        self._check_open()
        async with self._locks.hold("source " + name):
            source = self._sources.get(name)
            previous = source.control
            orders = ControlState(previous.paused if paused is None else paused, previous.resync_serial + resync)
            if orders != previous:
                await self._change_writer(source.topic, control_change_body(name, orders, source.stop))
            return self._sources.info(source)

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        self._check_open()
        async with self._locks.hold("source " + name):
            source = self._sources.get(name)
            definition = changed_source(source.definition, change)
            check_definition(definition)
            if definition != source.definition:
                await self._change_writer(source.topic, update_body(definition))
            return self._sources.info(source)

    async def delete_source(self, name: str) -> None:
        self._check_open()
        async with self._locks.hold("source " + name):
            topic = self._sources.get(name).topic
            await self._change_writer(topic, {"change": "delete", "source": name})

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        self._check_open()
        async with self._locks.hold("source " + source):
            live_source = self._sources.get(source)
            fence = self._sources.next_fence(live_source, holder, lease_ms)
            await self._change_writer(
                live_source.topic,
                {"change": "lease", "fence": fence, "holder": holder, "lease_ms": lease_ms, "source": source},
            )
            await self._await_older_appends(live_source)
            return Lease(fence, self._sources.info(live_source))

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        renewal = self._sources.renew(source, fence, report)
        live_source = self._sources.get(source)
        if stop_after(live_source, report) != live_source.stop and not self._closing:
            async with self._locks.hold("source " + source):
                live_source = self._sources.get(source)  # it may have been deleted, or leased again, meanwhile
                stop = stop_after(live_source, report)
                if live_source.fence == fence and stop != live_source.stop:
                    await self._change_writer(live_source.topic, control_change_body(source, live_source.control, stop))
        return renewal

    async def release_lease(self, source: str, *, fence: int) -> None:
        self._sources.release(source, fence)

    async def _change_writer(self, topic: Topic, body: dict[str, str | int]) -> None:
        frame = control_body(FrameType.WRITER_CHANGE, topic.id, dict(body), ts_ms=self._stamp(topic))
        await self._engine.control(frame, lambda _: change_writer(self._sources, topic, body), topic)

    async def _await_older_appends(self, source: RegisteredSource) -> None:
        """Wait for the appends of older fences: a reported position means that everything before it is applied."""
        ack = source.topic.writers.get(source.definition.name).ack
        if ack is not None:
            await asyncio.wait([ack])

    # the shard ---------------------------------------------------------------------------------------------------

    def status(self) -> ShardStatus:
        """Return the shard's status."""
        return self._parts.status(self._instance)

    def measured(self) -> Measured:
        """Return the figures for metrics."""
        return Measured(self.status(), self._engine.measures, sum(map(len, self._follows)))

    def unserved_reason(self) -> str:
        """Return why the shard does not take all appends; empty = it does."""
        return unserved_reason(self._engine)

    def stop_writes(self) -> None:
        """Refuse writes from now on: the store is stopping."""
        self._closing = True

    def _check_open(self) -> None:
        if self._closing:
            raise NotReady("the store is stopping")

    def _stamp(self, topic: Topic) -> int:
        topic.last_ts_ms = max(topic.last_ts_ms, self._engine.clock.now_ms())
        return topic.last_ts_ms


def _if_live(topic: Topic, answer: T) -> T:
    """Return an answer read from a topic, if the topic was not deleted meanwhile."""
    if topic.deleted:
        raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
    return answer
