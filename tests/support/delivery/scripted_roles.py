"""Roles that do what a test wrote down: a real gRPC server, whose watches and append streams follow scripts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from eddyline.core.errors import EddylineError, NotYet
from eddyline.core.server.server import make_server
from eddyline.core.store_link.append_steps import several_to_pb, single_to_pb
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.core.store_link.append_steps import AppendOutcome

Ending = EddylineError | Literal["end", "silence"]


@dataclass(slots=True)
class WatchScript:
    """The answers of one WatchTopics call and its end: an error, an orderly end, or silence."""

    frames: Sequence[delivery_pb2.WatchTopicsResponse] = ()
    ending: Ending = "silence"


@dataclass(slots=True)
class ScriptedDelivery(delivery_pb2_grpc.DeliveryServiceServicer):
    """Answers the n-th call by the n-th script; a call beyond them is silent.

    Watches begin at `heads`, 0 where there is none. `explain_failures`:
    what the first calls that ask where they would begin are refused with.
    """

    scripts: list[WatchScript]
    requests: list[delivery_pb2.WatchTopicsRequest] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    """Monotonic arrival time of each request."""
    heads: dict[str, int] = field(default_factory=dict)
    explained: list[delivery_pb2.WatchTopicsRequest] = field(default_factory=list)
    explain_failures: list[EddylineError] = field(default_factory=list)

    async def WatchTopics(
        self, request: delivery_pb2.WatchTopicsRequest, context: object
    ) -> AsyncIterator[delivery_pb2.WatchTopicsResponse]:
        script = self.scripts[len(self.requests)] if len(self.requests) < len(self.scripts) else WatchScript()
        self.requests.append(request)
        self.arrivals_s.append(asyncio.get_running_loop().time())
        for frame in script.frames:
            yield frame
        if isinstance(script.ending, EddylineError):
            raise script.ending
        if script.ending == "silence":
            await asyncio.Event().wait()

    async def ExplainWatch(
        self, request: delivery_pb2.ExplainWatchRequest, context: object
    ) -> delivery_pb2.ExplainWatchResponse:
        self.explained.append(request.watch)
        if self.explain_failures:
            raise self.explain_failures.pop(0)
        starts = {
            topic.topic: 0 if topic.point == delivery_pb2.START_POINT_EARLIEST else self.heads.get(topic.topic, 0)
            for topic in request.watch.topics
        }
        costs = [delivery_pb2.WatchCost(start=cursor(name, seq)) for name, seq in starts.items()]
        return delivery_pb2.ExplainWatchResponse(costs=costs)


class UnscriptedLog(log_pb2_grpc.LogServiceServicer):
    """A log of which nothing is scripted; a script takes the place of a call."""

    async def AppendRecords(
        self, request: log_pb2.AppendRecordsRequest, context: object
    ) -> log_pb2.AppendRecordsResponse:
        raise NotYet("not in the script")

    async def AppendStream(
        self, requests: AsyncIterator[log_pb2.AppendStreamRequest], context: object
    ) -> AsyncIterator[log_pb2.AppendStreamResponse]:
        raise NotYet("not in the script")
        yield

    async def ReadRecords(self, request: log_pb2.ReadRecordsRequest, context: object) -> log_pb2.ReadRecordsResponse:
        raise NotYet("not in the script")

    async def StreamRecords(
        self, request: log_pb2.StreamRecordsRequest, context: object
    ) -> AsyncIterator[log_pb2.StreamRecordsResponse]:
        raise NotYet("not in the script")
        yield

    async def FindSeq(self, request: log_pb2.FindSeqRequest, context: object) -> log_pb2.FindSeqResponse:
        raise NotYet("not in the script")

    async def DeleteRecords(
        self, request: log_pb2.DeleteRecordsRequest, context: object
    ) -> log_pb2.DeleteRecordsResponse:
        raise NotYet("not in the script")


@dataclass(slots=True)
class ScriptedLog(UnscriptedLog):
    """Acknowledges `acks` appends of a stream, then raises `failure`, or goes on where there is none.

    `appends_max` 0 = a server that takes no several appends in a message. `refused`: errors by the idempotency key of the
    append that has them, in an independent stream. While `held` is not set, nothing is answered."""

    acks: int = 0
    failure: EddylineError | None = None
    appends_max: int = 0
    refused: dict[str, EddylineError] = field(default_factory=dict)
    held: asyncio.Event | None = None
    appends: list[log_pb2.AppendBatch] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    """Appends of each message."""
    starts: list[log_pb2.AppendStart] = field(default_factory=list)
    calls: list[log_pb2.AppendRecordsRequest] = field(default_factory=list)
    """Appends that came by AppendRecords."""

    async def AppendRecords(
        self, request: log_pb2.AppendRecordsRequest, context: object
    ) -> log_pb2.AppendRecordsResponse:
        self.calls.append(request)
        await self._wait()
        if (error := self.refused.get(request.idempotency_key)) is not None:
            raise error
        seq = len(self.calls) + len(self.appends)
        return log_pb2.AppendRecordsResponse(first_seq=seq, last_seq=seq, epoch=1, ts_ms=5)

    async def AppendStream(
        self, requests: AsyncIterator[log_pb2.AppendStreamRequest], context: object
    ) -> AsyncIterator[log_pb2.AppendStreamResponse]:
        async for request in requests:
            which = request.WhichOneof("step")
            if which == "start":
                self.starts.append(request.start)
                appends_max = self.appends_max
                continue
            appends = request.appends.appends if which == "appends" else [request.append]
            self.messages.append(len(appends))
            await self._wait()
            outcomes: list[AppendOutcome] = []
            failure: EddylineError | None = None
            for append in appends:
                failure = self._failure_of(append)
                if failure is not None and not (self.appends_max and self.starts[-1].independent):
                    break
                self.appends.append(append)
                seq = len(self.appends) + len(self.calls)
                outcomes.append(failure or AppendResult(seq, seq, 1, 5))
                failure = None
            if outcomes:
                answer = several_to_pb(outcomes) if which == "appends" else single_to_pb(outcomes[0])
                answer.appends_max = appends_max
                appends_max = 0
                yield answer
            if failure is not None:
                raise failure

    def _failure_of(self, append: log_pb2.AppendBatch) -> EddylineError | None:
        if self.failure is not None and len(self.appends) == self.acks:
            return self.failure
        return self.refused.get(append.idempotency_key)

    async def _wait(self) -> None:
        if self.held is not None:
            await self.held.wait()


@asynccontextmanager
async def scripted_server(
    *, delivery: ScriptedDelivery | None = None, log: log_pb2_grpc.LogServiceServicer | None = None
) -> AsyncIterator[str]:
    """Serve the scripts; the address."""
    server = make_server("127.0.0.1:0", new_id=lambda: "the-id")
    if delivery is not None:
        delivery_pb2_grpc.add_DeliveryServiceServicer_to_server(delivery, server.grpc)
    if log is not None:
        log_pb2_grpc.add_LogServiceServicer_to_server(log, server.grpc)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


def cursor(topic: str, seq: int, epoch: int = 7) -> types_pb2.Cursor:
    """A cursor of the wire."""
    return types_pb2.Cursor(topic=topic, epoch=epoch, seq=seq)


def rows_frame(topic: str, *seqs: int, in_snapshot_of: int = 0) -> delivery_pb2.WatchTopicsResponse:
    """A frame of records whose data is their seq; within a snapshot its cursor does not move."""
    records = [types_pb2.Record(seq=seq, op=types_pb2.OP_PUT, key=b"k%d" % seq, data=b"%d" % seq) for seq in seqs]
    place = cursor(topic, in_snapshot_of or seqs[-1])
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=place, rows=types_pb2.RecordBatch(records=records))


def caught_up_frame(token: bytes = b"") -> delivery_pb2.WatchTopicsResponse:
    """A caught_up frame, with a token where one is given."""
    return delivery_pb2.WatchTopicsResponse(caught_up=delivery_pb2.CaughtUp(), resume_token=token)


def heartbeat_frame(token: bytes = b"") -> delivery_pb2.WatchTopicsResponse:
    """A heartbeat frame."""
    return delivery_pb2.WatchTopicsResponse(heartbeat=delivery_pb2.Heartbeat(ts_ms=1), resume_token=token)


def going_away_frame(token: bytes) -> delivery_pb2.WatchTopicsResponse:
    """A going_away frame."""
    going = delivery_pb2.GoingAway(reason=delivery_pb2.GOING_AWAY_REASON_DRAINING)
    return delivery_pb2.WatchTopicsResponse(going_away=going, resume_token=token)


def gap_frame(topic: str, first_seq: int, last_seq: int, *, at_seq: int) -> delivery_pb2.WatchTopicsResponse:
    """A gap frame, with the cursor that it leaves its reader at."""
    gap = types_pb2.Gap(first_seq=first_seq, last_seq=last_seq, reason=types_pb2.GAP_REASON_CAP)
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, at_seq), gap=gap)


def snapshot_resume_frame(topic: str, fold_seq: int, after_key: bytes) -> delivery_pb2.WatchTopicsResponse:
    """A snapshot_resume frame."""
    resume = delivery_pb2.SnapshotResume(fold_seq=fold_seq, after_key=after_key)
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, 0), snapshot_resume=resume)


def progress_frame(topic: str, seq: int) -> delivery_pb2.WatchTopicsResponse:
    """A progress frame."""
    progress = delivery_pb2.Progress()
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, seq), progress=progress)


def snapshot_begin_frame(topic: str, fold_seq: int) -> delivery_pb2.WatchTopicsResponse:
    """A snapshot_begin frame."""
    begin = delivery_pb2.SnapshotBegin(fold_seq=fold_seq)
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, 0), snapshot_begin=begin)


def snapshot_end_frame(topic: str, fold_seq: int, count: int) -> delivery_pb2.WatchTopicsResponse:
    """A snapshot_end frame."""
    end = delivery_pb2.SnapshotEnd(fold_seq=fold_seq, count=count)
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, fold_seq), snapshot_end=end)


def deleted_frame(topic: str) -> delivery_pb2.WatchTopicsResponse:
    """A topic_deleted frame."""
    return delivery_pb2.WatchTopicsResponse(topic=topic, topic_deleted=delivery_pb2.TopicDeleted(epoch=7))
