"""`StoreLink` over the shards of a cluster: routes each call to the shard that owns its topic, or has its source.

A source lives on its topic's shard. The link learns that shard from lists of sources, from leases and from stored
definitions; for an unknown source it calls every shard.

I1: no answer is partial: a list fails with the error of a shard that does not return its part, and a shard that cannot
    be reached does not count as one without the source. I2: an unreachable shard fails the calls of its own topics and
    sources, lists and new sources, and no others. I3: a source has one name in a cluster: a definition is stored if no
    other shard has its name; if two were stored at the same moment, each call that sees the other one deletes its own.
Not promised: a view of more than one shard at one moment. Threading: event loop only.
"""

from __future__ import annotations

import asyncio
import heapq
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from eddyline.core.errors import Code, EddylineError, SourceNotFound
from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.model.sharding import shard_of
from eddyline.core.model.source import check_definition, source_conflict
from eddyline.core.runtime.tasks import background_task
from eddyline.core.store_link.sharded_follow import ShardedFollow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldImported
    from eddyline.core.model.read import EntryPage, RangePage, ReadResult, RecordFilter, SeqFound
    from eddyline.core.model.source import Lease, Renewal, SourceChange, SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult, StoreLink

SOURCE_SHARDS_MAX: Final = 65_536
"""Sources whose shard is cached, about 100 B each. For one beyond them every shard is called again."""

T = TypeVar("T")


def shards_of(link: StoreLink) -> tuple[StoreLink, ...]:
    """Return the shards behind a link, in order; a link to one store is its only shard."""
    return link.shards if isinstance(link, ShardedLink) else (link,)


async def sources_on(link: StoreLink, shard: int) -> Sequence[SourceInfo]:
    """Return the sources of one of a link's shards, by name."""
    return await link.sources_on(shard) if isinstance(link, ShardedLink) else await link.list_sources()


class ShardedLink:
    """All shards of a cluster as one link. `shard_by_topic` = the shard of a topic, by default the contract's."""

    def __init__(self, shards: Sequence[StoreLink], *, shard_by_topic: Callable[[str], int] | None = None) -> None:
        assert shards
        self.shards = tuple(shards)
        self._shard_by_topic = shard_by_topic or partial(shard_of, count=len(shards))
        self._source_shards: dict[str, int] = {}

    # topics ------------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        return await self._of(name).create_topic(name, kind, config)

    async def get_topic(self, name: str) -> TopicInfo:
        return await self._of(name).get_topic(name)

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        return await self._of(name).delete_topic(name, if_epoch=if_epoch, if_empty=if_empty, if_no_source=if_no_source)

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        return await self._of(topic).append(topic, batch, idempotency_key=idempotency_key)

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
        return await self._of(topic).read_records(
            topic,
            after_seq=after_seq,
            epoch=epoch,
            limit=limit,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            record_filter=record_filter,
        )

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        return await self._of(topic).find_seq(
            topic, epoch=epoch, commit_time_ms=commit_time_ms, source_time_ns=source_time_ns
        )

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        return await self._of(topic).batch_get_entries(topic, keys, min_seq=min_seq)

    def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        return self._of(topic).range_entries(
            topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq
        )

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        return await self._of(topic).list_artifacts(topic)

    def import_fold(self, topic: str, *, artifact: str = "") -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        return self._of(topic).import_fold(topic, artifact=artifact)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[ShardedFollow]:
        async with AsyncExitStack() as stack:
            follows = [await stack.enter_async_context(shard.follow()) for shard in self.shards]
            follow = ShardedFollow(follows, shard_by_topic=self._shard_by_topic)
            reading = [follow.read(shard) for shard in range(len(follows))]
            async with background_task(*reading, name="sharded follow"):
                yield follow

    # sources -----------------------------------------------------------------------------------------------------

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        check_definition(definition)
        name, own_shard = definition.name, self._shard_by_topic(definition.topic)
        shard = self.shards[own_shard]
        if isinstance(await _outcome(shard.get_source(name)), SourceNotFound):
            try:
                existing = await self.get_source(name)
            except SourceNotFound:
                pass
            else:
                raise source_conflict(existing.definition, definition)
        info, created = await shard.put_source(definition)
        if created:
            answers = await self._each(lambda other: other.get_source(name))
            others = [
                answer
                for index, answer in enumerate(answers)
                if index != own_shard and not isinstance(answer, EddylineError)
            ]
            if others:
                await shard.delete_source(name)
                raise source_conflict(others[0].definition, definition)
        self._remember(name, own_shard)
        return info, created

    async def get_source(self, name: str) -> SourceInfo:
        return await self._on_source_shard(name, lambda shard: shard.get_source(name))

    async def list_sources(self) -> Sequence[SourceInfo]:
        async with asyncio.TaskGroup() as tasks:
            tasks_by_shard = [tasks.create_task(_outcome(self.sources_on(shard))) for shard in range(len(self.shards))]
        lists: list[Sequence[SourceInfo]] = []
        for task in tasks_by_shard:
            answer = task.result()
            if isinstance(answer, EddylineError):
                raise answer
            lists.append(answer)
        return list(heapq.merge(*lists, key=lambda info: info.definition.name))

    async def sources_on(self, shard: int) -> Sequence[SourceInfo]:
        """Return the sources of one shard, by name."""
        sources = await self.shards[shard].list_sources()
        for info in sources:
            self._remember(info.definition.name, shard)
        return sources

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        return await self._on_source_shard(name, lambda shard: shard.control_source(name, paused=paused, resync=resync))

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        return await self._on_source_shard(name, lambda shard: shard.update_source(name, change))

    async def delete_source(self, name: str) -> None:
        await self._on_source_shard(name, lambda shard: shard.delete_source(name))
        self._source_shards.pop(name, None)

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        return await self._on_source_shard(
            source, lambda shard: shard.acquire_lease(source, holder=holder, lease_ms=lease_ms)
        )

    # A fencing token belongs to one shard's source: if that is deleted, a source of its name on another shard is not
    # called.

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        return await self._on_source_shard(
            source, lambda shard: shard.renew_lease(source, fence=fence, report=report), fenced=True
        )

    async def release_lease(self, source: str, *, fence: int) -> None:
        await self._on_source_shard(source, lambda shard: shard.release_lease(source, fence=fence), fenced=True)

    async def apply_batch(
        self,
        source: str,
        *,
        fence: int,
        previous: bytes,
        new: bytes,
        batch: Batch | None,
        traceparent: str = "",
    ) -> AppendResult:
        def apply(shard: StoreLink) -> Awaitable[AppendResult]:
            return shard.apply_batch(
                source, fence=fence, previous=previous, new=new, batch=batch, traceparent=traceparent
            )

        return await self._on_source_shard(source, apply, fenced=True)

    # where -------------------------------------------------------------------------------------------------------

    def _of(self, topic: str) -> StoreLink:
        return self.shards[self._shard_by_topic(topic)]

    async def _on_source_shard(
        self, source: str, call: Callable[[StoreLink], Awaitable[T]], *, fenced: bool = False
    ) -> T:
        """Call the shard that has a source. If the cached shard no longer has it, call the one that has it now, once."""
        cached = self._source_shards.get(source)
        if cached is None:
            return await call(self.shards[await self._find(source)])
        try:
            return await call(self.shards[cached])
        except SourceNotFound:
            self._source_shards.pop(source, None)
            if fenced:
                raise
        return await call(self.shards[await self._find(source)])

    async def _find(self, source: str) -> int:
        """Return the shard that has a source, by calling all.

        Raises:
            SourceNotFound: none has it. InvalidName. The error of a shard that cannot be reached: it may have the source.
        """
        failures: list[EddylineError] = []
        shard_index: int | None = None
        async with asyncio.TaskGroup() as tasks:
            shards_by_task = {
                tasks.create_task(_outcome(shard.get_source(source))): index for index, shard in enumerate(self.shards)
            }
            pending = set(shards_by_task)
            while pending and shard_index is None:  # a shard that hangs does not delay the answer of another
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    if isinstance(answer, EddylineError):
                        failures.append(answer)
                    else:
                        shard_index = shards_by_task[task]
            for task in pending:
                task.cancel()
        if shard_index is None:
            raise min(failures, key=_rank)
        self._remember(source, shard_index)
        return shard_index

    async def _each(self, call: Callable[[StoreLink], Awaitable[T]]) -> list[T | EddylineError]:
        """Call every shard at the same time; return an answer or an error each."""
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_outcome(call(shard))) for shard in self.shards]
        return [task.result() for task in answers]

    def _remember(self, source: str, index: int) -> None:
        self._source_shards.pop(source, None)
        self._source_shards[source] = index
        if len(self._source_shards) > SOURCE_SHARDS_MAX:
            del self._source_shards[next(iter(self._source_shards))]


async def _outcome(call: Awaitable[T]) -> T | EddylineError:
    try:
        return await call
    except EddylineError as error:
        return error


def _rank(error: EddylineError) -> int:
    """Rank the errors of all shards, the most relevant first: refusals, then unreachable shards, then missing sources."""
    if isinstance(error, SourceNotFound):
        return 2
    return int(error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED))
