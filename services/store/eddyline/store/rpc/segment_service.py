"""SegmentService: splits of a topic's log and folds, planned and read. Translates, validates, delegates.

A read sends one answer at a time, each when gRPC has accepted the one before. A slow reader holds one stored batch of
memory; one that takes no answer for `STALL_S_MAX` is ended, since other readers wait for its slot. Answers with a batch are
encoded here, in one copy on a reader thread: protobuf's four copies would block the event loop, and appends with it.
Threading: event loop; the call's own task.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_hexdigest

from eddyline.core.codec import records as wire
from eddyline.core.codec.varint import encode_varint
from eddyline.core.errors import InvalidArgument, PageTokenInvalid, ScanExpired
from eddyline.core.model.paging import name_after, token_after
from eddyline.core.records.arrow import COLUMN_NAMES
from eddyline.core.records.record import Gap
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.tasks import run_with
from eddyline.core.server.server import RawMethod
from eddyline.store.rpc.limits import LoopThrottle
from eddyline.store.rpc.requests import parse_filter
from eddyline.store.rpc.stream_context import open_stream
from eddyline.store.splits.model import (
    ALL,
    SPLITS_MAX,
    ArrowMessage,
    EncodedBatch,
    PlanMark,
    PlanRequest,
    SchemaMessage,
    Split,
    SplitFilter,
    SplitKind,
    SplitRead,
)
from eddyline.v1 import segment_pb2, segment_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext
    from eddyline.store.splits.model import SplitFrame

STALL_S_MAX: Final = 300.0
"""As long as a range scan may take: a reader that takes no answer for so long is stuck, and blocks others."""
_PLAN: Final = "PlanSplits"
_BATCH_TAG: Final = b"\x12"
_MESSAGE_TAG: Final = b"\x0a"
"""Field numbers of `ReadSplitResponse.batch` (2) and `ArrowBatch.message` (1), both with a length."""
_UNSET: Final = segment_pb2.SPLIT_KIND_UNSPECIFIED


class SegmentServicer(segment_pb2_grpc.SegmentServiceServicer):
    """SegmentService on the shard of a handle."""

    def __init__(self, handle: ShardHandle, *, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._share = LoopThrottle(clock)

    def raw_methods(self) -> dict[str, RawMethod]:
        """Return the methods whose answers are bytes, to register in place of the generated ones."""
        parse = segment_pb2.ReadSplitRequest.FromString
        return {"ReadSplit": RawMethod(self.ReadSplit, parse, response_stream=True)}

    async def PlanSplits(
        self, request: segment_pb2.PlanSplitsRequest, context: object
    ) -> segment_pb2.PlanSplitsResponse:
        shard = self._handle.get()
        if request.page_size < 0:
            message = f"page_size must be 0 or more, not {request.page_size}"
            raise InvalidArgument(message, field="page_size", pageSize=request.page_size)
        bound = _bound(request)
        asked = PlanRequest(
            after_seq=request.after_seq,
            end_seq=request.end_seq,
            as_of_seq=request.as_of_seq if request.HasField("as_of_seq") else None,
            split_filter=_filter(request.filter),
            max_records=request.max_records,
            max_bytes=request.max_bytes,
            limit=min(request.page_size, SPLITS_MAX),
            mark=_mark(name_after(request.page_token, call=_PLAN, argument=bound)),
        )
        plan = await shard.plan_splits(request.topic, asked, epoch=request.epoch)
        token = ".".join(map(str, map(int, plan.mark))) if plan.mark is not None else ""
        return segment_pb2.PlanSplitsResponse(
            splits=map(_split_to_pb, plan.splits),
            next_page_token=token_after(token, call=_PLAN, argument=bound) if token else "",
            epoch=plan.epoch,
            first_seq=plan.first_seq,
            end_seq=plan.end_seq,
            head_seq=plan.head_seq,
        )

    async def ReadSplit(  # type: ignore[override]  # see `raw_methods`
        self, request: segment_pb2.ReadSplitRequest, context: StreamContext[bytes]
    ) -> None:
        shard = self._handle.get()
        if not request.epoch:
            raise InvalidArgument("the epoch of the split's plan is missing", field="epoch")
        asked = SplitRead(_split(request), _filter(request.filter), _columns(request.columns), batch_answer)
        frames = self._handle.each_until_stop(shard.read_split(request.topic, asked, epoch=request.epoch))
        await open_stream(context)
        async with aclosing(frames):
            async for frame in frames:
                if isinstance(frame, EncodedBatch):
                    await self._share.turn()
                await run_with(context.write(_answer(frame)), background=self._refuse_stalled())

    async def _refuse_stalled(self) -> None:
        await sleep(self._clock, STALL_S_MAX)
        raise ScanExpired(
            f"the caller read nothing for {STALL_S_MAX:.0f} s: read the split again",
            scanMsMax=round(STALL_S_MAX * 1000),
        )


def _bound(request: segment_pb2.PlanSplitsRequest) -> str:
    """Return the part of a request that its page tokens are bound to: all but the page."""
    plain = segment_pb2.PlanSplitsRequest()
    plain.CopyFrom(request)
    plain.ClearField("page_size")
    plain.ClearField("page_token")
    return xxh3_64_hexdigest(plain.SerializeToString(deterministic=True))


def _mark(name: str) -> PlanMark | None:
    if not name:
        return None
    numbers = name.split(".")
    if len(numbers) != len(PlanMark._fields) or not all(number.isdecimal() for number in numbers):
        raise PageTokenInvalid("the page token does not belong to this call", field="page_token")
    return PlanMark(*map(int, numbers))


def _filter(request: segment_pb2.SplitFilter) -> SplitFilter:
    parsed = SplitFilter(
        parse_filter(request.records), request.source_from_ns, request.source_end_ns, request.share_count, request.share
    )
    return ALL if parsed == ALL else parsed


def _columns(columns: Iterable[segment_pb2.SplitColumn.ValueType]) -> tuple[str, ...]:
    """Return the names of the requested columns, in the schema's order; none = all."""
    numbers = set(columns)
    if unknown := numbers.difference(range(1, len(COLUMN_NAMES) + 1)):
        message = f"unknown column {min(unknown)}"
        raise InvalidArgument(message, field="columns", column=min(unknown))
    if len(numbers) == len(COLUMN_NAMES):
        return ()
    return tuple(name for number, name in enumerate(COLUMN_NAMES, start=1) if number in numbers)


def _split(request: segment_pb2.ReadSplitRequest) -> Split:
    if not request.HasField("split"):
        raise InvalidArgument("the split is missing", field="split")
    asked = request.split
    if asked.kind == _UNSET or asked.kind not in segment_pb2.SplitKind.values():
        raise InvalidArgument(f"unknown split kind {asked.kind}", field="split.kind", kind=asked.kind)
    return Split(
        SplitKind(asked.kind),
        asked.first,
        asked.last,
        base_seq=asked.base_seq,
        base_generation=asked.base_generation,
        as_of_seq=asked.as_of_seq,
    )


def _split_to_pb(split: Split) -> segment_pb2.Split:
    return segment_pb2.Split(
        kind=segment_pb2.SplitKind.ValueType(split.kind),
        first=split.first,
        last=split.last,
        record_count=split.record_count,
        size_bytes=split.size_bytes,
        base_seq=split.base_seq,
        base_generation=split.base_generation,
        as_of_seq=split.as_of_seq,
    )


def _answer(frame: SplitFrame) -> bytes:
    """Return an answer as its wire bytes."""
    if isinstance(frame, EncodedBatch):
        return frame.answer
    if isinstance(frame, ArrowMessage):
        return batch_answer(frame)
    if isinstance(frame, Gap):
        answer = segment_pb2.ReadSplitResponse(gap=wire.gap_to_pb(frame))
    elif isinstance(frame, SchemaMessage):
        answer = segment_pb2.ReadSplitResponse(schema=frame.message)
    else:
        answer = segment_pb2.ReadSplitResponse(end=segment_pb2.SplitEnd(**frame._asdict()))
    return answer.SerializeToString()


def batch_answer(batch: ArrowMessage) -> bytes:
    """Encode a ReadSplitResponse with this batch."""
    small = segment_pb2.ArrowBatch(checksum=batch.checksum, count=batch.rows).SerializeToString()
    length = encode_varint(len(batch.message))
    head = encode_varint(len(small) + len(_MESSAGE_TAG) + len(length) + len(batch.message))
    return b"".join((_BATCH_TAG, head, small, _MESSAGE_TAG, length, batch.message))
