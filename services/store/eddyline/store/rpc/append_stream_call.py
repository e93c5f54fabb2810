"""One AppendStream call: reads steps ahead, stages them in order and answers in that order.

I1: answers are in the order of the appends, one each. I2: the first failure ends the stream: all appends staged before it
are answered first, nothing after it is staged. I3: at most 16 appends or 16 MiB are read ahead of their answers, so a
client faster than the disk waits in its own send buffer. A cancelled call, or one past its deadline, stops reading; appends
that have their place in the log are carried out.
Threading: event loop; one task reads and stages, the call's own task answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import EddylineError, InvalidArgument, StreamOrder, TopicExists, TopicNotFound
from eddyline.core.runtime.tasks import run_with
from eddyline.store.rpc.requests import new_topic, parse_append_request
from eddyline.store.rpc.stream_context import open_stream
from eddyline.store.write.validation import check_epoch
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.codec.row_split import SplitRequest
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.log.append import Ack
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext
    from eddyline.store.shard.api import ShardApi

AHEAD_APPENDS_MAX: Final = 16
AHEAD_BYTES_MAX: Final = 16 << 20
"""The contract's bounds. 16 appends of 1 000 records keep a group commit full while the previous one is written."""


class _Staged(NamedTuple):
    """An append that has its place."""

    ack: Ack
    size_bytes: int


class AppendStreamCall:
    """State of one call; see the module's invariants."""

    def __init__(
        self,
        handle: ShardHandle,
        *,
        steps: AsyncIterator[SplitRequest[log_pb2.AppendStreamRequest]],
        context: StreamContext[log_pb2.AppendStreamResponse],
        traceparent: str = "",
    ) -> None:
        """Prepare a call; `traceparent` = the trace context of its appends."""
        self._handle = handle
        self._traceparent = traceparent
        self._shard: ShardApi = handle.get()
        self._steps = steps
        self._context = context
        self._staged: deque[_Staged] = deque()
        self._staged_bytes = 0
        self._failure: EddylineError | None = None
        self._read_all = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Serve the call to its end.

        Raises:
            the stream's first failure.
        """
        await open_stream(self._context)
        await run_with(self._answer(), background=self._read())

    async def _read(self) -> None:
        try:
            await self._handle.cancel_on_shed(self._take_steps())
        except EddylineError as error:
            self._failure = error
        finally:
            self._read_all = True
            self._news.set()

    async def _take_steps(self) -> None:
        topic: TopicInfo | None = None
        async for step, rows in self._steps:
            which = step.WhichOneof("step")
            if topic is None:
                if which != "start":
                    raise StreamOrder("the first step of an append stream must be `start`", field="step")
                topic = await self._start(step.start)
            elif which == "append":
                await self._stage(topic, step.append, rows)
            elif which == "start":
                raise StreamOrder("an append stream has only one `start`", field="step")
            else:
                raise InvalidArgument("the step must be `start` or `append`", field="step")

    async def _start(self, start: log_pb2.AppendStart) -> TopicInfo:
        topic = await self._find_or_create(start)
        check_epoch(topic.name, topic.epoch, start.epoch)
        return topic

    async def _find_or_create(self, start: log_pb2.AppendStart) -> TopicInfo:
        if not start.HasField("create"):
            return await self._shard.get_topic(start.topic)
        asked = new_topic(start.create)
        try:
            return await self._shard.get_topic(start.topic)
        except TopicNotFound:
            check_epoch(start.topic, 0, start.epoch)
        try:
            return await self._shard.create_topic(start.topic, asked.kind, asked.config)
        except TopicExists:
            # Another caller made it meanwhile. If it is deleted again, this call gets the error.
            return await self._shard.get_topic(start.topic)

    async def _stage(self, topic: TopicInfo, append: log_pb2.AppendBatch, rows: bytes | None) -> None:
        request = parse_append_request(append, rows, topic=topic.name, kind=topic.kind, epoch=topic.epoch)
        if self._traceparent:
            request = request._replace(traceparent=self._traceparent)
        ack = await self._shard.stage(request)
        ack.add_done_callback(self._told)
        size_bytes = request.batch.nbytes
        self._staged.append(_Staged(ack, size_bytes))
        self._staged_bytes += size_bytes
        while len(self._staged) >= AHEAD_APPENDS_MAX or self._staged_bytes >= AHEAD_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    async def _answer(self) -> None:
        while True:
            # No caller awaits the acknowledgement itself: cancelling a call does not take back an append that has its place.
            while self._staged and self._staged[0].ack.done():
                staged = self._staged[0]
                await self._context.write(answer_of(staged.ack.result()))
                self._staged.popleft()
                self._staged_bytes -= staged.size_bytes
                self._room.set()
            if self._read_all and not self._staged:
                break
            self._news.clear()
            await self._news.wait()
        if self._failure is not None:
            raise self._failure

    def _told(self, ack: Ack) -> None:
        self._news.set()


def answer_of(result: AppendResult) -> log_pb2.AppendStreamResponse:
    """Return an acknowledgement as the stream's answer."""
    return log_pb2.AppendStreamResponse(
        first_seq=result.first_seq,
        last_seq=result.last_seq,
        ts_ms=result.ts_ms,
        deduplicated=result.deduplicated,
        epoch=result.epoch,
    )
