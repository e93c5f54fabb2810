"""State of a topic after a restart, apart from its records: fences, settings, and whether it is empty."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import InvalidOp, SourceExists, StaleFence, TopicNotEmpty
from eddyline.core.model.fold_check import FoldVerdict
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.log.append import WriterPosition
from tests.store.recovery.test_replay import GAP_SEQ, Machine, move, nothing
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import LASTING, all_rows, append, kv_topic, log_topic, puts, rows, sim_store, values

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

CERTS = SourceDefinition("certs", "kv", "bucket")


@pytest.mark.parametrize("then", ["kill", "power"])
@pytest.mark.parametrize("durability", LASTING)
@pytest.mark.parametrize("kind", list(Kind))
async def test_fence_raised_alone_survives(then: CrashKind, durability: Durability, kind: Kind) -> None:
    machine = Machine()
    batch = rows("a") if kind is Kind.LOG else puts(("k", "v"))

    async def fill(link: Shard) -> None:
        await link.create_topic("t", kind, TopicConfig(durability))
        await append(link, "t", batch, writer=WriterPosition("w", 1, b"", b"1"))
        assert (await append(link, "t", batch, writer=WriterPosition("w", 5, b"", b"1"))).deduplicated

    async def look(link: Shard) -> None:
        with pytest.raises(StaleFence) as stale:
            await append(link, "t", batch, writer=WriterPosition("w", 4, b"1", b"2"))
        assert stale.value.fence == 5
        assert (await append(link, "t", batch, writer=WriterPosition("w", 5, b"", b"1"))).deduplicated

    async def go_on(link: Shard) -> None:
        assert (await append(link, "t", batch, writer=WriterPosition("w", 5, b"1", b"2"))).first_seq

    await machine.run(fill, then)
    await machine.run(look, "kill")
    await machine.run(look)
    await machine.run(go_on)


async def test_gap_of_a_power_failure_leaves_an_empty_topic_empty() -> None:
    machine = Machine()

    async def make(link: Shard) -> None:
        await kv_topic(link)
        await log_topic(link)

    async def use(link: Shard) -> None:
        assert (await link.get_topic("kv")).head_seq == GAP_SEQ
        assert (await link.put_source(CERTS))[1]
        await link.delete_topic("log", if_empty=True)

    await machine.run(make, "power")
    await machine.run(nothing, "kill")
    await machine.run(use)


async def test_topic_with_records_is_not_empty_after_a_restart() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await kv_topic(link)
        await append(link, "kv", puts(("k", None)))

    async def refuse(link: Shard) -> None:
        with pytest.raises(TopicNotEmpty):
            await link.put_source(CERTS)
        with pytest.raises(TopicNotEmpty):
            await link.delete_topic("kv", if_empty=True)

    await machine.run(fill, "kill")
    await machine.run(refuse)


async def test_topic_whose_fold_outlived_its_log_is_not_empty() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "v")))
        await link.delete_topic("kv")
        assert await kv_topic(link) == 2

    async def refuse(link: Shard) -> None:
        assert (await link.batch_get_entries("kv", [b"k"])).entries[0] is not None
        with pytest.raises(TopicNotEmpty):
            await link.put_source(CERTS)

    entry = bytes((1, 1)) + bytes(14) + (1).to_bytes(8, "little") + bytes(16) + b"v"
    await machine.run(fill, "kill")
    machine.fold.apply([FoldWrite(2, 1, [(b"k", entry)], [])])
    machine.fs.boots += 1
    await machine.run(refuse, "kill")
    await machine.run(refuse)


async def test_start_killed_after_a_clean_stop_leaves_a_log_that_starts_again() -> None:
    stopped, fold, crash_at, done = SimFs(), SimFold(0), 0, False
    async with sim_store(stopped, fold) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
    while not done:
        crash_at += 1
        fs, fold = stopped.reboot("kill", crash_at=crash_at), fold.kill()
        try:
            async with sim_store(fs, fold):
                done = True
        except* Crashed:
            done = False
        fs, fold = fs.reboot("kill"), fold.kill()
        async with sim_store(fs, fold) as link:
            assert values(await all_rows(link, "log")) == [b"a"]
    assert crash_at > 10


async def test_topics_with_segments_are_known_as_such_after_a_restart() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await log_topic(link)
        await append(link, "log", rows("a", "b"))
        topic = link._table.get("log")
        await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)

    async def look(link: Shard) -> None:
        assert link.status().segment_count == 1, "maintenance looks at it again"

    await machine.run(fill)
    await machine.run(look)
    await machine.run(look, "kill")
    await machine.run(look)


async def test_fold_that_is_ahead_of_its_log_gets_a_base_so_that_both_agree_again() -> None:
    machine, topic_id = Machine(), 1

    async def make(link: Shard) -> None:
        await kv_topic(link)
        await append(link, "kv", puts(("k1", "v")), writer=move(b"", b"1"))

    async def look(link: Shard) -> None:
        page = await link.batch_get_entries("kv", [b"k1", b"k3"])
        assert [entry and entry.seq for entry in page.entries] == [1, 3]
        verdict = [step async for step in link.verify_fold("kv")][-1]
        assert isinstance(verdict, FoldVerdict)
        assert (verdict.differing_count, verdict.findings) == (0, ())

    async def rest_and_look(link: Shard) -> None:
        await link._parts.maintenance.round()
        assert link._table.get("kv").base is not None
        await look(link)

    await machine.run(make, "kill")
    entry = machine.fold._state.topics[topic_id].entries[b"k1"]
    lost = entry[:16] + (3).to_bytes(8, "little") + entry[24:]
    machine.fold.apply([FoldWrite(topic_id, 3, [(b"k3", lost)], [("w", WriterState(4, b"3"))])])
    machine.fs.boots += 1
    await machine.run(rest_and_look, "kill")
    machine.fold = SimFold(0)
    await machine.run(look)


FULL = SourceDefinition(
    "orders",
    "log",
    stream="ORDERS",
    subjects=("orders.>", "é"),
    on_expired="STOP",
    on_recreated="RESYNC",
    dead_letter_topic="letters",
)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("then", ["kill", "power", "stop"])
async def test_settings_and_control_state_of_a_source_survive(then: CrashKind, checkpointed: bool) -> None:
    machine = Machine()

    async def make(link: Shard) -> None:
        await log_topic(link, "log", Durability.FSYNC)
        assert (await link.put_source(FULL))[1]
        await link.control_source("orders", paused=True)
        await link.control_source("orders", resync=True)
        await link.control_source("orders", resync=True)
        if checkpointed:
            await link._parts.checkpointer.run()
        assert (await link.control_source("orders", paused=False)).control == (False, 2)

    async def look(link: Shard) -> None:
        info = await link.get_source("orders")
        assert (info.definition, info.control) == (FULL, (False, 2))
        assert not (await link.put_source(FULL))[1]
        with pytest.raises(SourceExists):
            await link.put_source(replace(FULL, on_expired="RESYNC"))

    await machine.run(make, then)
    await machine.run(look, "kill")
    await machine.run(look)


@pytest.mark.parametrize("sealed", [False, True])
async def test_gaps_of_a_stream_are_in_its_log_and_do_not_count_as_records(sealed: bool) -> None:
    machine = Machine()
    gap = Record(
        op=Op.GAP,
        data=encode_gap(Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"identity", source_first=3, source_last=9)),
    )
    rows = [Record(op=Op.APPEND, key=b"a", data=b"1"), gap, Record(op=Op.APPEND, key=b"b", data=b"2")]

    async def make(link: Shard) -> None:
        await log_topic(link, "log")
        await link.put_source(FULL)
        fence = (await link.acquire_lease("orders", holder="h", lease_ms=0)).fence
        batch = Batch.from_rows(rows)
        await link.apply_batch("orders", fence=fence, previous=b"", new=b"1", batch=batch)
        with pytest.raises(InvalidOp):
            put = Batch.from_rows([Record(op=Op.PUT, key=b"a", data=b"1")])
            await link.apply_batch("orders", fence=fence, previous=b"1", new=b"2", batch=put)
        if sealed:
            topic = link._table.get("log")
            await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)

    async def look(link: Shard) -> None:
        result = await link.read_records("log", after_seq=0)
        rows_read = [row for item in result.items if isinstance(item, Batch) for row in item.to_rows()]
        assert [row.data for row in rows_read if row.op == Op.APPEND] == [b"1", b"2"]
        assert (await link.get_topic("log")).record_count == 2
        assert (await link.get_source("orders")).position == b"1"

    await machine.run(make, "kill")
    await machine.run(look, "kill")
    await machine.run(look)
