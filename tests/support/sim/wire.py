"""The wire between a store that dies and is born again and the roles that outlive it, all on one loop.

While a life of the store is plugged in, calls go to it; when it ends, every call under way and every later one is
`StoreUnreachable`, as a connection would have it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import StoreUnreachable
from eddyline.core.model.read import ALL_RECORDS
from tests.support.sim.fs import Crashed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Sequence

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldImported
    from eddyline.core.model.read import EntryPage, RangePage, ReadResult, RecordFilter, SeqFound
    from eddyline.core.model.source import Lease, Renewal, SourceChange, SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult, Follow, FollowEvent
    from eddyline.store.shard.shard import Shard

T = TypeVar("T")


class Life:
    """One life of a store."""

    def __init__(self, link: Shard) -> None:
        self.link = link
        self._over = asyncio.Event()

    def end(self) -> None:
        """Its calls break off."""
        self._over.set()

    async def call(self, call: Awaitable[T]) -> T:
        """The result of `call`, if the store lives so long."""
        if self._over.is_set():  # what never waits would not be cut
            close = getattr(call, "close", None)
            if close is not None:
                close()
            raise StoreUnreachable("the store is gone")

        async def guarded() -> T:
            try:
                return await call
            except Crashed as crashed:
                raise StoreUnreachable("the store died") from crashed

        return await cut_by(self._break_off(), guarded())

    async def _break_off(self) -> None:
        await self._over.wait()
        raise StoreUnreachable("the store is gone")


class SimWire:
    """`StoreLink` over whatever life the store has just now."""

    topic = "log"
    content = True

    def __init__(self) -> None:
        self._life: Life | None = None

    async def run(self, link: Shard) -> None:
        """Be plugged in for one life."""
        life = self._life = Life(link)
        try:
            await asyncio.Event().wait()
        finally:
            self._life = None
            life.end()

    def _alive(self) -> Life:
        if self._life is None:
            raise StoreUnreachable("the store is away")
        return self._life

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        life = self._alive()
        return await life.call(life.link.create_topic(name, kind, config))

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        life = self._alive()
        return await life.call(
            life.link.delete_topic(name, if_epoch=if_epoch, if_empty=if_empty, if_no_source=if_no_source)
        )

    async def get_topic(self, name: str) -> TopicInfo:
        life = self._alive()
        return await life.call(life.link.get_topic(name))

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        life = self._alive()
        applying = life.link.apply_batch(
            source, fence=fence, previous=previous, new=new, batch=batch, traceparent=traceparent
        )
        return await life.call(applying)

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        life = self._alive()
        return await life.call(life.link.append(topic, batch, idempotency_key=idempotency_key))

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        life = self._alive()
        return await life.call(life.link.put_source(definition))

    async def get_source(self, name: str) -> SourceInfo:
        life = self._alive()
        return await life.call(life.link.get_source(name))

    async def list_sources(self) -> Sequence[SourceInfo]:
        life = self._alive()
        return await life.call(life.link.list_sources())

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        life = self._alive()
        return await life.call(life.link.control_source(name, paused=paused, resync=resync))

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        life = self._alive()
        return await life.call(life.link.update_source(name, change))

    async def delete_source(self, name: str) -> None:
        life = self._alive()
        await life.call(life.link.delete_source(name))

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        life = self._alive()
        return await life.call(life.link.acquire_lease(source, holder=holder, lease_ms=lease_ms))

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        life = self._alive()
        return await life.call(life.link.renew_lease(source, fence=fence, report=report))

    async def release_lease(self, source: str, *, fence: int) -> None:
        life = self._alive()
        await life.call(life.link.release_lease(source, fence=fence))

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
        life = self._alive()
        return await life.call(
            life.link.read_records(
                topic,
                after_seq=after_seq,
                epoch=epoch,
                limit=limit,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                record_filter=record_filter,
            )
        )

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        life = self._alive()
        return await life.call(
            life.link.find_seq(topic, epoch=epoch, commit_time_ms=commit_time_ms, source_time_ns=source_time_ns)
        )

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        life = self._alive()
        return await life.call(life.link.batch_get_entries(topic, keys, min_seq=min_seq))

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        life = self._alive()
        pages = life.link.range_entries(topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq)
        try:
            while (page := await life.call(anext(pages, None))) is not None:
                yield page
        finally:
            await pages.aclose()

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        life = self._alive()
        return await life.call(life.link.list_artifacts(topic))

    async def import_fold(
        self, topic: str, *, artifact: str = ""
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        life = self._alive()
        steps = life.link.import_fold(topic, artifact=artifact)
        try:
            while (step := await life.call(anext(steps, None))) is not None:
                yield step
        finally:
            await steps.aclose()

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[WireFollow]:
        life = self._alive()
        async with life.link.follow() as inner:
            yield WireFollow(life, inner)


class WireFollow:
    """A stream that breaks when the store dies."""

    def __init__(self, life: Life, inner: Follow) -> None:
        self._life = life
        self._inner = inner

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        await self._life.call(self._inner.add(follow_id, topic, epoch=epoch, after_seq=after_seq))

    async def remove(self, follow_id: int) -> None:
        await self._life.call(self._inner.remove(follow_id))

    async def grant(self, credit_bytes: int) -> None:
        await self._life.call(self._inner.grant(credit_bytes))

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        events = aiter(self._inner)
        while (event := await self._life.call(anext(events, None))) is not None:
            yield event


async def cut_by(breaking: Coroutine[object, object, None], work: Coroutine[object, object, T]) -> T:
    """Do `work` unless `breaking` raises StoreUnreachable first. A cancellation at the same moment is not lost.

    Rejected: a task of the group that fails. One that does so while its group is left makes the parent count as
    cancelled from then on, in Python 3.11.
    """
    broken: list[StoreUnreachable] = []
    done: list[T] = []
    failed: list[Exception] = []
    try:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:

            async def watch() -> None:
                try:
                    await breaking
                except StoreUnreachable as error:
                    broken.append(error)
                    limit.reschedule(0)

            watching = tasks.create_task(watch())
            try:
                done.append(await work)
            except Exception as error:  # raised below as itself, not in a group
                failed.append(error)
            watching.cancel()
    except TimeoutError:
        raise broken[0] from None
    finally:
        breaking.close()
    if failed:
        raise failed[0]
    return done[0]
