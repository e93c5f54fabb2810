"""One AppendStream call: reads steps ahead, stages them in order and answers in that order.

I1: answers are in the order of the steps, one each, and an answer's outcomes in that of its appends. I2: the first failure
ends the stream: all appends staged before it are answered first, nothing after it is staged. In an independent stream an
append that fails with a domain error is answered with it, and the stream goes on. I3: at most 16 steps or 16 MiB are read
ahead of their answers, so a client faster than the disk waits in its own send buffer. I4: the appends of a step are staged
without a turn of the loop between them, unless one waits for its topic's gate: they join one group commit. Each is admitted,
deduplicated and acknowledged alone, as a step of one append is.
A cancelled call, or one past its deadline, stops reading; appends that have their place in the log are carried out.
Where the wire can, steps are staged and answered by functions, without a coroutine a message: a step is staged as it comes,
and acknowledgements send the answers. The tasks then take only steps that must wait, and wait for a client that reads late.
Threading: event loop; one task reads and stages, the call's own task answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

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
from eddyline.core.transport.pushed_requests import as_pushed
from eddyline.store.rpc.requests import new_topic, parse_append_request
from eddyline.store.rpc.stream_context import DirectContext, open_stream
from eddyline.store.write.validation import check_epoch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from eddyline.core.codec.row_split import SplitRequest
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.append_steps import AppendOutcome
    from eddyline.core.transport.pushed_requests import PushedRequests
    from eddyline.store.log.append import Ack, AppendRequest
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext
    from eddyline.store.shard.api import ShardApi
    from eddyline.v1 import log_pb2

AHEAD_STEPS_MAX: Final = 16
AHEAD_BYTES_MAX: Final = 16 << 20
"""The contract's bounds. 16 appends of 1 000 records keep a group commit full while the previous one is written."""


class _Step:
    """A step whose appends get their places: its acknowledgements; of an append that was refused, its error."""

    __slots__ = ("acks", "appends", "is_single", "rows", "size_bytes", "topic", "waiting")

    waiting: AppendRequest
    """The append that must wait for its topic's gate."""

    def __init__(
        self, topic: TopicInfo, appends: Iterator[log_pb2.AppendBatch], rows: bytes | None, *, is_single: bool
    ) -> None:
        self.topic = topic
        self.appends = appends
        """Those that are not staged yet."""
        self.rows = rows
        self.is_single = is_single
        self.acks: list[Ack | EddylineError] = []
        self.size_bytes = 0

    def add(self, ack: Ack, request: AppendRequest) -> None:
        """Add an append that has its place."""
        self.acks.append(ack)
        self.size_bytes += request.batch.nbytes

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
        self._direct = context if isinstance(context, DirectContext) else None
        pushed: PushedRequests[SplitRequest[log_pb2.AppendStreamRequest]] | None = as_pushed(steps)
        self._pushed = pushed if self._direct is not None else None
        self._topic: TopicInfo | None = None
        self._staged: deque[_Step] = deque()
        self._staged_bytes = 0
        self._failure: EddylineError | None = None
        self._answer_failure: BaseException | None = None
        self._independent = False
        self._answered = False
        self._read_all = False
        self._is_blocked = False
        """The client takes no more answers."""
        self._is_paused = False
        """No step comes until there is room for one."""
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Serve the call to its end.

        Raises:
            the stream's first failure.
        """
        await open_stream(self._context)
        answering = self._answer() if self._pushed is None else self._drain()
        await run_with(answering, background=self._read())

    # -- reading

    async def _read(self) -> None:
        reading = self._take_steps() if self._pushed is None else self._receive(self._pushed)
        try:
            await self._handle.cancel_on_shed(reading)
        except EddylineError as error:
            self._failure = error
        finally:
            self._read_all = True
            self._news.set()

    async def _take_steps(self) -> None:
        async for step, rows in self._steps:
            await self._take(step, rows)
            while self._is_full:
                self._room.clear()
                await self._room.wait()

    async def _receive(self, requests: PushedRequests[SplitRequest[log_pb2.AppendStreamRequest]]) -> None:
        """Take steps as they come; here only those that must wait."""
        waiting: deque[SplitRequest[log_pb2.AppendStreamRequest] | _Step | Exception] = deque()
        news, ended = asyncio.Event(), asyncio.Event()

        def on_message(message: bytes) -> bool:
            if self._read_all:
                return False
            try:
                split = requests.decode(message)
                step = self._new_step(split.message, split.rows) if self._topic is not None else None
                if step is None:
                    waiting.append(split)
                elif not self._stage_now(step):
                    waiting.append(step)
                else:
                    self._is_paused = self._is_full
                    return not self._is_paused
            except Exception as error:  # the reading task raises it
                waiting.append(error)
            news.set()
            return False

        def on_end() -> None:
            ended.set()
            news.set()

        requests.receive(on_message, on_end)
        while waiting or not ended.is_set():
            await news.wait()
            news.clear()
            if waiting:
                item = waiting.popleft()
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, _Step):
                    await self._stage_rest(item)
                else:
                    await self._take(*item)
                self._is_paused = True
                self._go_on()

    def _go_on(self) -> None:
        """Let more steps come, once there is room."""
        if self._is_paused and not self._is_full and self._pushed is not None:
            self._is_paused = False
            self._pushed.resume()

    @property
    def _is_full(self) -> bool:
        return len(self._staged) >= AHEAD_STEPS_MAX or self._staged_bytes >= AHEAD_BYTES_MAX

    async def _take(self, step: log_pb2.AppendStreamRequest, rows: bytes | None) -> None:
        if self._topic is not None:
            await self._stage(self._new_step(step, rows))
        elif step.WhichOneof("step") == "start":
            self._topic = await self._start(step.start)
        else:
            raise StreamOrder("the first step of an append stream must be `start`", field="step")

    def _new_step(self, step: log_pb2.AppendStreamRequest, rows: bytes | None) -> _Step:
        """Return a step of appends, of which none is staged yet."""
        assert self._topic is not None
        which = step.WhichOneof("step")
        if which == "append":
            return _Step(self._topic, iter((step.append,)), rows, is_single=True)
        if which == "appends":
            return _Step(self._topic, iter(_checked(step.appends)), None, is_single=False)
        if which == "start":
            raise StreamOrder("an append stream has only one `start`", field="step")
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

    # -- staging

    async def _stage(self, step: _Step) -> None:
        """Stage the appends of a step."""
        if not self._stage_now(step):
            await self._stage_rest(step)

    async def _stage_rest(self, step: _Step) -> None:
        """Stage the append of a step that must wait, and those behind it."""
        is_waiting = True
        while is_waiting:
            try:
                step.add(await self._shard.stage(step.waiting), step.waiting)
            except BaseException as error:
                self._refuse(step, error)
            is_waiting = not self._stage_now(step)

    def _stage_now(self, step: _Step) -> bool:
        """Stage the appends of a step until one must wait: `step.waiting`. Return True if none must, and all are staged."""
        for append in step.appends:
            try:
                request = parse_append_request(
                    append, step.rows, topic=step.topic.name, kind=step.topic.kind, epoch=step.topic.epoch
                )
                if self._traceparent:
                    request = request._replace(traceparent=self._traceparent)
                ack = self._shard.stage_now(request)
                if ack is None:
                    step.waiting = request
                    return False
                step.add(ack, request)
            except EddylineError as error:
                self._refuse(step, error)
        self._enqueue(step)
        return True

    def _refuse(self, step: _Step, error: BaseException) -> None:
        """Take an append that failed: in an independent stream it is answered so.

        Raises:
            `error`, else: those of the step before it are answered first.
        """
        if not self._independent or not isinstance(error, EddylineError):
            self._enqueue(step)
            raise error
        step.acks.append(error)

    def _enqueue(self, step: _Step) -> None:
        if not step.acks:
            return
        self._staged.append(step)
        self._staged_bytes += step.size_bytes
        if len(self._staged) == 1:
            if self._pushed is None:
                self._news.set()
            else:
                self._answer_at(step.awaited())

    # -- answering

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
                answer = self._answer_of(self._staged[0])
                if answer is not None:
                    await self._context.write(answer)
                if self._answer_failure is not None:
                    raise self._answer_failure
                self._staged_bytes -= self._staged.popleft().size_bytes
                self._room.set()
            if self._read_all and not self._staged:
                break
            await self._news.wait()
        if self._failure is not None:
            raise self._failure

    def _told(self, _ack: Ack) -> None:
        self._news.set()

    async def _drain(self) -> None:
        """Wait for the end of a stream that `_answer_now` answers, and for its client where it does not read."""
        assert self._direct is not None
        while self._answer_failure is None and not (self._read_all and not self._staged):
            await self._news.wait()
            self._news.clear()
            if self._is_blocked:
                await self._direct.drained()
                self._is_blocked = False
                self._answer_now()
        failure = self._answer_failure or self._failure
        if failure is not None:
            raise failure

    def _answer_at(self, ack: Ack | None) -> None:
        """Answer once `ack` has come; None = in the next turn."""
        if ack is None:
            asyncio.get_running_loop().call_soon(self._answer_now)
        else:
            ack.add_done_callback(self._answer_now)

    def _answer_now(self, _ack: Ack | None = None) -> None:
        """Send all answers that are due."""
        assert self._direct is not None
        while self._staged and not self._is_blocked and self._answer_failure is None:
            awaited = self._staged[0].awaited()
            if awaited is not None:
                self._answer_at(awaited)
                break
            try:
                answer = self._answer_of(self._staged[0])
                if answer is not None:
                    self._is_blocked = not self._direct.write_now(answer)
            except Exception as error:  # the call's own task raises it, e.g. that the client has gone
                self._answer_failure = error
            if self._answer_failure is None:
                self._staged_bytes -= self._staged.popleft().size_bytes
        if self._is_blocked or self._answer_failure is not None or (self._read_all and not self._staged):
            self._news.set()
        else:
            self._go_on()

    def _answer_of(self, step: _Step) -> log_pb2.AppendStreamResponse | None:
        """Return a step's answer; None = there is none before its failure.

        `_answer_failure` is then its first failure, behind the outcomes of the appends before it, unless the stream is
        independent.
        """
        outcomes: list[AppendOutcome] = []
        for ack in step.acks:
            error = ack if isinstance(ack, EddylineError) else ack.exception()
            if error is None:
                assert not isinstance(ack, EddylineError)
                outcomes.append(ack.result())
            elif self._independent and isinstance(error, EddylineError):
                outcomes.append(error)
            else:
                self._answer_failure = error
                break
        if not outcomes:
            return None
        answer = single_to_pb(outcomes[0]) if step.is_single else several_to_pb(outcomes)
        if not self._answered:
            self._answered = True
            answer.appends_max = STEP_APPENDS_MAX
        return answer


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
