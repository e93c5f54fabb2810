"""A source's settings changed: in the frame as FORMAT.md has it, after every kind of crash; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import InvalidArgument, InvalidName, NewerFormat, SourceNotFound
from eddyline.core.model.source import ControlState, SourceChange, SourceDefinition, SourceReport, SourceStop
from eddyline.core.model.topic import Durability
from eddyline.store.log.sources import control_change_body, put_control, put_stop, update_body, updated_definition
from eddyline.store.storage.wal.frame import FrameType, control_body
from tests.store.recovery.test_recovered_state import FULL
from tests.store.recovery.test_replay import Machine, nothing
from tests.support.store.simulated import log_topic

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind


UPDATES = (SourceChange(dead_letter_topic=""), SourceChange("RESYNC", "STOP"), SourceChange(dead_letter_topic="other"))


@pytest.mark.parametrize("checkpointed", [0, 1, 3])
@pytest.mark.parametrize("then", ["kill", "power", "stop"])
async def test_update_of_a_source_survives_with_its_lease_and_orders(then: CrashKind, checkpointed: int) -> None:
    machine = Machine()

    async def make(link: Shard) -> None:
        await log_topic(link, "log", Durability.FSYNC)
        await link.put_source(FULL)
        await link.control_source("orders", resync=True)
        await link.acquire_lease("orders", holder="h", lease_ms=0)
        for number, change in enumerate(UPDATES):
            if number == checkpointed:
                await link._parts.checkpointer.run()
            info = await link.update_source("orders", change)
        if checkpointed == len(UPDATES):
            await link._parts.checkpointer.run()
        assert info.definition == replace(FULL, on_expired="RESYNC", on_recreated="STOP", dead_letter_topic="other")

    async def look(link: Shard) -> None:
        info = await link.get_source("orders")
        assert info.definition == replace(FULL, on_expired="RESYNC", on_recreated="STOP", dead_letter_topic="other")
        assert (info.control, info.fence, info.holder) == ((False, 1), 1, "h")
        assert not (await link.put_source(info.definition))[1]

    await machine.run(make, then)
    await machine.run(look, "kill")
    await machine.run(look)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("then", ["kill", "power", "stop"])
async def test_stop_that_only_a_resync_ends_survives_with_orders_and_settings(
    then: CrashKind, checkpointed: bool
) -> None:
    machine = Machine()
    ahead = SourceReport("CURSOR_AHEAD", "stream ORDERS was rolled back é", 9, 9)

    async def make(link: Shard) -> None:
        await log_topic(link, "log", Durability.FSYNC)
        await link.put_source(FULL)
        fence = (await link.acquire_lease("orders", holder="h", lease_ms=0)).fence
        await link.apply_batch("orders", fence=fence, previous=b"", new=b"at", batch=None)
        syncs = link._engine.measures.sync_s.now().observation_count
        for _ in range(2):
            await link.renew_lease("orders", fence=fence, report=ahead)
        await link.renew_lease("orders", fence=fence, report=SourceReport("PAUSED"))
        if checkpointed:
            await link._parts.checkpointer.run()
        else:
            assert link._engine.measures.sync_s.now().observation_count - syncs == 1, "a stop is stored once"
        await link.control_source("orders", paused=True)
        await link.update_source("orders", SourceChange(dead_letter_topic="other"))

    async def look(link: Shard) -> None:
        info = await link.get_source("orders")
        assert info.stop == SourceStop(ahead.state, ahead.reason, b"at")
        assert (info.control, info.definition.dead_letter_topic) == ((True, 0), "other")

    async def end(link: Shard) -> None:
        info = await link.get_source("orders")
        lease = await link.acquire_lease("orders", holder="h", lease_ms=0)
        assert lease.source.stop == info.stop
        await link.control_source("orders", paused=False, resync=True)
        assert (await link.get_source("orders")).stop == info.stop, "it holds until the resync is done"
        await link.apply_batch("orders", fence=lease.fence, previous=b"at", new=b"done", batch=None)
        await link.renew_lease("orders", fence=lease.fence, report=SourceReport("LIVE"))

    async def look_again(link: Shard) -> None:
        info = await link.get_source("orders")
        assert (info.stop, info.control) == (None, (False, 1))

    await machine.run(make, then)
    await machine.run(look, "kill")
    await machine.run(end, then)
    await machine.run(look_again)


def test_frame_carries_the_stop_and_one_without_it_reads_as_before() -> None:
    stop = SourceStop("CURSOR_AHEAD", "é", b"\3\0")
    body = control_change_body("s", ControlState(paused=True, resync_serial=2), stop)
    assert control_body(FrameType.WRITER_CHANGE, 1, dict(body), ts_ms=5).parts[:1] == (
        '{"change":"orders","paused":1,"resync_serial":2,"source":"s","stop":"CURSOR_AHEAD","stop_position":"AwA=",'
        '"stop_reason":"é"}'.encode(),
    )
    assert (put_control(body), put_stop(body)) == ((True, 2), stop)
    before: dict[str, str | int] = {"change": "orders", "paused": 0, "resync_serial": 2, "source": "s"}
    assert control_change_body("s", ControlState(resync_serial=2), None) == before
    assert (put_control(before), put_stop(before)) == ((False, 2), None)


async def test_update_that_cannot_be_is_refused_and_one_that_changes_nothing_is_answered() -> None:
    machine = Machine()

    async def play(link: Shard) -> None:
        await log_topic(link, "log", Durability.FSYNC)
        await link.put_source(FULL)
        with pytest.raises(InvalidArgument):
            await link.update_source("orders", SourceChange(dead_letter_topic="log"))
        with pytest.raises(InvalidName):
            await link.update_source("orders", SourceChange(dead_letter_topic="a b"))
        with pytest.raises(SourceNotFound):
            await link.update_source("nobody", SourceChange("STOP"))
        assert (await link.update_source("orders", FULL.changeable)).definition == FULL

    await machine.run(play)


def test_frame_carries_all_settings() -> None:
    plain = SourceDefinition("s", "kv", "bucket")
    assert control_body(FrameType.WRITER_CHANGE, 1, dict(update_body(plain)), ts_ms=5).parts[:1] == (
        b'{"change":"update","settings":"","source":"s"}',
    )
    changed = replace(plain, dead_letter_topic="é", on_expired="STOP")
    body = update_body(changed)
    assert body == {
        "change": "update",
        "settings": '{"dead_letter_topic":"é","on_expired":"STOP"}',
        "source": "s",
    }
    assert updated_definition(plain, body) == changed


async def test_change_of_a_later_version_refuses_the_start() -> None:
    machine = Machine()

    async def make(link: Shard) -> None:
        await log_topic(link, "log", Durability.FSYNC)
        await link.put_source(FULL)
        topic = link._table.get("log")
        body = control_body(FrameType.WRITER_CHANGE, topic.id, {"change": "move", "source": "orders"}, ts_ms=1)
        await link._engine.control(body, lambda _: None, topic)

    await machine.run(make, "kill")
    with pytest.raises(NewerFormat, match="'move' of a source"):
        await machine.run(nothing, "kill")
