"""The log as a stream of events, resumed where it breaks off: what `read` is made of, and healing by snapshots.

I1: each call asks for what lies behind the last frame taken, so that a resume neither misses nor repeats.
I2: a call lives at most `STREAM_S` and is replaced by one at its place, so that a store that hangs is noticed.
Failure: a store that is away is tried again, with full jitter: for `CALL_TIMEOUT_S` without progress, a follower for a
day. Progress is a place that moves: a snapshot that breaks off starts over, so its entries do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import CALL_TIMEOUT_S, STREAM_RETRYABLE, call_once, domain_errors
from eddyline.client.transport.items import Items
from eddyline.client.transport.records import decode_records
from eddyline.client.watch.events import CaughtUp, Lost, Position, Records, SnapshotBegan, SnapshotEnded
from eddyline.core.codec.records import filter_to_pb, gap_from_pb
from eddyline.core.errors import Code, EddylineError
from eddyline.core.model.read import ALL_RECORDS, RecordFilter
from eddyline.v1 import log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from eddyline.client.transport.call import Retry
    from eddyline.core.records.record import Record
    from eddyline.v1.log_pb2_grpc import LogServiceStub

FOLLOW_PATIENCE_S: Final = 86_400.0
"""A follower waits this long for a store that is away before it gives up. A day: long enough for any repair."""
STREAM_S: Final = 300.0
"""Default in gRPC: no deadline; a stream whose store hangs would wait for ever. As long as a store keeps a snapshot's
view, so that no snapshot is cut off that the store would have finished. Costs a follower one call each 5 minutes."""

PROBE_S: Final = 5.0
"""A store that takes longer for a single record is as good as gone."""

StreamEvent = Records | Lost | SnapshotBegan | SnapshotEnded | CaughtUp


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The request of one stream; `end_seq` is exclusive, 0 = the head at the start (with `follow` none).

    `heals` = after a gap the current values come, then the log from there. `on_retry` hears why a call is repeated,
    `on_resume` that one answers again.
    """

    topic: str
    after: Position
    follow: bool = False
    end_seq: int = 0
    record_filter: RecordFilter = ALL_RECORDS
    heals: bool = False
    on_retry: Callable[[EddylineError], None] | None = None
    on_resume: Callable[[], None] | None = None


def stream_log(stub: LogServiceStub, plan: StreamPlan, *, retry: Retry) -> Items[StreamEvent]:
    """Yield what `plan` asks for, in order. A caller that stops early closes it.

    Raises:
        EddylineError: TopicNotFound, CursorAhead, DataCorrupt, InvalidArgument, of snapshots NotKv and FoldLost; an
            unreachable store after a while.
    """
    place = StreamPlace(plan)
    return Items.one_by_one(lambda: stream_from(stub, place, retry=retry))


async def stream_from(stub: LogServiceStub, frames: StreamPlace, *, retry: Retry) -> AsyncGenerator[StreamEvent, None]:
    """Yield what lies behind a place, which moves with what was yielded."""
    plan = frames.plan
    tries = retry.tries(
        timeout_s=FOLLOW_PATIENCE_S if plan.follow else CALL_TIMEOUT_S,
        retryable=STREAM_RETRYABLE,
        on_retry=plan.on_retry,
    )
    while True:
        away = await _away(stub, frames.place_request()) if tries.failures else None
        if away is not None:
            await tries.wait(away)
            continue
        call = stub.StreamRecords(frames.request(), timeout=STREAM_S)
        came = False
        try:
            with domain_errors():
                async for frame in call:
                    if tries.failures and plan.on_resume is not None:
                        plan.on_resume()
                    came, place = True, frames.place
                    event = frames.accept(frame)
                    if frames.place != place:
                        tries.reset()
                    if event is not None:
                        yield event
                return
        except EddylineError as error:
            failure = error
        finally:
            call.cancel()
        if came and failure.code is Code.DEADLINE_EXCEEDED:
            tries.reset()  # it lived as long as it may, however little came
        else:
            await tries.wait(failure)


async def _away(stub: LogServiceStub, request: log_pb2.ReadRecordsRequest) -> EddylineError | None:
    """Why the store does not answer, by a small call; None = it does, and the stream says what it has to.

    A stream that cannot be opened costs grpc.aio 530 bytes that it never gives back, a unary call nothing.
    """
    try:
        await call_once(stub.ReadRecords(request, timeout=PROBE_S))
    except EddylineError as error:
        return error if error.code in STREAM_RETRYABLE else None
    return None


class StreamPlace:
    """The place of one stream, moved by its frames."""

    def __init__(self, plan: StreamPlan) -> None:
        self.place = plan.after
        """Everything up to it was taken."""
        self.plan = plan
        self._end_seq = plan.end_seq
        self._snapshot_seq = 0
        self._in_snapshot = False
        self._holds = False

    def place_request(self) -> log_pb2.ReadRecordsRequest:
        """One record behind its place."""
        return log_pb2.ReadRecordsRequest(
            topic=self.plan.topic, after_seq=self.place.seq, epoch=self.place.epoch, limit=1
        )

    def request(self) -> log_pb2.StreamRecordsRequest:
        """Return the next request."""
        self._in_snapshot = False
        return log_pb2.StreamRecordsRequest(
            topic=self.plan.topic,
            after_seq=self.place.seq,
            epoch=self.place.epoch,
            end_seq=self._end_seq,
            follow=self.plan.follow,
            filter=filter_to_pb(self.plan.record_filter),
            format=types_pb2.BATCH_FORMAT_COLUMNS,
            on_gap=log_pb2.GAP_POLICY_HEAL if self.plan.heals else log_pb2.GAP_POLICY_TELL,
        )

    def accept(self, frame: log_pb2.StreamRecordsResponse) -> StreamEvent | None:
        """The event of a frame; None = it moves the place only.

        Raises:
            MalformedColumns, RecordTooLarge: as `decode_records`; the place did not move.
        """
        here, kind = Position(frame.epoch, frame.next_after_seq), frame.WhichOneof("frame")
        records: Sequence[Record] = ()
        if kind in {"columns", "rows"}:
            records = decode_records(frame.columns if kind == "columns" else frame.rows)
        self.place = here
        name = self.plan.topic
        match kind:
            case "rows" | "columns":
                return self._records(records, here, batch_end=frame.batch_end)
            case "gap":
                gap = gap_from_pb(frame.gap)
                if gap.new_epoch:
                    self._end_seq = 0  # it was of the topic that is gone
                return Lost(name, gap, here)
            case "snapshot_begin":
                self._in_snapshot, self._snapshot_seq = True, frame.snapshot_begin.seq
                return SnapshotBegan(name, self._snapshot_seq)
            case "snapshot_end":
                self._in_snapshot = False
                return SnapshotEnded(name, self._snapshot_seq, frame.snapshot_end.count, here)
            case "caught_up":
                return CaughtUp()
            case None if frame.batch_end and self._holds:
                return self._records((), here, batch_end=True)
            case _:
                return None  # a newer store's frame moves the place

    def _records(self, records: Sequence[Record], here: Position, *, batch_end: bool) -> Records:
        self._holds = not (batch_end or self._in_snapshot)
        return Records(self.plan.topic, records, here, self._in_snapshot, batch_end=batch_end)
