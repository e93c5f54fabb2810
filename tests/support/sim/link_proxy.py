"""A `StoreLink` in front of another one: every unary call goes through one method, which subclasses override."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from eddyline.core.model.read import ALL_RECORDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eddyline.core.model.artifact import Artifact
    from eddyline.core.model.read import EntryPage, ReadResult, RecordFilter, SeqFound
    from eddyline.core.model.source import Lease, Renewal, SourceChange, SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult, StoreLink

T = TypeVar("T")


class LinkProxy:
    """Unary calls of `StoreLink`. Streams (`range_entries`, `import_fold`, `follow`) are the subclass's own."""

    async def around(self, name: str, call: Callable[[StoreLink], Awaitable[T]]) -> T:
        """Make one call: `name` is the method's, `call` makes it on the link behind."""
        raise NotImplementedError

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        return await self.around("create_topic", lambda link: link.create_topic(name, kind, config))

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        return await self.around(
            "delete_topic",
            lambda link: link.delete_topic(name, if_epoch=if_epoch, if_empty=if_empty, if_no_source=if_no_source),
        )

    async def get_topic(self, name: str) -> TopicInfo:
        return await self.around("get_topic", lambda link: link.get_topic(name))

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        return await self.around(
            "apply_batch",
            lambda link: link.apply_batch(
                source, fence=fence, previous=previous, new=new, batch=batch, traceparent=traceparent
            ),
        )

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        return await self.around("append", lambda link: link.append(topic, batch, idempotency_key=idempotency_key))

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        return await self.around("put_source", lambda link: link.put_source(definition))

    async def get_source(self, name: str) -> SourceInfo:
        return await self.around("get_source", lambda link: link.get_source(name))

    async def list_sources(self) -> Sequence[SourceInfo]:
        return await self.around("list_sources", lambda link: link.list_sources())

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        return await self.around("control_source", lambda link: link.control_source(name, paused=paused, resync=resync))

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        return await self.around("update_source", lambda link: link.update_source(name, change))

    async def delete_source(self, name: str) -> None:
        await self.around("delete_source", lambda link: link.delete_source(name))

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        return await self.around(
            "acquire_lease", lambda link: link.acquire_lease(source, holder=holder, lease_ms=lease_ms)
        )

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        return await self.around("renew_lease", lambda link: link.renew_lease(source, fence=fence, report=report))

    async def release_lease(self, source: str, *, fence: int) -> None:
        await self.around("release_lease", lambda link: link.release_lease(source, fence=fence))

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
        return await self.around(
            "read_records",
            lambda link: link.read_records(
                topic,
                after_seq=after_seq,
                epoch=epoch,
                limit=limit,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                record_filter=record_filter,
            ),
        )

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        return await self.around(
            "find_seq",
            lambda link: link.find_seq(
                topic, epoch=epoch, commit_time_ms=commit_time_ms, source_time_ns=source_time_ns
            ),
        )

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        return await self.around("batch_get_entries", lambda link: link.batch_get_entries(topic, keys, min_seq=min_seq))

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        return await self.around("list_artifacts", lambda link: link.list_artifacts(topic))
