"""The state of a watch: its request at a (re)connect, and the meaning of each frame. Pure: no calls, no time.

*Invariant:* what `request` asks for begins exactly behind the last frame that `adopt_stream` took, in every topic:
nothing is lost and nothing comes twice. Three sources give the place: the cursor of a topic's own newest frame; for a
topic that has had none yet (a tail where nothing happened) the newest resume token; and before the first token the
start itself. Within a snapshot only the token has a place, and only with `resume_snapshots`: else an interrupted one
starts over, with a new `SnapshotBegan`; and where gaps are healed, behind the same gap again. A request leaves out
deleted topics; the token, which may have it, is kept for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, assert_never

from eddyline.client.transport.records import decode_data_bytes, decode_records
from eddyline.client.watch.events import (
    NUMBER_MAX,
    CaughtUp,
    Lost,
    Position,
    Records,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotResumed,
    TopicGone,
    WatchEvent,
    position_of,
)
from eddyline.core.codec.records import gap_from_pb
from eddyline.core.errors import Internal, InvalidArgument
from eddyline.core.model.topic import check_name
from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.v1 import delivery_pb2, log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPICS_MAX: Final = 1_000
HEARTBEAT_MS_MIN: Final = 100
HEARTBEAT_MS_MAX: Final = 60_000
REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - (2 << 20)
"""Of a first request. A call carries 64 MiB; a resume adds a token of at most 1 MB and 1 000 cursors, 0.3 MB."""
TS_MS_MAX: Final = (1 << 63) - 1

StartPoint = Literal["snapshot", "tail", "earliest"]


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first live record committed at or after a time, in milliseconds since the Unix epoch."""

    ts_ms: int


@dataclass(frozen=True, slots=True)
class AtRevision:
    """Start at the first live record whose version is at or above this revision, from 1."""

    revision: int


Start = StartPoint | Position | AtTime | AtRevision

_POINTS: Final = {
    "snapshot": delivery_pb2.START_POINT_SNAPSHOT,
    "tail": delivery_pb2.START_POINT_TAIL,
    "earliest": delivery_pb2.START_POINT_EARLIEST,
}


@dataclass(frozen=True, slots=True)
class WatchTopic:
    """One topic to watch: from where, and which records. An empty filter lets all through.

    `metadata_only`: without data. `updates_only`: no values to begin with, "snapshot" is "tail" then. `heals`: what was
    lost is followed by a snapshot, where the topic has values.
    """

    name: str
    start: Start
    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    ignore_deletes: bool = False
    metadata_only: bool = False
    updates_only: bool = False
    heals: bool = False

    def to_pb(self) -> delivery_pb2.WatchTopic:
        """The request's topic, at its start; a `Position` is the caller's to fill in."""
        topic = delivery_pb2.WatchTopic(
            topic=self.name,
            key_prefixes=self.key_prefixes,
            tags=self.tags,
            exclude_nodes=self.exclude_nodes,
            ignore_deletes=self.ignore_deletes,
            metadata_only=self.metadata_only,
            updates_only=self.updates_only,
            on_gap=log_pb2.GAP_POLICY_HEAL if self.heals else log_pb2.GAP_POLICY_UNSPECIFIED,
        )
        match self.start:
            case AtTime(ts_ms):
                topic.ts_ms = ts_ms
            case AtRevision(revision):
                topic.revision = revision
            case Position():
                pass
            case point:
                topic.point = _POINTS[point]
        return topic


def wanted_topics(
    topics: str | WatchTopic | Sequence[str | WatchTopic], *, start: Start, key_prefixes: Sequence[bytes]
) -> list[WatchTopic]:
    """Topics as they are given; one by its name has the common start and prefixes."""
    named = [topics] if isinstance(topics, str | WatchTopic) else topics
    return [
        topic if isinstance(topic, WatchTopic) else WatchTopic(topic, start, tuple(key_prefixes)) for topic in named
    ]


def _check_start(start: Start) -> None:
    """Refuse what is no place to start at, before a message that has no room for it does."""
    match start:
        case Position():
            position_of(start, field="start")
        case AtTime(ts_ms):
            if not 0 <= ts_ms <= TS_MS_MAX:
                raise InvalidArgument(f"a watch starts at a time of 0 to {TS_MS_MAX} ms, not {ts_ms}", field="start")
        case AtRevision(revision):
            if not 1 <= revision <= NUMBER_MAX:
                raise InvalidArgument(
                    f"a watch starts at a revision of 1 to {NUMBER_MAX}, not {revision}", field="start"
                )
        case _ if start not in _POINTS:
            raise InvalidArgument(
                f"a watch starts at {', '.join(_POINTS)}, or at a Position, an AtTime or an AtRevision", field="start"
            )
        case _:
            pass


@dataclass(slots=True)
class _Place:
    wanted: WatchTopic
    position: Position | None = None
    in_snapshot: bool = False
    gone: bool = False


class WatchPlan:
    """The place of one watch in all of its topics."""

    def __init__(self, topics: Sequence[WatchTopic], *, heartbeat_ms: int, resume_snapshots: bool = False) -> None:
        """Begin at each topic's start. `resume_snapshots`: those that are interrupted go on, with `SnapshotResumed`.

        Raises:
            InvalidArgument: no topic, too many, one named twice, a start that there is not, a heartbeat out of its
                bounds, or topics and filters of more than `REQUEST_BYTES_MAX`. InvalidName: a name that breaks the
                rule.
        """
        if heartbeat_ms and not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
            raise InvalidArgument(
                f"heartbeat_ms must be 0 or {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms}",
                field="heartbeat_ms",
            )
        if not 1 <= len(topics) <= TOPICS_MAX:
            raise InvalidArgument(f"a watch takes 1 to {TOPICS_MAX} topics, not {len(topics)}", field="topics")
        self._places: dict[str, _Place] = {}
        for wanted in topics:
            check_name(wanted.name, "topic")
            if wanted.name in self._places:
                raise InvalidArgument(f"topic {wanted.name} is named twice", field="topics", topic=wanted.name)
            _check_start(wanted.start)
            place = _Place(wanted)
            if isinstance(wanted.start, Position):
                place.position = wanted.start
            self._places[wanted.name] = place
        self._heartbeat_ms = heartbeat_ms
        self._resume_snapshots = resume_snapshots
        self._token = b""
        self._had_token = False
        self.move_count = 0
        """How often what `request` asks for moved on: by a place, the first token, or a snapshot that can go on."""

        size = self.request().ByteSize()
        if size > REQUEST_BYTES_MAX:
            raise InvalidArgument(
                f"the watch request has {size} bytes as one message, at most {REQUEST_BYTES_MAX}: use fewer topics, or "
                "fewer or shorter filters",
                field="topics",
                sizeBytes=size,
                limitBytes=REQUEST_BYTES_MAX,
            )

    @property
    def finished(self) -> bool:
        """True = every topic was deleted."""
        return all(place.gone for place in self._places.values())

    @property
    def positions(self) -> dict[str, Position]:
        """Per topic, the place behind its newest frame; none for a topic without one, or within a snapshot."""
        return {
            name: place.position
            for name, place in self._places.items()
            if place.position is not None and not place.in_snapshot
        }

    def position_of(self, name: str) -> Position | None:
        """The place in one topic, as in `positions`; None = it has none, or was deleted."""
        place = self._places.get(name)
        return None if place is None or place.gone or place.in_snapshot else place.position

    def request(self) -> delivery_pb2.WatchTopicsRequest:
        """Return the request for now."""
        request = delivery_pb2.WatchTopicsRequest(
            resume_token=self._token,
            format=types_pb2.BATCH_FORMAT_COLUMNS,
            heartbeat_ms=self._heartbeat_ms,
            resume_snapshots=self._resume_snapshots,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        for name, place in self._places.items():
            if place.gone:
                continue
            topic = place.wanted.to_pb()
            # while a gap is healed the position is the one before it
            if place.position is not None and (place.wanted.heals or not place.in_snapshot):
                topic.cursor.CopyFrom(types_pb2.Cursor(topic=name, epoch=place.position.epoch, seq=place.position.seq))
            request.topics.append(topic)
        return request

    def unsettled(self) -> delivery_pb2.WatchTopicsRequest | None:
        """Return the request for the starts of topics without a place, without their filters; None = every topic has
        one.

        One that begins with a snapshot has its place at its end.
        """
        request = delivery_pb2.WatchTopicsRequest()
        for name, place in self._places.items():
            wanted = place.wanted
            values_first = wanted.start == "snapshot" and not wanted.updates_only
            if place.position is None and not place.gone and not values_first:
                bare = WatchTopic(name, wanted.start, updates_only=wanted.updates_only)
                request.topics.append(bare.to_pb())
        return request if request.topics else None

    def settle(self, costs: Sequence[delivery_pb2.WatchCost]) -> None:
        """Begin topics that have no place yet where they would begin now.

        Raises:
            Internal: a topic of the request is not among them.
        """
        starts = {cost.start.topic: Position(cost.start.epoch, cost.start.seq) for cost in costs}
        request = self.unsettled()
        for topic in request.topics if request is not None else ():
            if topic.topic not in starts:
                raise Internal(f"delivery returned no start of topic {topic.topic}")
            self._places[topic.topic].position = starts[topic.topic]

    def accept(self, frame: delivery_pb2.WatchTopicsResponse) -> WatchEvent | None:
        """Take a frame: the place moves behind it. None = it says nothing to the reader.

        Raises:
            MalformedColumns, RecordTooLarge: as `decode_records`; no place moved.
        """
        token, place = self._token, self._places.get(frame.topic)
        before = (None, True) if place is None else (place.position, place.gone)
        event = self._accept(frame, place)
        moved = place is not None and (place.position, place.gone) != before
        if moved or (self._token != token and (not self._had_token or self._resume_snapshots)):
            self.move_count += 1
        self._had_token = self._had_token or bool(self._token)
        return event

    def _accept(self, frame: delivery_pb2.WatchTopicsResponse, place: _Place | None) -> WatchEvent | None:
        if frame.resume_token:
            self._token = frame.resume_token
        kind = frame.WhichOneof("frame")
        match kind:
            case None | "heartbeat" | "going_away":
                return None
            case "caught_up":
                return CaughtUp()
        if place is None or place.gone:
            return None
        return self._accept_of_topic(place, kind, frame)

    def drop(self, name: str) -> TopicGone | None:
        """A resume found the topic missing: it was deleted meanwhile. None = it had never been there."""
        place = self._places.get(name)
        if place is None or place.gone or place.position is None:
            return None
        return self._gone(place, place.position.epoch)

    def drop_token(self) -> bool:
        """The token was refused: go on by cursors. False = a topic would lose its place, or there was no token."""
        if not self._token or len(self.positions) < sum(not place.gone for place in self._places.values()):
            return False
        self._token = b""
        return True

    def sole_topic(self) -> str:
        """The one topic that is still watched; empty where there are more."""
        alive = [name for name, place in self._places.items() if not place.gone]
        return alive[0] if len(alive) == 1 else ""

    def _accept_of_topic(
        self,
        place: _Place,
        kind: Literal[
            "rows", "columns", "gap", "snapshot_begin", "snapshot_resume", "snapshot_end", "topic_deleted", "progress"
        ],
        frame: delivery_pb2.WatchTopicsResponse,
    ) -> WatchEvent | None:
        name = place.wanted.name
        here = Position(frame.cursor.epoch, frame.cursor.seq)
        match kind:
            case "rows" | "columns":
                batch = frame.columns if kind == "columns" else frame.rows
                records = decode_records(batch)
                sizes = decode_data_bytes(batch) if place.wanted.metadata_only else ()
                if not place.in_snapshot:
                    place.position = here
                parent = frame.traceparent or None
                return Records(name, records, here, place.in_snapshot, sizes, parent, frame.batch_end)
            case "gap":
                place.position = here
                return Lost(name, gap_from_pb(frame.gap), here)
            case "snapshot_begin":
                place.in_snapshot = True
                return SnapshotBegan(name, frame.snapshot_begin.fold_seq)
            case "snapshot_resume":
                place.in_snapshot = True
                return SnapshotResumed(name, frame.snapshot_resume.fold_seq, frame.snapshot_resume.after_key)
            case "progress":
                if not place.in_snapshot:
                    place.position = here
                return Records(name, (), here, place.in_snapshot, batch_end=True) if frame.batch_end else None
            case "snapshot_end":
                place.in_snapshot = False
                place.position = here
                return SnapshotEnded(name, frame.snapshot_end.fold_seq, frame.snapshot_end.count, here)
            case "topic_deleted":
                return self._gone(place, frame.topic_deleted.epoch)
            case _:
                assert_never(kind)

    def _gone(self, place: _Place, epoch: int) -> TopicGone:
        place.gone = True
        return TopicGone(place.wanted.name, epoch)
