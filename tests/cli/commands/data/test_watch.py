"""`eddyline watch` against a store and a delivery of the test's own: the request and the output of each option."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.commands.data import watch_event
from eddyline.client.watch.events import CaughtUp
from eddyline.core.errors import EpochMismatch, InvalidArgument, NotReady
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.role import SERVICES, DeliveryRole, add_services
from tests.support.command_line import command_at
from tests.support.delivery.role import WIRE
from tests.support.hang import HANG_S
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import CLUSTER_ID, ServedStore, served_store
from tests.support.store.simulated import append

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.cli.terminal.output import Output
    from eddyline.client.watch.events import WatchEvent
    from tests.support.command_line import Command

print_as_ever = watch_event.print_event

RECORDS = [
    Record(op=Op.PUT, key=b"a", data=b"one", tag="red", node="near"),
    Record(op=Op.PUT, key=b"b", data=b"2", tag="blue", node="far"),
    Record(op=Op.DELETE, key=b"a", tag="red", node="near"),
    Record(op=Op.PUT, key=b"c", data=None, tag="red", node="far"),
]


@asynccontextmanager
async def delivery_of(store: ServedStore) -> AsyncIterator[str]:
    """A delivery on a free port; its address."""
    clock = SystemClock()
    settings = DeliverySettings(listen="127.0.0.1:0")
    role = DeliveryRole(
        GrpcLink(store.channel, cluster_id=CLUSTER_ID), clock=clock, random=Random(0), settings=settings
    )
    server = make_server(settings.listen)
    add_services(server, role, common=CommonSettings(), clock=clock, host=SystemHost())
    address = await server.start(*SERVICES)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(role.run())
        await role.tails.up.wait()
        yield address
        await server.stop(0)
        running.cancel()


class Watching:
    """A store, and the command beside it. A watch ends when its topic does."""

    def __init__(self, store: ServedStore, command: Command, level: asyncio.Event, *, delivery: str) -> None:
        self.store = store
        self.command = command
        self.delivery = delivery
        self._level = level

    async def level(self) -> None:
        """Wait until a watch has said that it is."""
        await self._level.wait()

    async def said(self, *words: str, then: Batch | None = None) -> list[dict[str, object]]:
        """The output of `watch t` up to the end of its topic; `then` is appended once it has caught up."""
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(HANG_S):
            running = tasks.create_task(self.command.run("watch", "t", *words))
            await self.level()
            if then is not None:
                await append(self.store.link, "t", then)
            await self.store.link.delete_topic("t")
        code, lines = running.result()
        assert code == 0
        return lines


@pytest.fixture(name="watching")
async def _watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    level = asyncio.Event()

    def print_result(event: WatchEvent, output: Output) -> None:
        print_as_ever(event, output)
        if isinstance(event, CaughtUp):
            level.set()

    monkeypatch.setattr(watch_event, "print_event", print_result)
    async with served_store(tmp_path / "store") as store, delivery_of(store) as address:
        await store.link.create_topic("t", Kind.KV, TopicConfig(cap_records=len(RECORDS)))
        await append(store.link, "t", Batch.from_rows(RECORDS))
        command = command_at(store.address, monkeypatch, delivery=address)
        yield Watching(store, command, level, delivery=address)


def seqs(lines: list[dict[str, object]]) -> list[object]:
    return [line["seq"] for line in lines if "op" in line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--start earliest", [1, 2, 3, 4]),
        ("--start earliest --tag red", [1, 3, 4]),
        ("--start earliest --tag red --tag blue --ignore-deletes", [1, 2, 4]),
        ("--start earliest --exclude-node near", [2, 4]),
        ("--from-revision 3", [3, 4]),
        ("--at-time 0", [1, 2, 3, 4]),
        ("--after 2", [3, 4]),
        ("--tag red", [4]),
    ],
)
async def test_watch_options_select_records(watching: Watching, words: str, expected: list[int]) -> None:
    assert seqs(await watching.said(*words.split())) == expected


@pytest.mark.parametrize("verb", ["watch", "read"])
async def test_a_place_with_its_epoch_loses_nothing_of_a_topic_made_again(watching: Watching, verb: str) -> None:
    link = watching.store.link
    old = (await link.get_topic("t")).epoch
    await link.delete_topic("t")
    new = (await link.create_topic("t", Kind.KV, TopicConfig())).epoch
    await append(link, "t", Batch.from_rows(RECORDS))
    place = ("--after", "2", "--epoch", f"{old}")
    lines = await watching.said(*place) if verb == "watch" else (await watching.command.run("read", "t", *place))[1]
    assert (lines[0]["gap"], lines[0]["old_epoch"], lines[0]["new_epoch"]) == ("RECREATED", old, new)
    assert seqs(lines) == [1, 2, 3, 4]


async def test_a_history_with_another_epoch_is_refused(watching: Watching) -> None:
    with pytest.raises(EpochMismatch):
        await watching.command.run("history", "t", "a", "--epoch", "99")


async def test_updates_alone_begin_with_what_comes(watching: Watching) -> None:
    lines = await watching.said("--updates-only", then=Batch.from_rows(RECORDS[:1]))
    assert seqs(lines) in ([5], []), "the topic may go first"
    assert not any(line.get("event") == "snapshot_begin" for line in lines)


async def test_metadata_only_prints_data_size(watching: Watching) -> None:
    lines = await watching.said("--start", "earliest", "--metadata-only")
    records = [line for line in lines if "op" in line]
    assert [line.get("data_bytes") for line in records] == [3, 1, None, None]
    assert not any("data" in line for line in records)


async def test_gap_is_healed_on_request(watching: Watching) -> None:
    await append(watching.store.link, "t", Batch.from_rows(RECORDS[:2]))
    lines = await watching.said("--after", "1", "--on-gap", "heal")
    assert lines[0]["gap"] == "CAP"
    assert lines[1] == {"topic": "t", "event": "snapshot_begin", "fold_seq": 6}
    assert [line["key"] for line in lines if "op" in line] == ["a", "b", "c"]


async def test_explain_prints_cost_and_watchers_and_opens_nothing(watching: Watching) -> None:
    await append(watching.store.link, "t", Batch.from_rows(RECORDS[:2]))
    code, lines = await watching.command.run("watch", "t", "--after", "1", "--explain")
    assert code == 0
    (cost,) = lines
    assert (cost["event"], cost["after_seq"], cost["head_seq"], cost["record_count"]) == ("cost", 1, 6, 4)
    gap = cost["gap"]
    assert isinstance(gap, dict)
    assert (gap["first_seq"], gap["last_seq"], gap["gap"]) == (2, 2, "CAP")
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(HANG_S):
        running = tasks.create_task(watching.command.run("watch", "t", "--start", "tail"))
        await watching.level()
        _, (cost, stream) = await watching.command.run("watch", "t", "--explain")
        assert cost["snapshot"] is True
        assert (stream["event"], stream["seq"], stream["standing"]) == ("open_watch", 6, "LEVEL")
        _, text = await watching.command.text("watch", "t", "--start", "tail", "--explain")
        assert "t  nothing to read: caught up at 6" in text
        assert "at 6, LEVEL: caught up; the next record" in text
        assert ("is not visible" in text) is (stream["backlog"] is None) is (WIRE == "grpc")
        await watching.store.link.delete_topic("t")
        await running


@pytest.mark.parametrize(
    ("words", "then"), [((), "snapshot_begin"), (("--explain",), "cost"), (("--after", "4"), "caught_up")]
)
async def test_store_missing_at_start_is_reported_once(
    watching: Watching, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], then: str
) -> None:
    topic = await watching.store.link.get_topic("t")
    door = ScriptedShard({"get_topic": deque([NotReady("away"), NotReady("away"), topic])}, kind=Kind.KV)
    async with scripted_store(door) as store:
        watching.command = command_at(store.address, monkeypatch, delivery=watching.delivery)
        if "--explain" in words:
            _, lines = await watching.command.run("watch", "t", *words)
        else:
            lines = await watching.said(*words)
    events = [line["event"] for line in lines if "event" in line]
    assert events[:3] == ["reconnecting", "resumed", then]
    assert events.count("reconnecting") == 1
    assert lines[0]["reason"] == "NOT_READY"


@pytest.mark.parametrize("more", [(), ("--explain",), ("--after", "1")], ids=" ".join)
async def test_topic_that_is_named_twice_is_refused_as_the_contract_has_it(
    watching: Watching, more: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgument, match="topic t is named twice") as refused:
        await watching.command.run("watch", "t", "t", *more)
    assert refused.value.metadata == {"field": "topics", "topic": "t"}
