"""Subscribers of a delivery role in a whole cluster: random topics, filters, starts and speeds, one life after another.

A life is one watch over all its resumes. It resumes by the newest token alone, by its own cursors alone, by both, by either
in turn, or as the client library does. Events that a resume by token alone repeats are removed from the view first.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from eddyline.client.watch.plan import WatchPlan, WatchTopic
from eddyline.core.errors import Code, EddylineError, NotKv, TopicNotFound
from eddyline.core.runtime.clock import sleep
from eddyline.delivery.resume_token import ResumeState, ResumeTokens
from eddyline.delivery.rpc.watch import request_from_pb
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.models.filter_spec import Wish
from tests.support.models.subscriber_view import Entry, Head, Level, Opened, Started, View

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from eddyline.delivery.role import DeliveryRole
    from tests.sim.mortal_delivery import Delivery
    from tests.support.manual_clock import ManualClock

NOWHERE: Final = Head()
Way: TypeAlias = Literal["cursors", "token", "both", "either", "client"]
WAYS: Final[tuple[Way, ...]] = ("cursors", "token", "both", "either", "client")
PREFIXES: Final = ((), (), (), (b"ku",), (b"kv", b"kw"), (b"u",), (b"v", b"w"), (b"k",))
POINTS: Final = {
    "tail": pb.START_POINT_TAIL,
    "snapshot": pb.START_POINT_SNAPSHOT,
    "earliest": pb.START_POINT_EARLIEST,
}
REFUSALS_MAX: Final = 6
"""After so many errors a life whose topics do not exist ends."""
_PASSING: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """Speed of a subscriber: how often it pauses after a frame, and for how long, in seconds."""

    often: float
    shortest_s: float
    longest_s: float


PACES: Final = (ReadSpeed(0, 0, 0), ReadSpeed(0.2, 0, 0.2), ReadSpeed(0.3, 0, 3), ReadSpeed(0.02, 5, 40))


def wish_of(random: Random) -> Wish:
    """Draw a random filter; mostly by key alone."""
    by_value = random.random() < 0.2
    return Wish(
        random.choice(PREFIXES),
        tags=random.choice(((), ("r",), ("s", "t"))) if by_value else (),
        ignore_deletes=by_value and random.random() < 0.5,
        metadata_only=random.random() < 0.15,
    )


class Cluster:
    """State of the cluster that subscribers may use."""

    clock: ManualClock
    delivery: Delivery
    resting: bool = False

    def heads(self) -> Mapping[str, Head]:
        """Return the topics' heads, as last known."""
        raise NotImplementedError

    def opened(self, topic: str) -> Opened:
        """Return what a stream opened now must not send of a topic."""
        raise NotImplementedError


@dataclass
class StreamState:
    """A topic of a life: its view and its cursor. `known` = the newest cursor of frames and tokens."""

    view: View
    point: pb.StartPoint.ValueType
    cursor: Head | None = None
    known: Head = NOWHERE
    in_snapshot: bool = False
    gone: bool = False


class Seen(NamedTuple):
    """A topic's view at a moment."""

    entries: tuple[Entry, ...]
    cursor: Head | None
    known: Head


class Token(NamedTuple):
    """A resume token, with each topic's view when it came."""

    data: bytes
    seen: Mapping[str, Seen]


class Subscriber:
    """Runs one life after another; see the module. `views` are of all its lives."""

    def __init__(self, cluster: Cluster, random: Random, name: str) -> None:
        self._cluster, self._random, self._name = cluster, random, name
        self._pace = PACES[0]
        self._way: Way = "cursors"
        self._topics: dict[str, StreamState] = {}
        self._token: Token | None = None
        self._plan: WatchPlan | None = None
        self._columns = self._resumes = False
        self._heartbeat_ms = 1_000
        self.views: list[View] = []
        self.streams = self.lives = self.frames = 0
        self._is_level = False
        self.trouble = ""

    @property
    def level(self) -> bool:
        """True = it is caught up on each of its existing topics."""
        heads = self._cluster.heads()
        return self._is_level and all(
            one.gone or (not one.in_snapshot and one.known >= heads.get(name, Head()))
            for name, one in self._topics.items()
        )

    async def live(self) -> None:
        """Run lives until cancelled."""
        while True:
            await sleep(self._cluster.clock, self._random.uniform(0, 1))
            if self._begin():
                await self._watch()

    def __repr__(self) -> str:
        standing = {
            name: (*one.known, "snapshot" if one.in_snapshot else "", "gone" if one.gone else "")
            for name, one in self._topics.items()
        }
        return f"{self._name} {self._way} {self._pace} {standing} {self.trouble}"

    # one life ----------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Choose topics to watch. False = there are none."""
        random, there = self._random, sorted(self._cluster.heads())
        self._topics, self._is_level = {}, False
        if not there:
            return False
        self.lives += 1
        self._pace, self._way, self._token = random.choice(PACES), random.choice(WAYS), None
        self._columns = self._way != "client" and random.random() < 0.5
        self._resumes = random.random() < 0.5
        self._heartbeat_ms = random.choice((100, 500, 2_000))
        who = f"{self._name}.{self.lives} ({self._way})"
        wanted: list[WatchTopic] = []
        for name in random.sample(there, min(len(there), random.choice((1, 1, 2, 3)))):
            start = random.choice(("tail", "snapshot", "snapshot", "earliest", "earliest"))
            wish = wish_of(random)
            view = View(who, name, wish, lazy=self._way == "client", resumes=self._resumes)
            self.views.append(view)
            self._topics[name] = StreamState(view, POINTS[start])
            wanted.append(
                WatchTopic(
                    name,
                    start,  # type: ignore[arg-type]  # one of three words
                    wish.key_prefixes,
                    wish.tags,
                    ignore_deletes=wish.ignore_deletes,
                    metadata_only=wish.metadata_only,
                )
            )
        by_client = self._way == "client"
        plan = WatchPlan(wanted, heartbeat_ms=self._heartbeat_ms, resume_snapshots=self._resumes)
        self._plan = plan if by_client else None
        return True

    async def _watch(self) -> None:
        """Open streams until the life ends."""
        clock, random, refusals = self._cluster.clock, self._random, 0
        while refusals < REFUSALS_MAX and not all(one.gone for one in self._topics.values()):
            if not self._cluster.resting and random.random() < 0.03:
                return
            try:
                await self._cluster.delivery.stream(self._read, cut_s=self._cut_s())
                self.trouble = ""
            except NotKv:
                return
            except TopicNotFound as error:
                refusals += 1
                self.trouble = error.reason
            except EddylineError as error:
                self.trouble = error.reason
                assert error.code in _PASSING, f"{self!r}: {error.reason} {error.message}"
            await sleep(clock, random.choice((0, random.uniform(0, 0.5), random.uniform(0, 8))))

    def _cut_s(self) -> float:
        """Draw the time after which it ends the stream."""
        if self._cluster.resting or self._random.random() < 0.4:
            return math.inf
        return self._random.choice((0.02, 0.3, 3, 20)) * self._random.random()

    async def _read(self, role: DeliveryRole) -> None:
        random, left = self._random, 1 << 30
        if not self._cluster.resting:
            left = random.choice((3, 30, 300)) * random.randrange(1, 5)
        heads = self._cluster.heads()
        request = self._plan.request() if self._plan is not None else self._request()
        starting = self._expect(request, heads)
        for wanted in request.topics:
            self._topics[wanted.topic].view.entries.append(self._cluster.opened(wanted.topic))
        self.streams += 1
        self._is_level = False
        async with (
            role.watches.open(request_from_pb(request)) as subscriber,
            aclosing(subscriber.frames()) as frames,
        ):
            self._began(starting, heads)
            settles = any(self._topics[name].point == pb.START_POINT_TAIL for name in starting)
            async for data in frames:
                frame = pb.WatchTopicsResponse.FromString(data)
                assert frame.resume_token or not settles, "a tail began, and the first frame does not say where"
                settles = False
                self._take(frame, request, heads)
                left -= 1
                if left == 0:
                    return
                if not self._cluster.resting and random.random() < self._pace.often:
                    await sleep(self._cluster.clock, random.uniform(self._pace.shortest_s, self._pace.longest_s))

    # resuming ----------------------------------------------------------------------------------------------------

    def _request(self) -> pb.WatchTopicsRequest:
        way = self._way if self._way != "either" else self._random.choice(("cursors", "token", "both"))
        token = self._token if way != "cursors" else None
        request = pb.WatchTopicsRequest(
            resume_token=token.data if token is not None else b"",
            format=types.BATCH_FORMAT_COLUMNS if self._columns else types.BATCH_FORMAT_ROWS,
            heartbeat_ms=self._heartbeat_ms,
            resume_snapshots=self._resumes,
        )
        for name, one in self._topics.items():
            if one.gone:
                continue
            topic = request.topics.add()
            topic.CopyFrom(one.view.wish.topic(name))
            topic.point = one.point
            if one.cursor is not None and not one.in_snapshot and (way != "token" or token is None):
                topic.cursor.CopyFrom(types.Cursor(topic=name, epoch=one.cursor.epoch, seq=one.cursor.seq))
        return request

    def _expect(self, request: pb.WatchTopicsRequest, heads: Mapping[str, Head]) -> list[str]:
        """Reset the views to the cursors of the request. Returns the topics that start from the beginning."""
        starting: list[str] = []
        for wanted in request.topics:
            if wanted.WhichOneof("start") == "cursor":
                continue
            one = self._topics[wanted.topic]
            one.in_snapshot = False
            if request.resume_token:
                assert self._token is not None
                assert self._token.data == request.resume_token
                seen = self._token.seen[wanted.topic]
                one.view.entries[:] = seen.entries
                one.cursor, one.known = seen.cursor, seen.known
            else:
                one.view.entries.clear()
                one.cursor, one.known = None, Head()
                starting.append(wanted.topic)
        return starting

    def _began(self, starting: list[str], before: Mapping[str, Head]) -> None:
        after = self._cluster.heads()
        for name in starting:
            one = self._topics[name]
            one.view.entries.append(Started(one.point, before.get(name, Head()), after.get(name, Head())))
            one.in_snapshot = one.point == pb.START_POINT_SNAPSHOT

    # frames ------------------------------------------------------------------------------------------------------

    def _take(self, frame: pb.WatchTopicsResponse, request: pb.WatchTopicsRequest, heads: Mapping[str, Head]) -> None:
        self.frames += 1
        if self._plan is not None:
            self._plan.accept(frame)
        if frame.resume_token:
            self._take_token(frame.resume_token, request)
        kind = frame.WhichOneof("frame")
        if kind == "heartbeat":
            return
        if kind == "caught_up":
            self._is_level = True
            for wanted in request.topics:
                view = self._topics[wanted.topic].view
                view.entries.append(Level(heads.get(wanted.topic, Head())))
            return
        one = self._topics[frame.topic]
        one.view.entries.append(frame)
        begins = kind in ("snapshot_begin", "snapshot_resume")
        one.in_snapshot = begins or (one.in_snapshot and kind != "snapshot_end")
        if kind == "topic_deleted":
            one.gone = True
        elif not one.in_snapshot or kind == "gap":
            one.cursor = one.known = Head(frame.cursor.epoch, frame.cursor.seq)

    def _take_token(self, data: bytes, request: pb.WatchTopicsRequest) -> None:
        tokens = ResumeTokens(wanted.signature() for wanted in request_from_pb(request).topics)
        for name, resume in tokens.decode(data).items():
            one = self._topics[name]
            one.view.entries.append(resume)
            if resume.state is ResumeState.LOG and not one.gone:
                one.known = Head(resume.cursor.epoch, resume.cursor.seq)
                one.in_snapshot = False
                if not one.view.lazy:
                    one.cursor = one.known  # records that the filter left out are before the cursor too
        seen = {name: Seen(tuple(one.view.entries), one.cursor, one.known) for name, one in self._topics.items()}
        self._token = Token(data, seen)
