"""`StoreLink` over gRPC, to a store in another process.

Implements `eddyline.core.store_link.protocol.StoreLink` by the store's services; `eddyline.core.codec` translates.
Every call has a deadline, and fails with a domain error: the store's own error is raised unchanged; a store that does
not answer is `StoreUnreachable`; a passed deadline is `Deadline`, after which the outcome of a write is unknown until a
retry with the same position or definition. No call is retried here: callers decide.
Threading: event loop only. The caller owns the channel and closes it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from eddyline.core.codec.calls import artifact_from_pb, import_step_from_pb, seq_found_from_pb
from eddyline.core.codec.entries import format_of, stored_entries_from_pb
from eddyline.core.codec.records import answer_from_columns, fill_columns, filter_to_pb, items_from_pb
from eddyline.core.codec.state import (
    fold_state_from_pb,
    policy_from_pb,
    policy_to_pb,
    source_definition_to_pb,
    source_detail_to_pb,
    source_info_from_pb,
    topic_config_to_pb,
    topic_info_from_pb,
)
from eddyline.core.errors import EddylineError, StoreUnreachable
from eddyline.core.model.read import ALL_RECORDS, EntryPage, RangePage, ReadResult
from eddyline.core.model.source import ControlState, Lease, Renewal, SourceChange
from eddyline.core.store_link.grpc_apply import GrpcApply
from eddyline.core.store_link.grpc_follow import GrpcFollow
from eddyline.core.store_link.protocol import AppendResult
from eddyline.core.telemetry.trace_context import TRACEPARENT
from eddyline.core.transport.cluster_check import cluster_metadata, forwarded_metadata
from eddyline.core.transport.status import unwrap
from eddyline.v1 import (
    apply_pb2,
    apply_pb2_grpc,
    fold_pb2,
    fold_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    topic_pb2,
    topic_pb2_grpc,
    types_pb2,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldImported
    from eddyline.core.model.read import RecordFilter, SeqFound
    from eddyline.core.model.source import SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
    from eddyline.core.records.batch import Batch

TIMEOUT_S: Final = 10.0
"""Default in gRPC: none, so a call to a store that hangs never ends.

A write waits for one fdatasync and one apply, far below a second; 10 s means a failing disk, and is still below the
time after which operators react.
"""
RANGE_TIMEOUT_S: Final = 300.0
"""The contract's own bound on the life of a range scan."""
MIN_SEQ_WAIT_S: Final = 30.0
"""The contract's bound on waiting for `min_seq`; added to the deadline of reads with a `min_seq`."""
IMPORT_TIMEOUT_S: Final = 3_600.0
"""An hour: 500 million keys at the measured rate."""
SOURCES_PAGE: Final = 1_000
SOURCE_PAGES_MAX: Final = 1_000
"""A million sources: more than topics. Beyond it the page tokens are in a loop."""

Request = TypeVar("Request")
Response = TypeVar("Response")


class GrpcLink:
    """One store shard behind a channel. `cluster_id` is sent with every call; "" = not sent.

    `is_one_of_several` = the caller routes calls itself: the store answers them and forwards none.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        cluster_id: str = "",
        timeout_s: float = TIMEOUT_S,
        is_one_of_several: bool = False,
    ) -> None:
        mark = forwarded_metadata(cluster_id) if is_one_of_several else ()
        self._metadata = (*cluster_metadata(cluster_id), *mark)
        self._timeout_s = timeout_s
        self._topics = topic_pb2_grpc.TopicServiceStub(channel)
        self._log = log_pb2_grpc.LogServiceStub(channel)
        self._fold = fold_pb2_grpc.FoldServiceStub(channel)
        self._apply = apply_pb2_grpc.ApplyServiceStub(channel)
        self._applying = GrpcApply(self._apply.ApplyStream, self._metadata, timeout_s=timeout_s)

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> TopicInfo:
        topic = topic_pb2.Topic(name=name, kind=topic_pb2.TopicKind.ValueType(kind), config=topic_config_to_pb(config))
        answer = await self._call(self._topics.CreateTopic, topic_pb2.CreateTopicRequest(topic=topic))
        return topic_info_from_pb(answer.topic)

    async def get_topic(self, name: str) -> TopicInfo:
        answer = await self._call(self._topics.GetTopic, topic_pb2.GetTopicRequest(topic=name))
        return topic_info_from_pb(answer.topic)

    async def delete_topic(
        self, name: str, *, if_epoch: int = 0, if_empty: bool = False, if_no_source: bool = False
    ) -> int:
        request = topic_pb2.DeleteTopicRequest(
            topic=name, if_epoch=if_epoch, if_empty=if_empty, if_no_source=if_no_source
        )
        return (await self._call(self._topics.DeleteTopic, request)).epoch

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        step = apply_pb2.ApplyStreamRequest(
            source=source, fence=fence, previous=previous, new=new, traceparent=traceparent
        )
        if batch is not None and batch.count:
            fill_columns(step.batch, batch)
        answer: apply_pb2.ApplyStreamResponse | apply_pb2.ApplyBatchResponse | None = await self._applying.apply(step)
        if answer is None:
            answer = await self._apply_alone(step)
        return AppendResult(answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated)

    async def _apply_alone(self, step: apply_pb2.ApplyStreamRequest) -> apply_pb2.ApplyBatchResponse:
        """Apply a step by a call of its own."""
        request = apply_pb2.ApplyBatchRequest(
            source=step.source, fence=step.fence, previous=step.previous, new=step.new
        )
        if step.batch.count:
            request.batch.CopyFrom(step.batch)
        traced = ((TRACEPARENT, step.traceparent),) if step.traceparent else ()
        return await self._call(self._apply.ApplyBatch, request, metadata=traced)

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        request = log_pb2.AppendRecordsRequest(topic=topic, idempotency_key=idempotency_key)
        fill_columns(request.columns, batch)
        answer = await self._call(self._log.AppendRecords, request)
        return AppendResult(answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated)

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        request = apply_pb2.PutSourceRequest(definition=source_definition_to_pb(definition))
        answer = await self._call(self._apply.PutSource, request)
        return source_info_from_pb(answer.source), answer.created

    async def get_source(self, name: str) -> SourceInfo:
        request = apply_pb2.ApplyServiceGetSourceRequest(source=name)
        return source_info_from_pb((await self._call(self._apply.GetSource, request)).source)

    async def list_sources(self) -> Sequence[SourceInfo]:
        sources: list[SourceInfo] = []
        request = apply_pb2.ApplyServiceListSourcesRequest(page_size=SOURCES_PAGE)
        for _ in range(SOURCE_PAGES_MAX):
            answer = await self._call(self._apply.ListSources, request)
            sources += (source_info_from_pb(source) for source in answer.sources)
            if not answer.next_page_token:
                return sources
            request.page_token = answer.next_page_token
        raise EddylineError(f"the store's list of sources did not end after {SOURCE_PAGES_MAX} pages")

    async def control_source(self, name: str, *, paused: bool | None = None, resync: bool = False) -> SourceInfo:
        request = apply_pb2.ControlSourceRequest(source=name, paused=paused, resync=resync)
        return source_info_from_pb((await self._call(self._apply.ControlSource, request)).source)

    async def update_source(self, name: str, change: SourceChange) -> SourceInfo:
        request = apply_pb2.ApplyServiceUpdateSourceRequest(
            source=name,
            on_expired=policy_to_pb(change.on_expired),
            on_recreated=policy_to_pb(change.on_recreated),
            dead_letter_topic=change.dead_letter_topic,
        )
        return source_info_from_pb((await self._call(self._apply.UpdateSource, request)).source)

    async def delete_source(self, name: str) -> None:
        await self._call(self._apply.DeleteSource, apply_pb2.ApplyServiceDeleteSourceRequest(source=name))

    async def acquire_lease(self, source: str, *, holder: str, lease_ms: int) -> Lease:
        request = apply_pb2.AcquireLeaseRequest(source=source, holder=holder, lease_ms=lease_ms)
        answer = await self._call(self._apply.AcquireLease, request)
        return Lease(answer.fence, source_info_from_pb(answer.source))

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        request = apply_pb2.RenewLeaseRequest(
            source=source,
            fence=fence,
            state=report.state,
            state_reason=report.reason,
            source_last_revision=report.last_revision,
            lag=report.lag,
            detail=source_detail_to_pb(report.detail),
        )
        answer = await self._call(self._apply.RenewLease, request)
        control = ControlState(answer.paused, answer.resync_serial)
        on_expired = policy_from_pb(answer.on_expired, "on_expired")
        if on_expired is None:
            return Renewal(answer.lease_remaining_ms, control)
        on_recreated = policy_from_pb(answer.on_recreated, "on_recreated")
        changeable = SourceChange(on_expired, on_recreated, answer.dead_letter_topic)
        return Renewal(answer.lease_remaining_ms, control, changeable)

    async def release_lease(self, source: str, *, fence: int) -> None:
        self._applying.close(source)
        await self._call(self._apply.ReleaseLease, apply_pb2.ReleaseLeaseRequest(source=source, fence=fence))

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
        request = log_pb2.ReadRecordsRequest(
            topic=topic,
            after_seq=after_seq,
            epoch=epoch,
            limit=limit,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            format=types_pb2.BATCH_FORMAT_COLUMNS,
        )
        if not record_filter.passes_all():
            request.filter.CopyFrom(filter_to_pb(record_filter))
        answer = await self._call(self._log.ReadRecords, request, wait_s=wait_ms / 1000)
        return ReadResult(
            items=tuple(items_from_pb(answer.items)),
            next_after_seq=answer.next_after_seq,
            head_seq=answer.head_seq,
            earliest_seq=answer.earliest_seq,
            epoch=answer.epoch,
            batch_end=answer.batch_end,
        )

    async def find_seq(
        self, topic: str, *, epoch: int = 0, commit_time_ms: int | None = None, source_time_ns: int | None = None
    ) -> SeqFound:
        request = log_pb2.FindSeqRequest(topic=topic, epoch=epoch)
        if commit_time_ms is not None:
            request.commit_time_ms = commit_time_ms
        elif source_time_ns is not None:
            request.source_time_ns = source_time_ns
        return seq_found_from_pb(await self._call(self._log.FindSeq, request))

    async def batch_get_entries(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        request = fold_pb2.BatchGetEntriesRequest(topic=topic, keys=keys, min_seq=min_seq, format=format_of(len(keys)))
        wait_s = MIN_SEQ_WAIT_S if min_seq else 0.0
        answer = await self._call(self._fold.BatchGetEntries, request, wait_s=wait_s)
        return EntryPage(fold_state_from_pb(answer.state), stored_entries_from_pb(answer, keys))

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        request = fold_pb2.RangeEntriesRequest(
            topic=topic,
            key_prefix=key_prefix,
            after_key=after_key,
            limit=limit,
            min_seq=min_seq,
            format=types_pb2.BATCH_FORMAT_COLUMNS,
        )
        call = self._fold.RangeEntries(request, timeout=RANGE_TIMEOUT_S, metadata=self._metadata)
        try:
            async for answer in call:
                batch = answer_from_columns(answer.columns) if answer.columns.count else None
                yield RangePage(fold_state_from_pb(answer.state), batch)
        except grpc.aio.AioRpcError as error:
            raise unwrap(error, unreachable=StoreUnreachable) from error
        finally:
            # A reader that stops early must not leave the store's scan open.
            call.cancel()

    async def list_artifacts(self, topic: str) -> Sequence[Artifact]:
        answer = await self._call(self._fold.ListArtifacts, fold_pb2.ListArtifactsRequest(topic=topic))
        return [artifact_from_pb(artifact) for artifact in answer.artifacts]

    async def import_fold(
        self, topic: str, *, artifact: str = ""
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        request = fold_pb2.ImportFoldRequest(topic=topic, artifact=artifact)
        call = self._fold.ImportFold(request, timeout=IMPORT_TIMEOUT_S, metadata=self._metadata)
        try:
            async for answer in call:
                if (step := import_step_from_pb(answer)) is not None:
                    yield step
        except grpc.aio.AioRpcError as error:
            raise unwrap(error, unreachable=StoreUnreachable) from error
        finally:
            call.cancel()

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[GrpcFollow]:
        follow = GrpcFollow(self._apply.FollowTopics, self._metadata)
        try:
            yield follow
        finally:
            follow.close()

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        wait_s: float = 0.0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Response:
        try:
            return await method(request, timeout=self._timeout_s + wait_s, metadata=self._metadata + metadata)
        except grpc.aio.AioRpcError as error:
            raise unwrap(error, unreachable=StoreUnreachable) from error
