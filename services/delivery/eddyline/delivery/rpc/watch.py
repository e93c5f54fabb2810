"""WatchTopics: checks the request and converts it to values; answers pass as bytes.

Served as a raw method (`eddyline.core.server.server`): a frame was encoded once for all streams with the same view, and
is sent unchanged.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from eddyline.core.codec.records import wants_columns
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import check_name
from eddyline.core.records.record import (
    KEY_BYTES_MAX,
    MESSAGE_BYTES_DEFAULT,
    MESSAGE_BYTES_MAX,
    NODE_BYTES_MAX,
    TAG_BYTES_MAX,
)
from eddyline.delivery.feed.oversize import MessageLimit
from eddyline.delivery.resume_token import Cursor
from eddyline.delivery.watch.request import FromRevision, FromTime, StartPoint, TopicRequest, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    import grpc

    from eddyline.core.server.wire import Backlog
    from eddyline.delivery.watch.watches import Watches

    Context = grpc.aio.ServicerContext[pb.WatchTopicsRequest, bytes]

SERVICE: Final = "eddyline.v1.DeliveryService"
WATCH_TOPICS: Final = "WatchTopics"

TOPICS_MAX: Final = 1_000
CONDITIONS_MAX: Final = 1_000
"""Unbounded in NATS: each record is compared with every prefix. 1 000 cost 0.3 ms a batch of 1 000 records."""
HEARTBEAT_MS_DEFAULT: Final = 10_000
HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 60_000

_POINTS: Final = {
    pb.START_POINT_UNSPECIFIED: StartPoint.TAIL,
    pb.START_POINT_TAIL: StartPoint.TAIL,
    pb.START_POINT_SNAPSHOT: StartPoint.SNAPSHOT,
    pb.START_POINT_EARLIEST: StartPoint.EARLIEST,
}


class WatchMethod:
    """Answers WatchTopics."""

    def __init__(
        self,
        watches: Watches,
        backlog_of: Callable[[object], Backlog | None],
        call_of: Callable[[object], object | None],
    ) -> None:
        """Both functions take a call's context. `backlog_of` returns what its client has not taken; None = not visible.

        `call_of` returns the call to which the fan may send; None = it may not.
        """
        self._watches = watches
        self._backlog_of = backlog_of
        self._call_of = call_of

    async def answer(self, request: pb.WatchTopicsRequest, context: Context) -> AsyncGenerator[bytes, None]:
        """Serve one stream."""
        backlog, call = partial(self._backlog_of, context), self._call_of(context)
        watch = request_from_pb(request)
        async with (
            self._watches.open(watch, peer=context.peer(), backlog=backlog, call=call) as subscriber,
            aclosing(subscriber.frames()) as frames,
        ):
            async for frame in frames:
                yield frame


def request_from_pb(request: pb.WatchTopicsRequest) -> WatchRequest:
    """Check a request, and convert it.

    Raises:
        InvalidName, InvalidArgument: with the wrong field.
    """
    if not 1 <= len(request.topics) <= TOPICS_MAX:
        raise InvalidArgument(
            f"a watch has 1 to {TOPICS_MAX} topics, not {len(request.topics)}",
            field="topics",
            count=len(request.topics),
            limit=TOPICS_MAX,
        )
    topics = tuple(_topic_request(topic, f"topics[{index}]") for index, topic in enumerate(request.topics))
    names: set[str] = set()
    for index, wanted in enumerate(topics):
        if wanted.topic in names:
            raise InvalidArgument(
                f"topic {wanted.topic} is named twice", field=f"topics[{index}].topic", topic=wanted.topic
            )
        names.add(wanted.topic)
    heartbeat_ms = request.heartbeat_ms or HEARTBEAT_MS_DEFAULT
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise InvalidArgument(
            f"heartbeat_ms must be 0 or {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms}",
            field="heartbeat_ms",
            heartbeatMs=heartbeat_ms,
        )
    return WatchRequest(
        topics=topics,
        resume_token=request.resume_token,
        columns=wants_columns(request.format),
        heartbeat_s=heartbeat_ms / 1000,
        resume_snapshots=request.resume_snapshots,
        limit=_limit(request),
    )


def _limit(request: pb.WatchTopicsRequest) -> MessageLimit:
    bytes_max = request.message_bytes_max or MESSAGE_BYTES_DEFAULT
    if bytes_max < MESSAGE_BYTES_DEFAULT:
        raise InvalidArgument(
            f"message_bytes_max must be 0 or at least {MESSAGE_BYTES_DEFAULT}, not {bytes_max}",
            field="message_bytes_max",
            messageBytesMax=bytes_max,
        )
    return MessageLimit(min(bytes_max, MESSAGE_BYTES_MAX), request.skip_oversize)


def _topic_request(wanted: pb.WatchTopic, field: str) -> TopicRequest:
    check_name(wanted.topic, f"{field}.topic")
    _check_conditions(wanted.key_prefixes, KEY_BYTES_MAX, f"{field}.key_prefixes")
    _check_conditions([tag.encode() for tag in wanted.tags], TAG_BYTES_MAX, f"{field}.tags")
    _check_conditions([node.encode() for node in wanted.exclude_nodes], NODE_BYTES_MAX, f"{field}.exclude_nodes")
    if wanted.on_gap not in log_pb2.GapPolicy.values():
        message = f"on_gap {wanted.on_gap} is not a gap policy; use TELL or HEAL"
        raise InvalidArgument(message, field=f"{field}.on_gap", onGap=wanted.on_gap)
    start = _start(wanted, field)
    if wanted.updates_only and (start is StartPoint.EARLIEST or isinstance(start, FromTime | FromRevision)):
        raise InvalidArgument(
            "updates_only starts at the head; leave out EARLIEST, ts_ms or revision",
            field=f"{field}.updates_only",
        )
    return TopicRequest(
        wanted.topic,
        start,
        tuple(wanted.key_prefixes),
        tags=tuple(wanted.tags),
        exclude_nodes=tuple(wanted.exclude_nodes),
        ignore_deletes=wanted.ignore_deletes,
        metadata_only=wanted.metadata_only,
        updates_only=wanted.updates_only,
        heals=wanted.on_gap == log_pb2.GAP_POLICY_HEAL,
    )


def _check_conditions(values: Sequence[bytes], bytes_max: int, field: str) -> None:
    if len(values) > CONDITIONS_MAX:
        name = field.rpartition(".")[2]
        raise InvalidArgument(
            f"a topic has at most {CONDITIONS_MAX} of {name}, not {len(values)}",
            field=field,
            count=len(values),
            limit=CONDITIONS_MAX,
        )
    longest = max(map(len, values), default=0)
    if longest > bytes_max:
        raise InvalidArgument(
            f"one of {field.rpartition('.')[2]} has at most {bytes_max} bytes, not {longest}",
            field=field,
            sizeBytes=longest,
            limitBytes=bytes_max,
        )


def _start(wanted: pb.WatchTopic, field: str) -> Cursor | FromTime | FromRevision | StartPoint:
    match wanted.WhichOneof("start"):
        case "cursor":
            cursor = wanted.cursor
            if cursor.topic not in ("", wanted.topic):
                raise InvalidArgument(
                    f"the cursor belongs to topic {cursor.topic}, not to {wanted.topic}",
                    field=f"{field}.cursor.topic",
                    cursorTopic=cursor.topic,
                    topic=wanted.topic,
                )
            return Cursor(wanted.topic, cursor.epoch, cursor.seq)
        case "ts_ms":
            if wanted.ts_ms < 0:
                raise InvalidArgument(f"ts_ms must be at least 0, not {wanted.ts_ms}", field=f"{field}.ts_ms")
            return FromTime(wanted.ts_ms)
        case "revision":
            if wanted.revision < 1:
                raise InvalidArgument("revision must be at least 1, not 0", field=f"{field}.revision")
            return FromRevision(wanted.revision)
        case "point" | None:
            point = _POINTS.get(wanted.point)
            if point is None:
                raise InvalidArgument(
                    f"{wanted.point} is not a start point", field=f"{field}.point", point=wanted.point
                )
            return point
        case other:
            assert_never(other)
