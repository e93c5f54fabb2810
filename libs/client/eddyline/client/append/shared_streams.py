"""Appends of callers that do not know of each other: those of one topic that are in flight at once share a stream.

An append alone goes by AppendRecords. One that comes while another of its topic is in flight opens a stream, on which the
topic's appends go from then on, gathered (`gathered_call.py`) and independent: each has its own result or error, as by
AppendRecords, and an older server gets them by AppendRecords.
I1: an append is never sent twice without the caller's `idempotency_key`, which `Client.append` repeats calls by: one that
the stream did not send, or whose topic the stream knew by an epoch that is gone, goes by AppendRecords.
I2: at most `STREAMS_MAX` topics have a stream; the one that was used longest ago and has nothing in flight ends for
another, and one without use for `IDLE_S_MAX`. Without a stream appends go by AppendRecords.
Threading: one event loop. `close` ends all streams, whatever is in flight.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.append.gathered_call import ALONE_BYTES_MIN, GatheredCall
from eddyline.client.transport.call import call_once
from eddyline.core.errors import Deadline, EddylineError, EpochMismatch, TopicNotFound
from eddyline.core.runtime.tasks import noop, task_group
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.client.append.gathered_call import Acknowledgement, AppendCall
    from eddyline.core.runtime.clock import Clock, Timer

    OpenCall = Callable[[], AppendCall]
    MakeCall = Callable[[], Awaitable[log_pb2.AppendRecordsResponse]]

STREAMS_MAX: Final = 16
"""A stream takes 23 KiB of the store's memory, and one of the calls that a key may have in flight."""
IDLE_S_MAX: Final = 5.0
"""Opening another stream costs as much as a few calls; an idle one counts against the key's quota of calls."""


@dataclass(slots=True, eq=False)
class _Lane:
    """What is in flight to one topic."""

    in_flight: int = 0
    call: GatheredCall | None = None
    task: asyncio.Task[None] | None = None
    uses: int = 0
    timer: Timer | None = None


@asynccontextmanager
async def shared_streams(clock: Clock) -> AsyncIterator[SharedStreams]:
    """The streams of one client; they end with the block."""
    async with task_group() as tasks:
        streams = SharedStreams(tasks, clock)
        try:
            yield streams
        finally:
            streams.close()


class SharedStreams:
    """The streams of one client. `tasks` runs them, and must outlive them."""

    def __init__(self, tasks: asyncio.TaskGroup, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._lanes: dict[str, _Lane] = {}
        """By topic; those used last are last."""
        self._takes_several = True
        """False = the server of a stream takes no several appends in a message."""
        self._closed = False

    async def append(
        self, request: log_pb2.AppendRecordsRequest, make_call: MakeCall, *, open_call: OpenCall, timeout_s: float
    ) -> AppendResult:
        """Append within `timeout_s` by the topic's stream, which `open_call` opens, or by `make_call`.

        Raises:
            EddylineError: the append's own, as AppendRecords has it.
        """
        topic = request.topic
        lane = self._lanes.pop(topic, None) or _Lane()
        self._lanes[topic] = lane
        lane.in_flight += 1
        lane.uses += 1
        try:
            call = self._stream_of(topic, lane, open_call)
            if call is not None:
                result = await _by_stream(call, request, timeout_s)
                if result is not None:
                    return result
                if call.takes_several is False:
                    self._takes_several = False
            return append_result(await call_once(make_call()))
        finally:
            lane.in_flight -= 1
            if not lane.in_flight:
                self._watch_idle(lane)
                self._forget(topic, lane)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
            if lane.timer is not None:
                lane.timer.cancel()

    def _stream_of(self, topic: str, lane: _Lane, open_call: OpenCall) -> GatheredCall | None:
        """Return the stream that an append to the topic goes by; None = by none."""
        if self._closed or not self._takes_several:
            return None
        if lane.call is None and lane.in_flight > 1 and self._make_room():
            lane.call = GatheredCall(open_call(), on_outcome=noop, independent=True)
            lane.task = self._tasks.create_task(self._run(topic, lane, lane.call), name=f"appends to {topic}")
        return lane.call

    def _make_room(self) -> bool:
        """End the stream that was used longest ago where there are as many as may be. False = all are in use."""
        open_lanes = [lane for lane in self._lanes.values() if lane.call is not None]
        if len(open_lanes) < STREAMS_MAX:
            return True
        idle = next((lane for lane in open_lanes if not lane.in_flight), None)
        if idle is None:
            return False
        _end(idle)
        return True

    def _watch_idle(self, lane: _Lane) -> None:
        """End the lane's stream when it was idle for `IDLE_S_MAX`; one timer a lane."""
        if lane.call is not None and lane.timer is None and not self._closed:
            uses = lane.uses
            lane.timer = self._clock.call_later(IDLE_S_MAX, lambda: self._end_idle(lane, uses))

    def _end_idle(self, lane: _Lane, uses: int) -> None:
        lane.timer = None
        if not lane.in_flight:
            if lane.uses == uses:
                _end(lane)
            else:
                self._watch_idle(lane)

    async def _run(self, topic: str, lane: _Lane, call: GatheredCall) -> None:
        """Run a stream to its end."""
        try:
            await call.run(log_pb2.AppendStart(topic=topic))
        finally:
            if lane.call is call:
                lane.call = lane.task = None
            # A timer that is left ends nothing: the lane has no stream then, or a new one in use.
            self._forget(topic, lane)

    def _forget(self, topic: str, lane: _Lane) -> None:
        if not lane.in_flight and lane.call is None and self._lanes.get(topic) is lane:
            del self._lanes[topic]


def _end(lane: _Lane) -> None:
    """End a lane's idle stream."""
    if lane.task is not None:
        lane.task.cancel()
    lane.call = lane.task = None


def append_result(answer: log_pb2.AppendRecordsResponse) -> AppendResult:
    """Return the answer of AppendRecords as its values."""
    return AppendResult(answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated)


def may_share(request: log_pb2.AppendRecordsRequest) -> bool:
    """True = a stream can carry the append: it is small, creates no topic, and waits for no keys to be read."""
    return (
        not request.HasField("create") and not request.expected_versions and request.ByteSize() < ALONE_BYTES_MIN // 2
    )


async def _by_stream(
    call: GatheredCall, request: log_pb2.AppendRecordsRequest, timeout_s: float
) -> AppendResult | None:
    """Append by a stream; None = nothing was stored, and AppendRecords has to say what becomes of it.

    Raises:
        EddylineError: the append's own.
    """
    append = log_pb2.AppendBatch(
        rows=request.rows,
        idempotency_key=request.idempotency_key,
        expected_head_seq=request.expected_head_seq if request.HasField("expected_head_seq") else None,
    )
    acknowledgement: Acknowledgement | None = None
    try:
        async with asyncio.timeout(timeout_s):
            acknowledgement = await call.put(append.SerializeToString())
            return await acknowledgement
    except TimeoutError:
        late = Deadline(f"the append was not acknowledged within {timeout_s:g} s")
        late.unanswered = True
        raise late from None
    except EddylineError as error:
        if acknowledgement is None or acknowledgement.unsent:
            return None
        # The stream keeps the epoch of its start. The topic may have been made again since.
        if isinstance(error, EpochMismatch | TopicNotFound):
            call.cancel()
            return None
        raise
    finally:
        if acknowledgement is not None and not acknowledgement.done:
            call.withdraw(acknowledgement)
