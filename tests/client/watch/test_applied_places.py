"""Watches by callback over a delivery: whatever was stored when one stopped, the next one goes on behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.client.watch.applied import AppliedOptions, watch_applied
from eddyline.client.watch.cursor_file import CursorFile
from eddyline.client.watch.events import CaughtUp, Lost, Position, Records, TopicGone
from eddyline.client.watch.plan import AtRevision, AtTime, WatchTopic
from eddyline.core.errors import CursorAhead, Internal, NotReady, TopicNotFound
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from tests.support.clients.clients import client_at
from tests.support.delivery.role import served_delivery
from tests.support.delivery.scripted_roles import (
    ScriptedDelivery,
    WatchScript,
    caught_up_frame,
    deleted_frame,
    rows_frame,
    scripted_server,
    snapshot_begin_frame,
)
from tests.support.hang import HANG_S
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from eddyline.client.watch.applied import WatchBatch
    from eddyline.client.watch.cursor_file import CursorStore
    from eddyline.client.watch.plan import Start

FAR_MS = 1 << 50
"""Later than any record of a test."""


def client_of_delivery(address: str) -> AbstractAsyncContextManager[Client]:
    return client_at(Topology("test", (), (), (address,)))


async def run_until(
    enough: Callable[[Sequence[object]], bool], client: Client, wanted: Sequence[WatchTopic], store: CursorStore
) -> list[object]:
    """Watch by callback until what was applied is enough, then stop as a program does; what was applied."""
    applied: list[object] = []
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def apply(batch: WatchBatch) -> None:
        applied.extend(batch.events)
        if enough(applied):
            loop.call_soon_threadsafe(done.set)

    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
        task = group.create_task(watch_applied(client, wanted, apply, cursors=store))
        await done.wait()
        task.cancel()
    return applied


def level(events: Sequence[object]) -> bool:
    return CaughtUp() in events


def data_of(events: Sequence[object], topic: str) -> list[bytes | None]:
    return [
        record.data
        for event in events
        if isinstance(event, Records) and event.topic == topic
        for record in event.records
    ]


STARTS: list[WatchTopic] = [
    WatchTopic("t", "tail"),
    WatchTopic("t", "tail", key_prefixes=(b"k",)),
    WatchTopic("t", "snapshot", updates_only=True),
    WatchTopic("t", AtTime(FAR_MS)),
    WatchTopic("t", AtRevision(2)),
]
BESIDE: list[WatchTopic] = [WatchTopic("values", "snapshot"), WatchTopic("log", "earliest"), WatchTopic("tail", "tail")]


@pytest.mark.parametrize("beside", [(), BESIDE[:1], BESIDE[1:2], BESIDE[2:], BESIDE], ids=len)
@pytest.mark.parametrize("wanted", STARTS, ids=["tail", "of a prefix", "updates", "time", "revision"])
async def test_what_came_while_it_was_stopped_comes_wherever_it_began(
    wanted: WatchTopic, beside: Sequence[WatchTopic], tmp_path: Path
) -> None:
    store = CursorFile(tmp_path / "c")
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        epoch = await kv_topic(cluster.store, "t")
        await kv_topic(cluster.store, "values")
        for name in ("log", "tail"):
            await log_topic(cluster.store, name)
        await append(cluster.store, "t", puts(("k", "before")))
        assert data_of(await run_until(level, client, [*beside, wanted], store), "t") == []
        assert store.load()["t"] == Position(epoch, 1)
        assert set(store.load()) == {"t", *(topic.name for topic in beside)}
        await append(cluster.store, "t", puts(("k", "meanwhile")))
        for topic in beside:
            batch = puts(("k", "beside")) if topic.name == "values" else rows("beside")
            await append(cluster.store, topic.name, batch)
        second = await run_until(level, client, [*beside, wanted], store)
        assert data_of(second, "t") == [b"meanwhile"]
        assert [data_of(second, topic.name) for topic in beside] == [[b"beside"]] * len(beside)


async def test_what_came_while_it_was_stopped_before_its_first_event_comes(tmp_path: Path) -> None:
    store = CursorFile(tmp_path / "c")
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        epoch = await log_topic(cluster.store, "t")
        await append(cluster.store, "t", rows("before"))

        def refuse(_: WatchBatch) -> None:
            raise RuntimeError("before anything was applied")

        with pytest.raises(RuntimeError):
            await watch_applied(client, WatchTopic("t", "tail"), refuse, cursors=store)
        assert store.load() == {"t": Position(epoch, 1)}
        await append(cluster.store, "t", rows("meanwhile"))
        assert data_of(await run_until(level, client, [WatchTopic("t", "tail")], store), "t") == [b"meanwhile"]


async def test_where_it_began_is_in_the_first_batch_where_the_apply_keeps_the_cursors() -> None:
    first: list[Mapping[str, Position]] = []

    def apply(batch: WatchBatch) -> None:
        first.append(batch.cursors)
        raise RuntimeError("enough")

    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        epoch = await log_topic(cluster.store, "t")
        await append(cluster.store, "t", rows("before"))
        with pytest.raises(RuntimeError):
            await watch_applied(client, WatchTopic("t", "tail"), apply, cursors={})
    assert first == [{"t": Position(epoch, 1)}]


@pytest.mark.parametrize("failure", [NotReady("starting"), Internal("once")])
async def test_the_start_is_requested_until_a_delivery_answers(failure: NotReady | Internal) -> None:
    heard: list[object] = []
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 5)], CursorAhead("x"))])
    delivery.heads["a"] = 4
    delivery.explain_failures = [failure, failure]
    async with scripted_server(delivery=delivery) as address, client_of_delivery(address) as client:
        options = AppliedOptions(start="tail", on_retry=heard.append)
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", lambda _: None, cursors={}, options=options)
    assert [type(error) for error in heard] == [type(failure)], "once an outage"
    assert delivery.requests[0].topics[0].cursor.seq == 4


async def test_a_missing_topic_is_raised_when_its_start_is_requested() -> None:
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        with pytest.raises(TopicNotFound):
            await watch_applied(client, WatchTopic("none", "tail"), lambda _: None, cursors={})


@pytest.mark.parametrize("start", ["snapshot", Position(7, 3)])
async def test_no_start_is_requested_for_a_topic_with_a_position_or_a_snapshot(start: Start) -> None:
    delivery = ScriptedDelivery([WatchScript([caught_up_frame()], CursorAhead("x"))])
    async with scripted_server(delivery=delivery) as address, client_of_delivery(address) as client:
        with pytest.raises(CursorAhead):
            await watch_applied(client, WatchTopic("a", start), lambda _: None, cursors={})
    assert delivery.explained == []


class Kept:
    """Cursors in memory."""

    def __init__(self) -> None:
        self.cursors: dict[str, Position] = {}

    def load(self) -> Mapping[str, Position]:
        return self.cursors

    def save(self, cursors: Mapping[str, Position]) -> None:
        self.cursors = dict(cursors)


async def test_a_consumer_whose_filter_hides_everything_gets_its_loss_once() -> None:
    wanted, kept = WatchTopic("t", "earliest", tags=("mine",)), Kept()
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        epoch = (await cluster.store.create_topic("t", Kind.LOG, TopicConfig(cap_records=10))).epoch
        applied: list[object] = []
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                watch_applied(client, wanted, lambda batch: applied.extend(batch.events), cursors=kept)
            )
            await cluster.until(lambda: level(applied))
            await append(cluster.store, "t", tagged("mine"))
            await cluster.until(lambda: kept.cursors["t"].seq == 1)
            for _ in range(60):
                await append(cluster.store, "t", tagged("other"))
            await cluster.until(lambda: kept.cursors["t"].seq == 61, passing_s=0.01)
            task.cancel()
        assert not any(isinstance(event, Lost) for event in applied)
        for _ in range(2):
            again = await run_until(level, client, [wanted], kept)
            assert again == [CaughtUp()]
        assert kept.cursors == {"t": Position(epoch, 61)}


async def test_a_loss_with_no_record_behind_it_comes_once() -> None:
    wanted, kept = WatchTopic("t", "earliest", tags=("mine",)), Kept()
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        epoch = (await cluster.store.create_topic("t", Kind.LOG, TopicConfig(cap_records=10))).epoch
        await append(cluster.store, "t", tagged("mine"))
        kept.cursors = {"t": Position(epoch, 1)}
        for _ in range(60):
            await append(cluster.store, "t", tagged("other"))
        losses = [
            [(event.gap.first_seq, event.gap.last_seq) for event in events if isinstance(event, Lost)]
            for events in [await run_until(level, client, [wanted], kept) for _ in range(3)]
        ]
    assert losses == [[(2, 51)], [], []]


def gone(events: Sequence[object], *names: str) -> bool:
    return {event.topic for event in events if isinstance(event, TopicGone)} == set(names)


@pytest.mark.parametrize("deleted", [("b",), ("b", "c"), ("a", "c")], ids=str)
@pytest.mark.parametrize("start", ["snapshot", "tail", "earliest", AtTime(FAR_MS)], ids=str)
@pytest.mark.parametrize("live", [False, True], ids=["while away", "while live"])
async def test_a_consumer_of_topics_that_were_deleted_starts_again_and_again_with_the_others(
    live: bool, start: Start, deleted: Sequence[str]
) -> None:
    wanted, kept = [WatchTopic(name, start) for name in "abc"], Kept()
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        for name in "abc":
            await kv_topic(cluster.store, name)
            await append(cluster.store, name, puts(("k", "before")))
        await run_until(level, client, wanted, kept)
        if live:
            applied: list[object] = []
            async with asyncio.TaskGroup() as group:
                task = group.create_task(
                    watch_applied(client, wanted, lambda batch: applied.extend(batch.events), cursors=kept)
                )
                await cluster.until(lambda: level(applied))
                for name in deleted:
                    await cluster.store.delete_topic(name)
                await cluster.until(lambda: gone(applied, *deleted))
                task.cancel()
        else:
            for name in deleted:
                await cluster.store.delete_topic(name)
        alive = next(name for name in "abc" if name not in deleted)
        for turn in range(3):
            await append(cluster.store, alive, puts(("k", f"{turn}")))
            events = await run_until(
                lambda seen: level(seen) and bool(data_of(seen, alive)) and gone(seen, *deleted), client, wanted, kept
            )
            assert data_of(events, alive) == [b"%d" % turn]
        assert set(kept.cursors) == {"a", "b", "c"}


async def test_a_topic_re_created_after_its_deletion_comes_as_re_created_and_whole() -> None:
    wanted, kept = [WatchTopic(name, "tail") for name in "ab"], Kept()
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        old = [await log_topic(cluster.store, name) for name in "ab"][1]
        await run_until(level, client, wanted, kept)
        await cluster.store.delete_topic("b")
        await run_until(lambda seen: level(seen) and gone(seen, "b"), client, wanted, kept)
        new = await log_topic(cluster.store, "b")
        await append(cluster.store, "b", rows("first", "second"))
        events = await run_until(level, client, wanted, kept)
        (lost,) = (event for event in events if isinstance(event, Lost))
        assert (lost.topic, lost.gap.old_epoch, lost.gap.new_epoch) == ("b", old, new)
        assert data_of(events, "b") == [b"first", b"second"]
        assert kept.cursors["b"] == Position(new, 2)


async def test_a_topic_deleted_within_its_first_snapshot_is_known_to_have_been_there() -> None:
    frames = [snapshot_begin_frame("a", 9), rows_frame("a", 3, in_snapshot_of=9), deleted_frame("a"), caught_up_frame()]
    delivery, kept = ScriptedDelivery([WatchScript(frames, CursorAhead("x"))]), Kept()
    async with scripted_server(delivery=delivery) as address, client_of_delivery(address) as client:
        with pytest.raises(CursorAhead):
            await watch_applied(client, ["a", "b"], lambda _: None, cursors=kept)
    assert kept.cursors == {"a": Position(7, 0)}


async def test_a_consumer_all_of_whose_topics_are_gone_ends_each_time() -> None:
    kept = Kept()
    told: list[object] = []
    async with served_delivery() as cluster, client_of_delivery(cluster.address) as client:
        await log_topic(cluster.store, "t")
        await run_until(level, client, [WatchTopic("t", "tail")], kept)
        await cluster.store.delete_topic("t")
        for _ in range(3):
            await watch_applied(client, WatchTopic("t", "tail"), lambda batch: told.extend(batch.events), cursors=kept)
    assert len([event for event in told if isinstance(event, TopicGone)]) == 3


def tagged(tag: str) -> Batch:
    return Batch.from_rows([Record(data=b"x", tag=tag)])
