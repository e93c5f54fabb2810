"""WatchTopics: the request checked and turned into values, the answers passed through as bytes.

Served as a raw method (`eddyline.core.server`): frames were encoded once for all streams that want the same, and go out as
they are.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.core.cursor import Cursor
from eddyline.core.errors import InvalidArgument
from eddyline.core.record import KEY_BYTES_MAX
from eddyline.core.topic import check_name
from eddyline.core.wire import wants_columns
from eddyline.delivery.watches import Point, WantedTopic, WatchRequest
from eddyline.v1 import delivery_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.delivery.watches import Watches

SERVICE: Final = "eddyline.v1.DeliveryService"
WATCH_TOPICS: Final = "WatchTopics"

TOPICS_MAX: Final = 1_000
PREFIXES_MAX: Final = 1_000
"""Elsewhere unbounded: each record is compared with every prefix. 1 000 cost 0.3 ms a batch of 1 000 records."""
HEARTBEAT_MS_DEFAULT: Final = 10_000
HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 60_000

_POINTS: Final = {
    pb.START_POINT_UNSPECIFIED: Point.TAIL,
    pb.START_POINT_TAIL: Point.TAIL,
    pb.START_POINT_SNAPSHOT: Point.SNAPSHOT,
    pb.START_POINT_EARLIEST: Point.EARLIEST,
}


class WatchMethod:
    """Answers WatchTopics."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    async def answer(self, request: pb.WatchTopicsRequest, context: object) -> AsyncGenerator[bytes, None]:
        """Serve one stream."""
        async with self._watches.open(request_from_pb(request)) as subscriber, aclosing(subscriber.frames()) as frames:
            async for frame in frames:
                yield frame


def request_from_pb(request: pb.WatchTopicsRequest) -> WatchRequest:
    """Check a request.

    Raises:
        InvalidName, InvalidArgument: with the field that is wrong.
    """
    if not 1 <= len(request.topics) <= TOPICS_MAX:
        raise InvalidArgument(
            f"a watch has 1 to {TOPICS_MAX} topics, not {len(request.topics)}",
            field="topics",
            count=len(request.topics),
            limit=TOPICS_MAX,
        )
    topics = tuple(_wanted(topic, f"topics[{index}]") for index, topic in enumerate(request.topics))
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
            f"heartbeat_ms is 0 or {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms}",
            field="heartbeat_ms",
            heartbeatMs=heartbeat_ms,
        )
    return WatchRequest(
        topics=topics,
        resume_token=request.resume_token,
        columns=wants_columns(request.format),
        heartbeat_s=heartbeat_ms / 1000,
    )


def _wanted(wanted: pb.WatchTopic, field: str) -> WantedTopic:
    check_name(wanted.topic, f"{field}.topic")
    if len(wanted.key_prefixes) > PREFIXES_MAX:
        raise InvalidArgument(
            f"a topic has at most {PREFIXES_MAX} key prefixes, not {len(wanted.key_prefixes)}",
            field=f"{field}.key_prefixes",
            count=len(wanted.key_prefixes),
            limit=PREFIXES_MAX,
        )
    for prefix in wanted.key_prefixes:
        if len(prefix) > KEY_BYTES_MAX:
            raise InvalidArgument(
                f"a key prefix has at most {KEY_BYTES_MAX} bytes, not {len(prefix)}",
                field=f"{field}.key_prefixes",
                sizeBytes=len(prefix),
                limitBytes=KEY_BYTES_MAX,
            )
    return WantedTopic(wanted.topic, _start(wanted, field), tuple(wanted.key_prefixes))


def _start(wanted: pb.WatchTopic, field: str) -> Cursor | Point:
    if wanted.WhichOneof("start") == "cursor":
        cursor = wanted.cursor
        if cursor.topic not in ("", wanted.topic):
            raise InvalidArgument(
                f"the cursor is of topic {cursor.topic}, not of {wanted.topic}",
                field=f"{field}.cursor.topic",
                cursorTopic=cursor.topic,
                topic=wanted.topic,
            )
        return Cursor(wanted.topic, cursor.epoch, cursor.seq)
    point = _POINTS.get(wanted.point)
    if point is None:
        raise InvalidArgument(f"{wanted.point} is no start point", field=f"{field}.point", point=wanted.point)
    return point
