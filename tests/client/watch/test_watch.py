"""A watch against a real server that breaks: it goes on where it was, for ever, and raises what cannot be mended."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import Position, Records, SnapshotBegan, SnapshotEnded, TopicGone
from eddyline.client.watch.plan import WatchTopic
from eddyline.client.watch.watch import DEFECTS_MAX, HEARTBEAT_MS, QUIET_S
from eddyline.core.errors import (
    CursorAhead,
    Draining,
    EddylineError,
    Internal,
    InvalidArgument,
    MalformedColumns,
    NotReady,
    ResumeTokenMismatch,
    StoreUnreachable,
    Throttled,
    TopicNotFound,
)
from eddyline.core.runtime.clock import SystemClock
from eddyline.v1.delivery_pb2 import WatchTopicsResponse
from tests.support.clients.clients import NoJitter, client_at, watching
from tests.support.delivery.scripted_roles import (
    ScriptedDelivery,
    WatchScript,
    caught_up_frame,
    columns_frame,
    cursor,
    deleted_frame,
    gap_frame,
    going_away_frame,
    heartbeat_frame,
    progress_frame,
    rows_frame,
    scripted_server,
    snapshot_begin_frame,
    snapshot_end_frame,
)
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock, pass_time_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.client.watch.events import WatchEvent
    from eddyline.client.watch.watch import Watch


class First(NoJitter):
    """Begins at the first replica."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    return [await anext(watch) for _ in range(count)]


def seqs_of(events: list[WatchEvent]) -> list[int]:
    return [record.seq for event in events if isinstance(event, Records) for record in event.records]


async def test_breaks_of_every_kind_are_survived_without_loss_or_repeat() -> None:
    scripts = [
        WatchScript([rows_frame("a", 1, 2)], StoreUnreachable("gone")),
        WatchScript([rows_frame("a", 3)], "end"),
        WatchScript([], NotReady("starting")),
        WatchScript([rows_frame("a", 4)], Throttled("busy", retryAfterMs=1)),
        WatchScript([rows_frame("a", 5)]),
    ]
    async with watching(*scripts) as (client, delivery), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, 4)) == [1, 2, 3, 4, 5]
        assert events.resume_count == 3
    asked = [request.topics[0].cursor.seq for request in delivery.requests]
    assert asked == [0, 2, 3, 3, 4]


async def test_a_frame_that_does_not_fit_together_is_an_error_and_comes_again() -> None:
    damaged = columns_frame("a", 2, 3)
    damaged.columns.data.values += b"x"
    scripts = [
        WatchScript([columns_frame("a", 1), damaged, columns_frame("a", 4)]),
        WatchScript([columns_frame("a", 2, 3)]),
    ]
    async with watching(*scripts) as (client, delivery), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, 1)) == [1]
        with pytest.raises(MalformedColumns, match="data"):
            await anext(events)
        assert seqs_of(await take(events, 1)) == [2, 3]
    assert [request.topics[0].cursor.seq for request in delivery.requests] == [0, 1]


async def test_server_that_dies_is_left_for_another() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)]), WatchScript([rows_frame("a", 2)])])
    async with scripted_server(delivery=delivery) as second, AsyncExitStack() as dying:
        first = await dying.enter_async_context(scripted_server(delivery=delivery))
        topology = Topology("test", (first,), (), (first, second))
        async with client_at(topology) as client, client.watch("a", start="earliest") as events:
            assert seqs_of(await take(events, 1)) == [1]
            await dying.aclose()
            assert seqs_of(await take(events, 1)) == [2]
    assert delivery.requests[1].topics[0].cursor == cursor("a", 1)


async def test_interrupted_snapshot_begins_again() -> None:
    scripts = [
        WatchScript([snapshot_begin_frame("a", 9), rows_frame("a", 3, in_snapshot_of=9)], NotReady("stopping")),
        WatchScript([snapshot_begin_frame("a", 10), rows_frame("a", 3, 10, in_snapshot_of=10)], NotReady("stopping")),
        WatchScript([snapshot_begin_frame("a", 10), snapshot_end_frame("a", 10, 0)], NotReady("stopping")),
        WatchScript([rows_frame("a", 11)]),
    ]
    async with watching(*scripts) as (client, delivery), client.watch("a") as events:
        got = await take(events, 7)
    assert [type(event) for event in got] == [
        SnapshotBegan,
        Records,
        SnapshotBegan,
        Records,
        SnapshotBegan,
        SnapshotEnded,
        Records,
    ]
    starts = [request.topics[0].WhichOneof("start") for request in delivery.requests]
    assert starts == ["point", "point", "point", "cursor"]
    assert delivery.requests[3].topics[0].cursor == cursor("a", 10)


async def test_silent_call_is_given_up() -> None:
    clock = ManualClock()
    # On a busy machine a later call may be given up before its answer has come.
    scripts = [WatchScript([rows_frame("a", 1)]), *[WatchScript([rows_frame("a", 2)])] * 50]
    async with watching(*scripts, clock=clock) as (client, delivery), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, 1)) == [1]
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(take(events, 1))
            await pass_time_until(reading, clock, HEARTBEAT_MS / 1000)
            assert seqs_of(await reading) == [2]
    assert len(delivery.requests) > 1


@pytest.mark.parametrize(("heartbeat_ms", "silence_s"), [(0, 30.0), (100, 0.3), (60_000, 180.0)])
async def test_a_call_is_given_up_at_three_heartbeats_and_not_before(heartbeat_ms: int, silence_s: float) -> None:
    clock, heard = ManualClock(), list[EddylineError]()
    scripts = [WatchScript([rows_frame("a", 1)]), *[WatchScript([rows_frame("a", 2)])] * 50]
    async with (
        watching(*scripts, clock=clock) as (client, delivery),
        client.watch("a", start="earliest", heartbeat_ms=heartbeat_ms, on_retry=heard.append) as events,
        asyncio.timeout(HANG_S),
    ):
        assert seqs_of(await take(events, 1)) == [1]
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(take(events, 1))
            for _ in range(100):
                await asyncio.sleep(0)
            clock.advance(silence_s * 0.99)
            for _ in range(100):
                await asyncio.sleep(0)
            assert heard == []
            assert delivery.requests[0].heartbeat_ms == heartbeat_ms
            await pass_time_until(reading, clock, silence_s)
            assert seqs_of(await reading) == [2]
    assert heard


@pytest.mark.parametrize("heartbeat_ms", [-1, 1, 99, 60_001, 1 << 32])
async def test_a_heartbeat_out_of_its_bounds_is_refused(heartbeat_ms: int) -> None:
    async with watching() as (client, _):
        with pytest.raises(InvalidArgument, match="heartbeat_ms"):
            client.watch("a", heartbeat_ms=heartbeat_ms)


async def test_cancelled_read_loses_nothing() -> None:
    scripts = [WatchScript([rows_frame("a", 1)]), WatchScript([rows_frame("a", 2)])]
    async with watching(*scripts) as (client, delivery), client.watch("a", start="earliest") as events:
        await take(events, 1)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(take(events, 1))
            await asyncio.sleep(0)
            reading.cancel()
        assert seqs_of(await take(events, 1)) == [2]
    assert delivery.requests[1].topics[0].cursor == cursor("a", 1)


@pytest.mark.parametrize("final", [CursorAhead("ahead", headSeq=3), TopicNotFound("no such topic", topic="a")])
async def test_what_another_try_cannot_mend_is_raised(final: EddylineError) -> None:
    async with watching(WatchScript([], final)) as (client, _), client.watch("a", start="earliest") as events:
        with pytest.raises(type(final)):
            await anext(events)


async def test_defects_are_tried_again_a_few_times_only() -> None:
    scripts = [WatchScript([], Internal("defect", id="x")) for _ in range(DEFECTS_MAX + 1)]
    async with watching(*scripts) as (client, delivery), client.watch("a", start="earliest") as events:
        with pytest.raises(Internal):
            await anext(events)
    assert len(delivery.requests) == DEFECTS_MAX + 1


SIGNS_OF_LIFE = {
    "heartbeat": [heartbeat_frame(b"token")],
    "caught_up": [caught_up_frame(b"token")],
    "snapshot that begins anew": [snapshot_begin_frame("a", 9), rows_frame("a", 1, in_snapshot_of=9)],
    "gap to be healed": [gap_frame("a", 3, 4, at_seq=2), snapshot_begin_frame("a", 9)],
    "progress at the same place": [progress_frame("a", 2)],
    "tokens within a snapshot": [snapshot_begin_frame("a", 9), heartbeat_frame(b"other"), heartbeat_frame(b"token")],
}


@pytest.mark.parametrize("signs", SIGNS_OF_LIFE.values(), ids=SIGNS_OF_LIFE.keys())
async def test_signs_of_life_are_not_progress(signs: list[WatchTopicsResponse]) -> None:
    scripts = [WatchScript(signs, Internal("defect", id="x")) for _ in range(50)]
    wanted = WatchTopic("a", Position(7, 2), heals=True)
    async with watching(*scripts) as (client, delivery), client.watch(wanted) as events:
        with pytest.raises(Internal):
            while True:
                await anext(events)
    # The first token is news: it has the place of a topic that begins at its head.
    assert len(delivery.requests) <= DEFECTS_MAX + 2


async def test_records_say_where_an_append_ends_also_behind_a_filter() -> None:
    part, whole, end = rows_frame("a", 1), rows_frame("a", 2), progress_frame("a", 4)
    whole.batch_end = end.batch_end = True
    script = WatchScript([part, whole, rows_frame("a", 3), end])
    async with watching(script) as (client, _), client.watch("a", start="earliest") as events:
        got = await take(events, 4)
    assert [(len(event.records), event.batch_end) for event in got if isinstance(event, Records)] == [
        (1, False),
        (1, True),
        (1, False),
        (0, True),
    ]


async def test_progress_forgives_defects() -> None:
    scripts = [WatchScript([rows_frame("a", seq)], Internal("defect", id="x")) for seq in range(1, 3 * DEFECTS_MAX)]
    async with watching(*scripts) as (client, _), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, len(scripts))) == list(range(1, 3 * DEFECTS_MAX))


async def test_progress_of_a_snapshot_that_goes_on_forgives_defects() -> None:
    begin = snapshot_begin_frame("a", 9)
    scripts = [
        WatchScript([begin, heartbeat_frame(b"token %d" % number)], Internal("defect", id="x"))
        for number in range(3 * DEFECTS_MAX)
    ]
    async with watching(*scripts) as (client, _), client.watch("a", resume_snapshots=True) as events:
        await take(events, len(scripts))


async def test_pauses_grow_while_only_heartbeats_come() -> None:
    ceilings: list[float] = []

    class Noted(NoJitter):
        def uniform(self, a: float, b: float) -> float:
            ceilings.append(b)
            return 0.0

    scripts = [WatchScript([heartbeat_frame(b"token")], StoreUnreachable("gone")) for _ in range(7)]
    scripts.append(WatchScript([rows_frame("a", 1)]))
    async with watching(*scripts) as (client, _):
        client._random = Noted(1)
        async with client.watch("a", start="earliest") as events:
            ceilings.clear()
            assert seqs_of(await take(events, 1)) == [1]
    assert ceilings == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_a_call_that_lived_long_forgives_what_was_before_it() -> None:
    class Leaping(SystemClock):
        leapt_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.leapt_s

    class Quiet(list[WatchTopicsResponse]):
        def __iter__(self) -> Iterator[WatchTopicsResponse]:
            yield heartbeat_frame(b"token")
            clock.leapt_s += QUIET_S

    clock = Leaping()
    scripts = [WatchScript(Quiet(), Internal("defect", id="x")) for _ in range(3 * DEFECTS_MAX)]
    scripts.append(WatchScript([rows_frame("a", 1)]))
    async with watching(*scripts, clock=clock) as (client, _), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, 1)) == [1]


async def test_a_token_that_is_given_and_refused_again_and_again_is_an_error() -> None:
    given = WatchScript([caught_up_frame(b"token")], StoreUnreachable("gone"))
    scripts = [given, WatchScript([], ResumeTokenMismatch("other topics"))] * 20
    async with watching(*scripts) as (client, delivery), client.watch("a", start=Position(7, 1)) as events:
        with pytest.raises(ResumeTokenMismatch):
            while True:
                await anext(events)
    assert len(delivery.requests) <= 2 * DEFECTS_MAX + 4


async def test_topic_deleted_while_away_ends_its_watch() -> None:
    scripts = [
        WatchScript([rows_frame("a", 1)], NotReady("stopping")),
        WatchScript([], TopicNotFound("no such topic", topic="a")),
    ]
    async with watching(*scripts) as (client, _):
        got = [event async for event in client.watch("a", start="earliest")]
    assert got[1:] == [TopicGone("a", 7)]


async def test_watch_ends_when_every_topic_is_deleted() -> None:
    scripts = [WatchScript([rows_frame("a", 1), deleted_frame("a"), deleted_frame("b")])]
    async with watching(*scripts) as (client, _):
        got = [event async for event in client.watch(["a", "b"], start="earliest")]
    assert got[1:] == [TopicGone("a", 7), TopicGone("b", 7)]


async def test_refused_token_gives_way_to_cursors() -> None:
    scripts = [
        WatchScript([rows_frame("a", 1), caught_up_frame(b"token")], NotReady("stopping")),
        WatchScript([], ResumeTokenMismatch("other topics")),
        WatchScript([rows_frame("a", 2)]),
    ]
    async with watching(*scripts) as (client, delivery), client.watch("a", start="earliest") as events:
        assert seqs_of(await take(events, 3)) == [1, 2]
        assert events.positions == {"a": Position(7, 2)}
    assert [request.resume_token for request in delivery.requests] == [b"", b"token", b""]
    assert delivery.requests[2].topics[0].cursor == cursor("a", 1)


async def test_refused_token_that_alone_has_a_place_is_an_error() -> None:
    scripts = [WatchScript([caught_up_frame(b"token")], NotReady("x")), WatchScript([], ResumeTokenMismatch("other"))]
    async with watching(*scripts) as (client, _), client.watch("a", start="tail") as events:
        await take(events, 1)
        with pytest.raises(ResumeTokenMismatch):
            await anext(events)


async def test_on_retry_hears_why() -> None:
    heard: list[str] = []
    scripts = [WatchScript([], StoreUnreachable("gone")), WatchScript([rows_frame("a", 1)])]
    async with (
        watching(*scripts) as (client, _),
        client.watch("a", start="earliest", on_retry=lambda error: heard.append(error.reason)) as events,
    ):
        await take(events, 1)
    assert heard == ["STORE_UNREACHABLE"]


async def test_of_an_outage_of_several_tries_one_word_is_heard_and_one_of_its_end() -> None:
    heard: list[str] = []
    scripts = [
        WatchScript([rows_frame("a", 1)], StoreUnreachable("gone")),
        WatchScript([], StoreUnreachable("gone")),
        WatchScript([rows_frame("a", 2)]),
    ]
    async with (
        watching(*scripts) as (client, _),
        client.watch(
            "a",
            start="earliest",
            on_retry=lambda error: heard.append(error.reason),
            on_resume=lambda: heard.append("on"),
        ) as events,
    ):
        await take(events, 2)
    assert heard == ["STORE_UNREACHABLE", "on"]


async def test_closed_watch_gives_no_more() -> None:
    async with watching(WatchScript([rows_frame("a", 1)])) as (client, _):
        events = client.watch("a", start="earliest")
        await take(events, 1)
        await events.aclose()
        assert [event async for event in events] == []


async def test_replica_that_goes_away_is_left_for_the_next_one_at_once_and_unheard() -> None:
    leaving = ScriptedDelivery([WatchScript([rows_frame("a", 1), going_away_frame(b"")], "end")])
    staying = ScriptedDelivery([WatchScript([rows_frame("a", 2)])])
    heard = list[EddylineError]()
    async with scripted_server(delivery=leaving) as first, scripted_server(delivery=staying) as second:
        topology = Topology("test", (first,), (), (first, second))
        # A clock that stands still: whoever waited would wait for ever.
        async with (
            client_at(topology, clock=ManualClock(), random_source=First(1)) as client,
            client.watch("a", start="earliest", on_retry=heard.append) as events,
            asyncio.timeout(HANG_S),
        ):
            assert seqs_of(await take(events, 2)) == [1, 2]
            assert (events.move_count, events.resume_count) == (1, 0)
    assert heard == []
    assert staying.requests[0].topics[0].cursor == cursor("a", 1)


async def test_replicas_that_only_go_away_are_tried_with_growing_pauses() -> None:
    clock = ManualClock()
    scripts = [WatchScript([going_away_frame(b"")], "end")] * 3
    async with watching(*scripts, WatchScript([rows_frame("a", 1)]), clock=clock) as (client, delivery):
        client._random = random.Random(1)  # waits that take time
        async with client.watch("a", start="earliest") as events, asyncio.TaskGroup() as tasks, asyncio.timeout(HANG_S):
            taking = tasks.create_task(take(events, 1))
            await pass_time_until(taking, clock, 0.05)
            assert seqs_of(taking.result()) == [1]
            assert events.move_count == 3
    assert len(delivery.requests) == 4


async def test_draining_replica_is_not_waited_for() -> None:
    refusing = ScriptedDelivery([WatchScript([], Draining("going", retryAfterMs=60_000))])
    other = ScriptedDelivery([WatchScript([rows_frame("a", 1)])])
    async with (
        scripted_server(delivery=refusing) as first,
        scripted_server(delivery=other) as second,
        client_at(Topology("test", (first,), (), (first, second)), random_source=First(1)) as client,
        client.watch("a", start="earliest") as events,
        asyncio.timeout(HANG_S),
    ):
        assert seqs_of(await take(events, 1)) == [1]


async def test_watches_begin_at_a_replica_by_chance() -> None:
    replicas = [ScriptedDelivery([WatchScript([rows_frame("a", 1)])] * 30) for _ in range(3)]
    async with AsyncExitStack() as stack:
        addresses = tuple([await stack.enter_async_context(scripted_server(delivery=one)) for one in replicas])
        topology = Topology("test", addresses[:1], (), addresses)
        client = await stack.enter_async_context(client_at(topology, random_source=random.Random(5)))
        watches = [client.watch("a") for _ in range(30)]
        async with asyncio.timeout(HANG_S):
            for watch in watches:
                await anext(watch)
                await watch.aclose()
    assert all(len(one.requests) >= 5 for one in replicas)
