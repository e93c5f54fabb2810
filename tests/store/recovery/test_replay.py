"""State after a restart: every acknowledged write once, and a gap for records lost in a power failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown, DataCorrupt, IdempotencyConflict, StaleFence, StalePosition
from eddyline.core.model.source import SourceDefinition, SourceReport
from eddyline.core.model.topic import ConfigChange, Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.runtime.fs import Locked
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.log.control import topic_body, topic_from_body
from eddyline.store.log.table import TopicTable
from eddyline.store.log.topic import RESERVATION_SEQS
from eddyline.store.recovery.replay import check_follows
from eddyline.store.shard.lifecycle import IdentityMismatch
from eddyline.store.storage.wal.wal import Location
from tests.support.manual_clock import ManualClock
from tests.support.models.history import read_all
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import LASTING, all_rows, append, kv_topic, log_topic, puts, rows, sim_store, values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

CERTS = SourceDefinition("certs", "kv", "bucket")
WINDOW_S = 120
GAP_SEQ = RESERVATION_SEQS + 1


class Machine:
    """A store's disk and fold over several starts."""

    def __init__(self, seed: int = 0) -> None:
        self.fs, self.fold, self.clock = SimFs(seed), SimFold(seed), ManualClock()

    async def run(self, work: Callable[[Shard], Awaitable[None]], then: CrashKind | None = None) -> None:
        """A start, some work, and its end: a clean stop, or the machine stops."""
        try:
            async with sim_store(self.fs, self.fold, self.clock) as link:
                await work(link)
                if then is not None:
                    self.fs.crashed = True
        except* Crashed:
            assert then is not None
        if then == "power":
            self.fs, self.fold = self.fs.reboot("power"), self.fold.power()
        else:
            self.fs, self.fold = self.fs.reboot("kill"), self.fold.kill()


def move(previous: bytes, new: bytes, fence: int = 1) -> WriterPosition:
    return WriterPosition("w", fence, previous, new)


async def nothing(link: Shard) -> None:
    """Start the store without any call."""


@pytest.mark.parametrize("then", [None, "kill"])
@pytest.mark.parametrize("durability", LASTING)
async def test_restart_keeps_topics_records_and_entries(then: CrashKind | None, durability: Durability) -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await link.create_topic("log", Kind.LOG, TopicConfig(durability, 7_000))
        await kv_topic(link, durability=durability)
        await append(link, "log", rows("a", "b"))
        await append(link, "kv", puts(("k", "1"), ("gone", "2"), ("gone", None)))

    async def look(link: Shard) -> None:
        info = await link.get_topic("log")
        assert (info.kind, info.config, info.head_seq, info.earliest_seq) == (
            Kind.LOG,
            TopicConfig(durability, 7_000),
            2,
            1,
        )
        assert values(await all_rows(link, "log")) == [b"a", b"b"]
        page = await link.batch_get_entries("kv", [b"k", b"gone"])
        assert [entry and entry.data for entry in page.entries] == [b"1", None]
        assert (await append(link, "log", rows("c"))).first_seq == 3

    await machine.run(fill, then)
    await machine.run(look)


@pytest.mark.parametrize("then", [None, "kill"])
async def test_idempotency_keys_survive_with_their_seqs_content_and_window(then: CrashKind | None) -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await log_topic(link)
        acks = [
            await link.stage(AppendRequest(topic="log", batch=batch, idempotency_key=key))
            for key, batch in (("", rows("x")), ("one", rows("a", "b")), ("", rows("y")), ("two", rows("c")))
        ]
        for ack in acks:
            await ack

    async def look(link: Shard) -> None:
        one = await append(link, "log", rows("a", "b"), idempotency_key="one")
        two = await append(link, "log", rows("c"), idempotency_key="two")
        assert (one.first_seq, one.last_seq, one.deduplicated) == (2, 3, True)
        assert (two.first_seq, two.last_seq, two.deduplicated) == (5, 5, True)
        with pytest.raises(IdempotencyConflict):
            await append(link, "log", rows("c"), idempotency_key="one")
        machine.clock.advance(WINDOW_S + 1)
        assert (await append(link, "log", rows("c"), idempotency_key="one")).first_seq == 6

    await machine.run(fill, then)
    await machine.run(look)


@pytest.mark.parametrize("kind", list(Kind))
async def test_writer_positions_and_fences_survive(kind: Kind) -> None:
    machine = Machine()

    def batch(value: str) -> Batch:
        return rows(value) if kind is Kind.LOG else puts(("k", value))

    async def fill(link: Shard) -> None:
        await link.create_topic("t", kind, TopicConfig())
        await append(link, "t", batch("a"), writer=move(b"", b"1"))
        await append(link, "t", batch("b"), writer=move(b"1", b"2", fence=3))

    async def look(link: Shard) -> None:
        assert (await append(link, "t", batch("b"), writer=move(b"1", b"2", fence=3))).deduplicated
        with pytest.raises(StaleFence):
            await append(link, "t", batch("c"), writer=move(b"2", b"3", fence=2))
        with pytest.raises(StalePosition) as stale:
            await append(link, "t", batch("c"), writer=move(b"1", b"3", fence=3))
        assert stale.value.position == b"2"

    async def go_on(link: Shard) -> None:
        assert (await append(link, "t", batch("c"), writer=move(b"2", b"3", fence=3))).first_seq == 3

    await machine.run(fill, "kill")
    await machine.run(look, "kill")
    await machine.run(go_on)


async def test_sources_survive_with_fence_holder_and_position_and_their_lease_restarts() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await kv_topic(link)
        await link.put_source(CERTS)
        lease = await link.acquire_lease("certs", holder="a", lease_ms=2_000)
        await link.renew_lease("certs", fence=lease.fence, report=SourceReport("LIVE"))
        await link.apply_batch("certs", fence=lease.fence, previous=b"", new=b"1", batch=puts(("k", "v")))
        await link.apply_batch("certs", fence=lease.fence, previous=b"1", new=b"2", batch=None)
        machine.clock.advance(1.5)

    async def look(link: Shard) -> None:
        info = await link.get_source("certs")
        assert (info.definition, info.position, info.fence, info.holder) == (CERTS, b"2", 1, "a")
        assert (info.lease_remaining_ms, info.reported_ms) == (2_000, -1)
        assert (await link.acquire_lease("certs", holder="a", lease_ms=0)).fence == 2
        await link.delete_source("certs")

    async def gone(link: Shard) -> None:
        assert list(await link.list_sources()) == []
        assert (await link.get_topic("kv")).source == ""

    await machine.run(fill, "kill")
    await machine.run(look, "kill")
    await machine.run(gone)


async def test_deleted_topic_stays_deleted_in_log_and_fold_and_its_id_is_not_reused() -> None:
    machine, epochs = Machine(), list[int]()

    async def fill(link: Shard) -> None:
        epochs.append(await kv_topic(link))
        await append(link, "kv", puts(("k", "v")))
        await link.delete_topic("kv")

    async def look(link: Shard) -> None:
        assert await link.list_topics("", "", 10) == []
        assert link._engine.fold.topics() == {}
        epochs.append(await kv_topic(link))
        assert (await link.batch_get_entries("kv", [b"k"])).entries == (None,)

    await machine.run(fill, "kill")
    await machine.run(look)
    assert epochs == sorted(set(epochs))


async def test_lost_tail_is_one_gap_that_later_starts_keep() -> None:
    machine = Machine()
    seen: list[object] = []

    async def fill(link: Shard) -> None:
        await log_topic(link)
        await log_topic(link, "safe", Durability.FSYNC)
        await append(link, "safe", rows("s"))
        await append(link, "log", rows("a"))
        await link._engine.committers[0].sync()
        await append(link, "log", rows("b"))

    async def look(link: Shard) -> None:
        records, gaps = await read_all(link, "log")
        assert (await read_all(link, "safe"))[1] == []
        last = records[-1].seq
        assert gaps == [Gap(last + 1, RESERVATION_SEQS, GapReason.UNSYNCED, seq=GAP_SEQ)]
        assert (await link.get_topic("log")).head_seq == GAP_SEQ
        seen.append((records, gaps))

    async def go_on(link: Shard) -> None:
        assert (await append(link, "log", rows("c"))).first_seq == GAP_SEQ + 1

    await machine.run(fill, "power")
    await machine.run(look, "power")
    await machine.run(look, "kill")
    await machine.run(look)
    assert seen[0] == seen[1] == seen[2]
    await machine.run(go_on)


async def test_gap_of_an_empty_topic_expires_by_its_own_time_not_that_of_the_next_record() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await log_topic(link)

    async def look(link: Shard) -> None:
        assert (await read_all(link, "log"))[1] == [Gap(1, RESERVATION_SEQS, GapReason.UNSYNCED, seq=GAP_SEQ)]
        await machine.clock.pass_time(4)
        await append(link, "log", rows("a"))
        await link.update_topic("log", ConfigChange(ttl_ms=5_000))
        await machine.clock.pass_time(2)
        assert (await link.get_topic("log")).evict_floor == GAP_SEQ

    await machine.run(fill, "power")
    await machine.run(look)


async def test_clean_stop_before_a_power_failure_loses_nothing() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await log_topic(link)
        await append(link, "log", rows("a"))

    async def look(link: Shard) -> None:
        assert [record.seq for record in await all_rows(link, "log")] == [1]
        assert (await append(link, "log", rows("b"))).first_seq == 2

    await machine.run(fill)
    machine.fs, machine.fold = machine.fs.reboot("power"), machine.fold.power()
    await machine.run(look)


@pytest.mark.parametrize("durability", LASTING)
async def test_head_moves_past_a_fold_that_is_ahead_and_keeps_its_positions(durability: Durability) -> None:
    machine, topic_id = Machine(), 1

    async def make(link: Shard) -> None:
        assert await kv_topic(link, durability=durability) == topic_id
        await append(link, "kv", puts(("k1", "v")), writer=move(b"", b"1"))

    async def look(link: Shard) -> None:
        records, gaps = await read_all(link, "kv")
        assert [record.seq for record in records] == [1]
        assert [(gap.first_seq, gap.reason) for gap in gaps] == [(2, GapReason.UNSYNCED)]
        page = await link.batch_get_entries("kv", [b"k1", b"k3"])
        assert [entry and entry.seq for entry in page.entries] == [1, 3]
        assert page.state.fold_seq == (await link.get_topic("kv")).head_seq
        assert (await append(link, "kv", puts(("k1", "w")), writer=move(b"2", b"3", fence=4))).deduplicated

    async def go_on(link: Shard) -> None:
        done = await append(link, "kv", puts(("k1", "w")), writer=move(b"3", b"4", fence=4))
        assert done.first_seq == (await link.get_topic("kv")).head_seq

    await machine.run(make, "kill")
    entry = machine.fold._state.topics[topic_id].entries[b"k1"]
    lost = entry[:16] + (3).to_bytes(8, "little") + entry[24:]
    machine.fold.apply([FoldWrite(topic_id, 3, [(b"k3", lost)], [("w", WriterState(4, b"3"))])])
    machine.fs.boots += 1
    await machine.run(look, "kill")
    await machine.run(look, "kill")
    await machine.run(look)
    await machine.run(go_on)


async def test_another_stores_fold_is_refused() -> None:
    machine = Machine()
    await machine.run(log_and_nothing)
    machine.fold.apply([FoldWrite(77, 3, [], [])])
    with pytest.raises(DataCorrupt):
        await machine.run(nothing)


async def log_and_nothing(link: Shard) -> None:
    """Make one topic, without records."""
    await log_topic(link)


async def test_directory_of_another_cluster_is_refused_and_unchanged() -> None:
    machine = Machine()
    await machine.run(log_and_nothing)

    async def start(cluster_id: str) -> int:
        async with sim_store(machine.fs, machine.fold.kill(), machine.clock, cluster_id=cluster_id) as link:
            return link.status().instance

    with pytest.raises(IdentityMismatch, match=r"'test'.*'other'"):
        await start("other")
    assert await start("test") == 2


@pytest.mark.parametrize(
    ("index", "count", "way_out"),
    [
        ("0", 3, r"shard 1 of 3 .* shard 0 of 3 .*start it as shard 1 \(EDDYLINE_STORE_SHARD_INDEX\)"),
        ("1", 2, r"set 3 store addresses \(EDDYLINE_COMMON_STORE_ADDRESSES\)"),
        ("0", 1, r"set 3 store addresses .* and start it as shard 1 .*, or set another directory"),
    ],
)
async def test_directory_of_another_shard_is_refused_and_unchanged(index: str, count: int, way_out: str) -> None:
    machine = Machine()

    async def start(index: str, count: int) -> int:
        fold = machine.fold.kill()
        async with sim_store(machine.fs, fold, machine.clock, shard_count=count, shard_index=index) as link:
            return link.status().instance

    assert await start("eddyline-store-1", 3) == 1
    with pytest.raises(IdentityMismatch, match=way_out):
        await start(index, count)
    assert await start("1", 3) == 2


async def test_topic_ids_contain_their_shard_and_are_never_reused() -> None:
    machine, ids = Machine(), list[int]()
    for name in ("a", "b"):
        fold = machine.fold.kill()
        async with sim_store(machine.fs, fold, machine.clock, shard_count=64, shard_index="63") as link:
            ids.append((await link.create_topic(name, Kind.LOG, TopicConfig())).epoch)
    assert ids == [(63 << 48) + 1, (63 << 48) + 2]


async def test_second_process_is_refused_with_the_holder_of_the_directory() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        with pytest.raises(Locked, match=r"pid 1 on simulated, listening at 127\.0\.0\.1:7701"):
            async with sim_store(fs):
                pass
        await log_topic(link)
    async with sim_store(fs) as link:
        assert (await link.get_topic("log")).head_seq == 0


async def test_stalled_fold_is_brought_up_to_date_by_the_next_start() -> None:
    machine = Machine()

    async def fill(link: Shard) -> None:
        await kv_topic(link)
        machine.fold.fail()
        with pytest.raises(CommitUnknown):
            await append(link, "kv", puts(("k", "v")), idempotency_key="once")
        assert link.status().read_only_reason == "FOLD_FAILED"
        assert (await link.get_topic("kv")).head_seq == 0

    async def look(link: Shard) -> None:
        entry = (await link.batch_get_entries("kv", [b"k"])).entries[0]
        assert entry == Record(seq=1, ts_ms=machine.clock.now_ms(), op=2, key=b"k", data=b"v")
        assert (await append(link, "kv", puts(("k", "v")), idempotency_key="once")).deduplicated

    await machine.run(fill, "kill")
    await machine.run(look)


async def test_each_start_has_a_number_of_its_own() -> None:
    machine, instances = Machine(), list[int]()

    async def look(link: Shard) -> None:
        instances.append(link.status().instance)

    for then in ("kill", "power", None, "kill"):
        await machine.run(look, then)
    assert instances == [1, 2, 3, 4]


async def test_missing_frame_in_the_middle_of_a_topic_is_corruption() -> None:
    table = TopicTable(0)
    topic = topic_from_body(1, dict(topic_body("log", Kind.LOG, TopicConfig())), 0, table.key_budget)
    topic.head_seq = 3
    with pytest.raises(DataCorrupt, match="frames between them are missing"):
        check_follows(topic, rows("a").with_seqs(5, 0), Location(2, 80, 96))
    check_follows(topic, rows("a").with_seqs(4, 0), Location(2, 80, 96))
    gap = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(Gap(4, 9, GapReason.UNSYNCED)))])
    check_follows(topic, gap.with_seqs(10, 0), Location(2, 80, 96))
    with pytest.raises(DataCorrupt):
        check_follows(topic, gap.with_seqs(11, 0), Location(2, 80, 96))


@pytest.mark.parametrize("durability", LASTING)
async def test_clean_stop_whose_last_frame_is_damaged_is_refused(durability: Durability) -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await log_topic(link, durability=durability)
        await append(link, "log", rows("a"))
    directory = Path("/data/wal/00")
    newest = fs.open(directory / sorted(fs.listdir(directory))[0])
    last = len(newest.pread(newest.size(), 0).rstrip(b"\0")) - 1
    newest.pwritev([b"\0"], last)
    with pytest.raises(DataCorrupt):
        async with sim_store(fs, fold.kill()):
            pass


async def test_directory_that_was_started_before_and_has_no_wal_is_refused() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
    directory = Path("/data/wal/00")
    for name in fs.listdir(directory):
        fs.unlink(directory / name)
    with pytest.raises(DataCorrupt, match="missing"):
        async with sim_store(fs, fold.kill()):
            pass
