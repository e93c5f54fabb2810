"""The commit order as callers see it: seqs, conditions, retries, visibility, refusals."""

from __future__ import annotations

import asyncio
import errno

import pytest

from eddyline.core.errors import (
    CommitUnknown,
    EddylineError,
    EpochMismatch,
    HeadMismatch,
    IdempotencyConflict,
    InvalidArgument,
    InvalidName,
    InvalidOp,
    KeyRequired,
    NotKv,
    ReadOnly,
    StaleFence,
    StalePosition,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    VersionMismatch,
)
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.store_link.protocol import FollowItem, FollowLevel
from eddyline.store.log.append import AppendRequest, NewTopic, WriterPosition
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import LASTING, all_rows, append, kv_topic, log_topic, puts, rows, sim_store, values

PAST_WINDOW_S = 121


async def test_append_gets_contiguous_seqs_and_is_read_back() -> None:
    async with sim_store() as link:
        await log_topic(link)
        first = await append(link, "log", rows("a", "b"))
        second = await append(link, "log", rows("c"))
        assert (first.first_seq, first.last_seq, second.first_seq) == (1, 2, 3)
        found = await all_rows(link, "log")
        assert values(found) == [b"a", b"b", b"c"]
        assert [record.seq for record in found] == [1, 2, 3]


async def test_appends_staged_together_keep_their_order_and_seqs() -> None:
    async with sim_store() as link:
        await log_topic(link)
        acks = [await link.stage(AppendRequest(topic="log", batch=rows(str(i)))) for i in range(100)]
        results = [await ack for ack in acks]
        assert [result.first_seq for result in results] == list(range(1, 101))
        assert values(await all_rows(link, "log")) == [str(i).encode() for i in range(100)]


async def test_followers_get_records_before_their_writer_is_answered() -> None:
    order: list[str] = []
    async with sim_store() as link, link.follow() as follow, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        await follow.grant(1 << 20)
        await follow.add(1, "log")
        level = asyncio.Event()

        async def read() -> None:
            async for event in follow:
                if isinstance(event, FollowItem):
                    order.append("record")
                elif isinstance(event, FollowLevel):
                    level.set()

        reading = tasks.create_task(read())
        await level.wait()
        for _ in range(3):
            ack = await link.stage(AppendRequest(topic="log", batch=rows("a")))
            ack.add_done_callback(lambda _: order.append("ack"))
            await ack
        reading.cancel()
    assert order == ["record", "ack"] * 3


async def test_missing_topic_is_refused_unless_the_append_makes_it() -> None:
    async with sim_store() as link:
        with pytest.raises(TopicNotFound):
            await append(link, "new", rows("a"))
        made = await append(link, "new", rows("a"), create=NewTopic(Kind.LOG, TopicConfig()))
        assert made.first_seq == 1
        with pytest.raises(TopicExists):
            await log_topic(link, "new")


@pytest.mark.parametrize(
    ("conditions", "refusal"),
    [
        ({"epoch": 7}, EpochMismatch),
        ({"expected_head_seq": 1}, HeadMismatch),
        ({"expected_versions": ((b"k", b"\x01"),)}, VersionMismatch),
        ({"writer": WriterPosition("w", 1, b"1", b"2")}, StalePosition),
        ({"writer": WriterPosition("no name", 1, b"", b"2")}, InvalidName),
        ({"batch": rows("a")}, InvalidOp),
        ({"batch": Batch.from_rows([])}, InvalidArgument),
    ],
)
async def test_append_that_is_refused_makes_no_topic(
    conditions: dict[str, object], refusal: type[EddylineError]
) -> None:
    async with sim_store() as link:
        asked = {"batch": puts(("k", "v")), "create": NewTopic(Kind.KV, TopicConfig()), **conditions}
        with pytest.raises(refusal):
            await append(link, "new", **asked)  # type: ignore[arg-type]
        assert await link.list_topics("", "", 1) == []
        taken = {
            "expected_head_seq": 0,
            "expected_versions": ((b"k", b""),),
            "writer": WriterPosition("w", 0, b"", b"1"),
        }
        made = await append(link, "new", puts(("k", "v")), create=NewTopic(Kind.KV, TopicConfig()), **taken)
        assert made.first_seq == 1


async def test_versions_of_a_log_to_make_are_refused_before_it_is_made() -> None:
    async with sim_store() as link:
        create = NewTopic(Kind.LOG, TopicConfig())
        with pytest.raises(NotKv):
            await append(link, "new", rows("a"), create=create, expected_versions=((b"k", b""),))
        assert await link.list_topics("", "", 1) == []


async def test_two_creates_at_once_make_one_topic() -> None:
    async with sim_store() as link:
        async with asyncio.TaskGroup() as tasks:
            both = [
                tasks.create_task(append(link, "new", rows("a"), create=NewTopic(Kind.LOG, TopicConfig())))
                for _ in range(2)
            ]
        assert {task.result().epoch for task in both} == {(await link.get_topic("new")).epoch}
        assert (await link.get_topic("new")).head_seq == 2


async def test_ops_and_keys_follow_the_kind() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await kv_topic(link)
        with pytest.raises(InvalidOp):
            await append(link, "log", puts(("k", "v")))
        with pytest.raises(InvalidOp):
            await append(link, "kv", rows("v"))
        with pytest.raises(InvalidOp):
            await append(link, "kv", Batch.from_rows([Record(op=Op.GAP, data=b"")]))
        with pytest.raises(KeyRequired):
            await append(link, "kv", Batch.from_rows([Record(op=Op.PUT, data=b"v")]))
        assert (await link.get_topic("kv")).head_seq == 0


async def test_fold_shows_the_last_put_and_nothing_of_a_deleted_key() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("b", "2"), ("a", "3")))
        await append(link, "kv", puts(("b", None), ("c", "")))
        page = await link.batch_get_entries("kv", [b"a", b"b", b"c", b"d"])
        assert [entry and (entry.data, entry.seq) for entry in page.entries] == [(b"3", 3), None, (b"", 5), None]
        assert page.state.fold_seq == 5
        pages = [page async for page in link.range_entries("kv")]
        assert [row.key for page in pages if page.batch for row in page.batch.to_rows()] == [b"a", b"c"]


async def test_epoch_and_expected_head_are_compared_with_the_staged_state() -> None:
    async with sim_store() as link:
        epoch = await log_topic(link)
        with pytest.raises(EpochMismatch):
            await append(link, "log", rows("a"), epoch=epoch + 1)
        first = await link.stage(AppendRequest(topic="log", batch=rows("a"), expected_head_seq=0))
        second = await link.stage(AppendRequest(topic="log", batch=rows("b"), expected_head_seq=1))
        with pytest.raises(HeadMismatch) as refused:
            await link.stage(AppendRequest(topic="log", batch=rows("c"), expected_head_seq=1))
        assert refused.value.head_seq == 2
        await first
        await second
        assert values(await all_rows(link, "log")) == [b"a", b"b"]


async def test_expected_versions_see_appends_staged_before() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "1")), expected_versions=((b"k", b""),))
        version = (1).to_bytes(8, "big")
        winner = await link.stage(
            AppendRequest(topic="kv", batch=puts(("k", "2")), expected_versions=((b"k", version),))
        )
        with pytest.raises(VersionMismatch) as refused:
            await append(link, "kv", puts(("k", "3")), expected_versions=((b"k", version),))
        assert refused.value.key == b"k"
        assert refused.value.version == (2).to_bytes(8, "big")
        await winner
        await append(link, "kv", puts(("k", None)), expected_versions=((b"k", (2).to_bytes(8, "big")),))
        await append(link, "kv", puts(("k", "4")), expected_versions=((b"k", b""),))


async def test_idempotency_key_answers_a_retry_with_the_first_append() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await log_topic(link)
        in_flight = await link.stage(AppendRequest(topic="log", batch=rows("a"), idempotency_key="once"))
        again = await link.stage(AppendRequest(topic="log", batch=rows("a"), idempotency_key="once"))
        first, second = await in_flight, await again
        assert (second.first_seq, second.deduplicated, first.deduplicated) == (first.first_seq, True, False)
        assert (await append(link, "log", rows("a"), idempotency_key="once")).deduplicated
        with pytest.raises(IdempotencyConflict):
            await append(link, "log", rows("b"), idempotency_key="once")
        await clock.pass_time(PAST_WINDOW_S)
        assert (await append(link, "log", rows("b"), idempotency_key="once")).first_seq == 2


async def test_writer_positions_move_once_and_fences_only_grow() -> None:
    async with sim_store() as link:
        await log_topic(link)

        def move(fence: int, previous: bytes, new: bytes) -> WriterPosition:
            return WriterPosition("w", fence, previous, new)

        assert (await append(link, "log", rows("a"), writer=move(1, b"", b"1"))).first_seq == 1
        assert (await append(link, "log", rows("a"), writer=move(1, b"", b"1"))).deduplicated
        with pytest.raises(StalePosition) as stale:
            await append(link, "log", rows("b"), writer=move(1, b"0", b"2"))
        assert stale.value.position == b"1"
        await append(link, "log", rows("b"), writer=move(2, b"1", b"2"))
        with pytest.raises(StaleFence) as fenced:
            await append(link, "log", rows("c"), writer=move(1, b"2", b"3"))
        assert fenced.value.fence == 2
        assert (await link.get_topic("log")).head_seq == 2


async def test_recreated_topic_has_another_epoch_and_starts_at_one() -> None:
    async with sim_store() as link:
        old = await log_topic(link)
        await append(link, "log", rows("a"))
        assert await link.delete_topic("log") == old
        with pytest.raises(TopicNotFound):
            await link.read_records("log", after_seq=0)
        new = await log_topic(link)
        assert new > old
        assert (await append(link, "log", rows("b"))).first_seq == 1


@pytest.mark.parametrize("durability", LASTING)
async def test_failed_fdatasync_makes_outcomes_unknown_and_the_shard_read_only(durability: Durability) -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link, durability=Durability.FSYNC)
        await log_topic(link, "other", durability)
        await append(link, "log", rows("a"))
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("b"))
        assert link.status().read_only_reason == "SYNC_FAILED"
        with pytest.raises(ReadOnly):
            await append(link, "other", rows("c"))
        assert values(await all_rows(link, "log")) == [b"a"]


@pytest.mark.parametrize("durability", LASTING)
async def test_failed_write_leaves_no_append_without_an_answer(durability: Durability) -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link, durability=durability)
        acks = [await link.stage(AppendRequest(topic="log", batch=rows("a")))]
        await asyncio.sleep(0)
        acks.append(await link.stage(AppendRequest(topic="log", batch=rows("b"))))
        disk.next_fault("pwritev", error=errno.ENOSPC)
        for ack, error in zip(acks, (CommitUnknown, ReadOnly), strict=True):
            with pytest.raises(error):
                async with asyncio.timeout(HANG_S):
                    await ack
        with pytest.raises(ReadOnly):
            await append(link, "log", rows("c"))


async def test_time_in_records_never_goes_back() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await log_topic(link)
        first = await append(link, "log", rows("a"))
        clock.set_wall_ms(clock.now_ms() - 3_600_000)
        second = await append(link, "log", rows("b"))
        assert second.ts_ms == first.ts_ms


async def test_append_above_a_reservation_given_back_waits_for_the_next_ones_fdatasync() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        link._engine.reserve(link._table.get("log"), 1)
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("b"))


async def test_append_keeps_its_place_behind_one_whose_keys_are_being_read() -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)
        first = tasks.create_task(append(link, "kv", puts(("k", "1")), expected_versions=((b"k", b""),)))
        second = tasks.create_task(append(link, "kv", puts(("k", "2"))))
        third = tasks.create_task(
            append(link, "kv", puts(("k", "3")), expected_versions=((b"k", (2).to_bytes(8, "big")),))
        )
        assert [(await task).first_seq for task in (first, second, third)] == [1, 2, 3]


async def test_retry_of_a_versioned_append_is_answered_though_its_version_has_moved() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        for deduplicated in (False, True):
            done = await append(link, "kv", puts(("k", "1")), expected_versions=((b"k", b""),), idempotency_key="once")
            assert (done.first_seq, done.deduplicated) == (1, deduplicated)
        with pytest.raises(VersionMismatch):
            await append(link, "kv", puts(("k", "1")), expected_versions=((b"k", b""),), idempotency_key="other")


async def test_reservation_is_renewed_at_its_half_so_that_no_append_waits_for_it() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link)
        topic = link._table.get("log")
        for _ in range(10):
            before = topic.reserved_seq
            await append(link, "log", rows(*["v"] * 10_000))
            assert topic.head_seq <= before, "acknowledged within what was reserved when it was staged"
        assert topic.reserved_seq > 100_000


@pytest.mark.parametrize("kind", list(Kind))
async def test_topic_takes_nothing_once_its_deletion_is_under_way(kind: Kind) -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await link.create_topic("t", kind, TopicConfig())
        batch = rows("a") if kind is Kind.LOG else puts(("k", "v"))
        before = await link.stage(AppendRequest(topic="t", batch=batch))
        tasks.create_task(link.delete_topic("t"))
        await asyncio.sleep(0)
        assert (await link.get_topic("t")).name == "t"
        with pytest.raises(TopicNotFound):
            await link.stage(AppendRequest(topic="t", batch=batch))
        assert (await before).first_seq == 1


async def test_moves_of_one_writer_may_follow_each_other_before_the_first_is_stored() -> None:
    async with sim_store() as link:
        await log_topic(link)
        writers = link._table.get("log").writers

        def request(previous: bytes, new: bytes) -> AppendRequest:
            return AppendRequest(topic="log", batch=rows("a"), writer=WriterPosition("w", 1, previous, new))

        first = await link.stage(request(b"", b"1"))
        await asyncio.sleep(0)  # the first is on its way to the disk: the second goes with the next group
        second = await link.stage(request(b"1", b"2"))
        await first
        assert not second.done()
        assert (writers.get("w").stored, writers.get("w").position) == (b"1", b"2")
        third = await link.stage(request(b"2", b"3"))
        assert [(await ack).first_seq for ack in (second, third)] == [2, 3]
        assert writers.get("w").stored == b"3"


@pytest.mark.parametrize("kind", list(Kind))
async def test_larger_fence_of_a_move_already_done_shuts_smaller_ones_out(kind: Kind) -> None:
    async with sim_store() as link:
        await link.create_topic("t", kind, TopicConfig())
        batch = rows("a") if kind is Kind.LOG else puts(("k", "v"))
        await append(link, "t", batch, writer=WriterPosition("w", 1, b"", b"1"), idempotency_key="once")
        again = await append(link, "t", batch, writer=WriterPosition("w", 5, b"", b"1"))
        assert (again.first_seq, again.deduplicated) == (0, True)
        with pytest.raises(StaleFence) as fenced:
            await append(link, "t", batch, writer=WriterPosition("w", 4, b"1", b"2"))
        assert fenced.value.metadata == {"writer": "w", "fence": "5", "carriedFence": "4"}
        by_key = await append(link, "t", batch, writer=WriterPosition("w", 6, b"", b"1"), idempotency_key="once")
        assert (by_key.first_seq, by_key.last_seq, by_key.deduplicated) == (1, 1, True)
        with pytest.raises(StaleFence):
            await append(link, "t", batch, writer=WriterPosition("w", 5, b"1", b"2"))
        done = await append(link, "t", batch, writer=WriterPosition("w", 6, b"1", b"2"))
        assert done.first_seq == 2


async def test_larger_fence_of_a_move_already_done_is_answered_when_it_is_durable() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link)
        first = await link.stage(AppendRequest(topic="log", batch=rows("a"), writer=WriterPosition("w", 1, b"", b"1")))
        raised = [
            await link.stage(AppendRequest(topic="log", batch=rows("a"), writer=WriterPosition("w", fence, b"", b"1")))
            for fence in (2, 2, 3)
        ]
        assert (await first).first_seq == 1
        assert not any(ack.done() for ack in raised)
        assert [(await ack).deduplicated for ack in raised] == [True] * 3
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, "log", rows("a"), writer=WriterPosition("w", 4, b"", b"1"))


async def test_topic_of_gaps_alone_is_empty_and_one_record_fills_it() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await link.put_source(SourceDefinition("s", "kv", "b"))
        fence = (await link.acquire_lease("s", holder="h", lease_ms=0)).fence
        gap = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(Gap(1, 1, GapReason.SOURCE_GAP)))])
        await link.apply_batch("s", fence=fence, previous=b"", new=b"1", batch=gap)
        await link.delete_source("s")
        await link.put_source(SourceDefinition("s", "kv", "b"))
        await link.delete_source("s")
        await append(link, "kv", puts(("k", None)))
        with pytest.raises(TopicNotEmpty):
            await link.put_source(SourceDefinition("s", "kv", "b"))
        with pytest.raises(TopicNotEmpty, match="has, or had, records"):
            await link.delete_topic("kv", if_empty=True)
