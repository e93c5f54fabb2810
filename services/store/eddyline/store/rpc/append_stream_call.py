"""One AppendStream call: reads steps ahead, stages them in order and answers in that order.

I1: answers are in the order of the steps, one each, and an answer's outcomes in that of its appends. I2: the first failure
ends the stream: all appends staged before it are answered first, nothing after it is staged. In an independent stream an
append that fails with a domain error is answered with it, and the stream goes on. I3: at most 16 steps or 16 MiB are read
ahead of their answers, so a client faster than the disk waits in its own send buffer. I4: the appends of a step are staged
without a turn of the loop between them, unless one waits for its topic's gate: they join one group commit. Each is admitted,
deduplicated and acknowledged alone, as a step of one append is.
A cancelled call, or one past its deadline, stops reading; appends that have their place in the log are carried out.
Threading: event loop; one task reads and stages, the call's own task answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import (
    EddylineError,
    InvalidArgument,
    StreamOrder,
    TopicExists,
    TopicNotFound,
)
from eddyline.core.runtime.tasks import run_with
from eddyline.core.store_link.append_steps import (
    STEP_APPENDS_MAX,
    several_to_pb,
    single_to_pb,
)
from eddyline.store.rpc.requests import new_topic, parse_append_request
from eddyline.store.rpc.stream_context import open_stream
from eddyline.store.write.validation import check_epoch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.core.codec.row_split import SplitRequest
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.append_steps import AppendOutcome
    from eddyline.store.log.append import Ack
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext
    from eddyline.store.shard.api import ShardApi
    from eddyline.v1 import log_pb2

AHEAD_STEPS_MAX: Final = 16
AHEAD_BYTES_MAX: Final = 16 << 20
"""The contract's bounds. 16 appends of 1 000 records keep a group commit full while the previous one is written."""


class _StagedStep(NamedTuple):
    """A step whose appends have their places; of an append that was refused, its error."""

    acks: list[Ack | EddylineError]
    size_bytes: int
    is_single: bool

    def awaited(self) -> Ack | None:
        """Return the last acknowledgement that has not come; None = the step can be answered."""
        for ack in reversed(self.acks):
            if not isinstance(ack, EddylineError) and not ack.done():
                return ack
        return None


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
        self._staged: deque[_StagedStep] = deque()
        self._staged_bytes = 0
        self._failure: EddylineError | None = None
        self._independent = False
        self._answered = False
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
                await self._stage(topic, (step.append,), rows)
            elif which == "appends":
                await self._stage(topic, _checked(step.appends), None, is_single=False)
            elif which == "start":
                raise StreamOrder("an append stream has only one `start`", field="step")
            else:
                raise InvalidArgument("the step must be `start`, `append` or `appends`", field="step")

    async def _start(self, start: log_pb2.AppendStart) -> TopicInfo:
        self._independent = start.independent
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

    async def _stage(
        self, topic: TopicInfo, appends: Sequence[log_pb2.AppendBatch], rows: bytes | None, *, is_single: bool = True
    ) -> None:
        """Stage the appends of one step; return when there is room for another step."""
        acks: list[Ack | EddylineError] = []
        size_bytes = 0
        try:
            for append in appends:
                try:
                    request = parse_append_request(append, rows, topic=topic.name, kind=topic.kind, epoch=topic.epoch)
                    if self._traceparent:
                        request = request._replace(traceparent=self._traceparent)
                    acks.append(await self._shard.stage(request))
                    size_bytes += request.batch.nbytes
                except EddylineError as error:
                    if not self._independent:
                        raise
                    acks.append(error)
        finally:
            if acks:  # also if this step ends the stream: those before its failure are answered
                self._staged.append(_StagedStep(acks, size_bytes, is_single))
                self._staged_bytes += size_bytes
                if len(self._staged) == 1:
                    self._news.set()
        while len(self._staged) >= AHEAD_STEPS_MAX or self._staged_bytes >= AHEAD_BYTES_MAX:
            self._room.clear()
            await self._room.wait()

    async def _answer(self) -> None:
        while True:
            # No caller awaits the acknowledgement itself: cancelling a call does not take back an append that has its place.
            self._news.clear()
            while self._staged:
                awaited = self._staged[0].awaited()
                if awaited is not None:
                    # One callback a step: appends of a topic are acknowledged in their order, mostly in one group.
                    awaited.add_done_callback(self._told)
                    break
                await self._answer_step(self._staged[0])
                self._staged_bytes -= self._staged.popleft().size_bytes
                self._room.set()
            if self._read_all and not self._staged:
                break
            await self._news.wait()
        if self._failure is not None:
            raise self._failure

    async def _answer_step(self, step: _StagedStep) -> None:
        """Send a step's answer.

        Raises:
            the step's first failure, behind the outcomes of the appends before it, unless the stream is independent.
        """
        outcomes: list[AppendOutcome] = []
        failure: BaseException | None = None
        for ack in step.acks:
            error = ack if isinstance(ack, EddylineError) else ack.exception()
            if error is None:
                assert not isinstance(ack, EddylineError)
                outcomes.append(ack.result())
            elif self._independent and isinstance(error, EddylineError):
                outcomes.append(error)
            else:
                failure = error
                break
        if outcomes:
            answer = single_to_pb(outcomes[0]) if step.is_single else several_to_pb(outcomes)
            if not self._answered:
                self._answered = True
                answer.appends_max = STEP_APPENDS_MAX
            await self._context.write(answer)
        if failure is not None:
            raise failure

    def _told(self, ack: Ack) -> None:
        self._news.set()


def _checked(step: log_pb2.AppendBatches) -> Sequence[log_pb2.AppendBatch]:
    """Return the appends of a step of several.

    Raises:
        InvalidArgument: none, or more than `STEP_APPENDS_MAX`.
    """
    count = len(step.appends)
    if not 1 <= count <= STEP_APPENDS_MAX:
        raise InvalidArgument(
            f"a step must have 1 to {STEP_APPENDS_MAX} appends, not {count}",
            field="appends",
            appends=count,
            appendsMax=STEP_APPENDS_MAX,
        )
    return step.appends
