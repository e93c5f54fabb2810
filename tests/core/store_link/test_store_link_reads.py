"""Reading half of the suite for all implementations of `StoreLink`: logs, folds, and following."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    CursorAhead,
    DataCorrupt,
    FoldBehind,
    InvalidArgument,
    InvalidName,
    NotKv,
    ScanExpired,
    TooManyScans,
    TopicNotFound,
)
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.source import SourceReport
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from eddyline.core.store_link.protocol import FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.store.fold.fold import VIEWS_MAX
from tests.core.store_link.test_protocol import rows_of, with_source
from tests.support.hang import HANG_S
from tests.support.manual_clock import START_MS, settle
from tests.support.sim.fold import SimFold
from tests.support.store.both_links import FORMS, Form, LinkedStore, linked_store
from tests.support.store.served import until
from tests.support.store.simulated import append, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from eddyline.core.model.read import RangePage
    from eddyline.core.store_link.protocol import FollowEvent, StoreLink
    from eddyline.store.fold.fold import FoldView
    from tests.support.manual_clock import ManualClock

CREDIT = 1 << 20


async def pages_of(pages: AsyncIterator[RangePage]) -> list[RangePage]:
    return [page async for page in pages]


async def keys_of(link: StoreLink, prefix: bytes = b"", after_key: bytes = b"", limit: int = 0) -> list[bytes | None]:
    pages = await pages_of(link.range_entries("kv", key_prefix=prefix, after_key=after_key, limit=limit))
    return [row.key for page in pages if page.batch is not None for row in page.batch.to_rows()]


@asynccontextmanager
async def under_way(store: LinkedStore, call: Awaitable[object]) -> AsyncIterator[asyncio.Task[object]]:
    """Make a call that waits in the store until time passes."""

    async def called() -> object:
        return await call

    timers = store.clock.pending
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(called())
        await until(lambda: store.clock.pending > timers or task.done())
        yield task


# reads -----------------------------------------------------------------------------------------------------------


async def test_reads_return_their_cursor_and_the_state_of_the_topic(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    for value in ("a", "b", "c"):
        await append(store.door, "t", rows(value))
    read = await store.link.read_records("t", after_seq=1, limit=1)
    assert (read.next_after_seq, read.head_seq, read.earliest_seq, read.epoch) == (2, 3, 1, 1)
    assert (read.caught_up, read.lag) == (False, 1)
    assert rows_of(read) == [[Record(seq=2, ts_ms=START_MS, data=b"b")]]
    small = await store.link.read_records("t", after_seq=0, max_bytes=1)
    assert rows_of(small) == [[Record(seq=1, ts_ms=START_MS, data=b"a")]]
    level = await store.link.read_records("t", after_seq=3)
    assert (level.items, level.caught_up) == ((), True)


@pytest.mark.parametrize(
    ("record_filter", "seqs"),
    [
        (RecordFilter(key_prefixes=(b"a", b"c")), [1, 3, 4]),
        (RecordFilter(tags=("x",)), [1, 2]),
        (RecordFilter(exclude_nodes=("n",)), [2, 4]),
        (RecordFilter(ops=(Op.DELETE,)), [4]),
        (RecordFilter(key_prefixes=(b"a",), exclude_nodes=("n",)), [4]),
        (RecordFilter(tags=("none",)), []),
    ],
)
async def test_filters_select_records_and_move_the_cursor(
    store: LinkedStore, record_filter: RecordFilter, seqs: list[int]
) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    batch = Batch.from_rows(
        [
            Record(op=Op.PUT, key=b"a1", tag="x", node="n"),
            Record(op=Op.PUT, key=b"b1", tag="x"),
            Record(op=Op.PUT, key=b"c1", tag="y", node="n"),
            Record(op=Op.DELETE, key=b"a1"),
            Record(op=Op.PUT, key=b"b2", node="n"),
        ]
    )
    await append(store.door, "kv", batch)
    read = await store.link.read_records("kv", after_seq=0, record_filter=record_filter)
    found_seqs = [row.seq for item in read.items if isinstance(item, Batch) for row in item.to_rows()]
    assert (found_seqs, read.next_after_seq) == (seqs, 5)


async def test_gaps_end_batches_and_carry_the_revisions_of_the_source(store: LinkedStore) -> None:
    fence = await with_source(store)
    lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"stream", source_first=4, source_last=9)
    gap = Record(op=Op.GAP, data=encode_gap(lost))
    put = Record(op=Op.PUT, key=b"k", data=b"v")
    batch = Batch.from_rows([put, gap, put])
    await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=batch)
    read = await store.link.read_records("kv", after_seq=0, record_filter=RecordFilter(key_prefixes=(b"none",)))
    assert [type(item) for item in read.items] == [Gap]
    read = await store.link.read_records("kv", after_seq=0)
    first, item, last = rows_of(read)
    assert first == [put._replace(seq=1, ts_ms=START_MS)]
    assert last == [put._replace(seq=3, ts_ms=START_MS)]
    assert isinstance(item, Gap)
    assert (item.reason, item.seq, item.source_identity) == (GapReason.SOURCE_GAP, 2, b"stream")
    assert (item.source_first, item.source_last) == (4, 9)


async def test_cursor_of_another_epoch_gets_a_recreated_gap(store: LinkedStore) -> None:
    old = (await store.link.create_topic("t", Kind.LOG, TopicConfig())).epoch
    await store.door.delete_topic("t")
    new = (await store.link.create_topic("t", Kind.LOG, TopicConfig())).epoch
    await append(store.door, "t", rows("a"))
    read = await store.link.read_records("t", after_seq=99, epoch=old)
    assert rows_of(read) == [
        Gap(0, 0, GapReason.RECREATED, old_epoch=old, new_epoch=new),
        [Record(seq=1, ts_ms=START_MS, data=b"a")],
    ]


async def test_read_refusals(store: LinkedStore) -> None:
    with pytest.raises(TopicNotFound):
        await store.link.read_records("t", after_seq=0)
    with pytest.raises(InvalidName):
        await store.link.read_records("/", after_seq=0)
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    with pytest.raises(CursorAhead) as ahead:
        await store.link.read_records("t", after_seq=1)
    assert ahead.value.head_seq == 0
    for field, call in (
        ("limit", store.link.read_records("t", after_seq=0, limit=10_001)),
        ("max_bytes", store.link.read_records("t", after_seq=0, max_bytes=(16 << 20) + 1)),
        ("wait_ms", store.link.read_records("t", after_seq=0, wait_ms=30_001)),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await call
        assert refused.value.metadata["field"] == field


async def test_damaged_record_is_never_served(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    await append(store.door, "t", rows("a"))
    location = store.door._table.get("t").index.entry(0).location
    path = store.door._engine.committers[0].wal._directory / f"{location.file_number:016x}.wal"
    file = store.disk.open(path)
    at = location.offset + location.length // 2
    file.pwritev([bytes([file.pread(1, at)[0] ^ 1])], at)
    with pytest.raises(DataCorrupt) as corrupt:
        await store.link.read_records("t", after_seq=0)
    assert corrupt.value.metadata["offset"] == str(location.offset)


async def test_caught_up_read_waits_for_the_next_record(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    async with under_way(store, store.link.read_records("t", after_seq=0, wait_ms=30_000)) as reading:
        await append(store.door, "t", rows("a"))
        read = await reading
    assert rows_of(read) == [[Record(seq=1, ts_ms=START_MS, data=b"a")]]  # type: ignore[arg-type]
    async with under_way(store, store.link.read_records("t", after_seq=1, wait_ms=500)) as reading:
        store.clock.advance(0.4)
        await settle()
        assert not reading.done()
        store.clock.advance(0.2)
        read = await reading
    assert rows_of(read) == []  # type: ignore[arg-type]


async def test_waiting_read_of_a_deleted_topic_fails(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())

    async def read() -> None:
        with pytest.raises(TopicNotFound):
            await store.link.read_records("t", after_seq=0, wait_ms=30_000)

    async with under_way(store, read()):
        await store.door.delete_topic("t")


# the fold --------------------------------------------------------------------------------------------------------


async def test_entries_come_in_the_order_of_the_request_with_the_folds_state(store: LinkedStore) -> None:
    fence = await with_source(store)
    await store.link.renew_lease("certs", fence=fence, report=SourceReport("LIVE"))
    store.clock.advance(0.25)
    full = Record(
        op=Op.PUT, key=b"b", data=b"", tag="", node="n", meta=(MetaEntry("m", b""),), version=b"\1", source_ts_ns=7
    )
    await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=Batch.from_rows([full]))
    page = await store.link.batch_get_entries("kv", [b"none", b"b", b"b"], min_seq=1)
    entry = full._replace(seq=1, ts_ms=START_MS + 250)
    assert page.entries == (None, entry, entry)
    state = page.state
    assert (state.fold_seq, state.epoch, state.source_state, state.staleness_ms) == (1, 1, "LIVE", 250)


async def test_range_is_ordered_bounded_and_never_without_a_page(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    (empty,) = await pages_of(store.link.range_entries("kv"))
    assert (empty.batch, empty.state.fold_seq) == (None, 0)
    await append(store.door, "kv", puts(("b", "1"), ("a1", "2"), ("a2", "3"), ("c", "4"), ("c", None)))
    assert await keys_of(store.link) == [b"a1", b"a2", b"b"]
    assert await keys_of(store.link, prefix=b"a") == [b"a1", b"a2"]
    assert await keys_of(store.link, after_key=b"a1", limit=1) == [b"a2"]
    assert await keys_of(store.link, prefix=b"a", after_key=b"a2") == []
    (page,) = await pages_of(store.link.range_entries("kv", key_prefix=b"b", min_seq=5))
    assert page.batch is not None
    assert page.batch.to_rows() == [Record(seq=1, ts_ms=START_MS, op=Op.PUT, key=b"b", data=b"1")]
    assert page.state.fold_seq == 5


async def test_fold_refusals(store: LinkedStore) -> None:
    await store.link.create_topic("log", Kind.LOG, TopicConfig())
    for topic, error in (("none", TopicNotFound), ("/", InvalidName), ("log", NotKv)):
        with pytest.raises(error):
            await store.link.batch_get_entries(topic, [b"k"])
        with pytest.raises(error):
            await pages_of(store.link.range_entries(topic))
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    with pytest.raises(InvalidArgument):
        await store.link.batch_get_entries("kv", [b"k"] * 10_001)


async def test_fold_that_stays_behind_is_an_error(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())

    async def ask(call: Awaitable[object]) -> None:
        with pytest.raises(FoldBehind) as behind:
            await call
        assert behind.value.metadata["foldSeq"] == "0"

    for call in (
        store.link.batch_get_entries("kv", [b"k"], min_seq=1),
        pages_of(store.link.range_entries("kv", min_seq=1)),
    ):
        async with under_way(store, ask(call)):
            store.clock.advance(31)


async def test_fold_is_waited_for(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    async with under_way(store, store.link.batch_get_entries("kv", [b"k"], min_seq=1)):
        await append(store.door, "kv", puts(("k", "v")))


async def test_one_scan_too_many_is_refused_with_a_time(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    views = [store.fold.view(1) for _ in range(VIEWS_MAX)]
    with pytest.raises(TooManyScans) as refused:
        await pages_of(store.link.range_entries("kv"))
    assert refused.value.metadata == {"scansMax": "64", "retryAfterMs": "1000"}
    for view in views:
        view.close()
    await pages_of(store.link.range_entries("kv"))


class SlowFold(SimFold):
    """Serve pages that take 200 s each."""

    def __init__(self) -> None:
        super().__init__(0)
        self.clock: ManualClock | None = None

    def view(  # type: ignore[override]
        self, topic_id: int, *, key_prefix: bytes = b"", after_key: bytes = b"", counted: bool = True
    ) -> SlowView:
        view = super().view(topic_id, key_prefix=key_prefix, after_key=after_key, counted=counted)
        return SlowView(view, self.clock)


class SlowView:
    def __init__(self, view: FoldView, clock: ManualClock | None) -> None:
        self._view = view
        self._clock = clock

    def next_batch(self, entries_max: int, bytes_max: int) -> Batch:
        if self._clock is not None:
            self._clock.advance(200)
        return self._view.next_batch(entries_max, bytes_max)

    def close(self) -> None:
        self._view.close()


@pytest.mark.parametrize("form", FORMS)
async def test_scan_ends_after_300_seconds_and_keeps_its_pages(form: Form) -> None:
    fold = SlowFold()
    async with linked_store(form, fold=fold) as store:
        fold.clock = store.clock
        await store.link.create_topic("kv", Kind.KV, TopicConfig())
        await append(store.door, "kv", puts(*((f"{i:04}", "v") for i in range(8_000))))
        seen = 0
        with pytest.raises(ScanExpired):
            async for page in store.link.range_entries("kv"):
                assert page.batch is not None
                seen += page.batch.count
        assert 0 < seen < 8_000


# following -------------------------------------------------------------------------------------------------------


async def take(events: AsyncIterator[FollowEvent], count: int) -> list[FollowEvent]:
    async with asyncio.timeout(HANG_S):
        return [await anext(events) for _ in range(count)]


async def test_follower_starts_catches_up_and_continues(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    await append(store.door, "t", rows("a", "b"))
    async with store.link.follow() as follow:
        await follow.grant(CREDIT)
        await follow.add(7, "t", after_seq=1)
        events = aiter(follow)
        started, item, level = await take(events, 3)
        assert started == FollowStarted(7, await store.link.get_topic("t"), 1)
        assert isinstance(item, FollowItem)
        assert isinstance(item.item, Batch)
        assert item.item.to_rows() == [Record(seq=2, ts_ms=START_MS, data=b"b")]
        assert (item.follow_id, item.next_after_seq, item.head_seq) == (7, 2, 2)
        assert level == FollowLevel(7, 2)
        await append(store.door, "t", rows("c"))
        (live,) = await take(events, 1)
        assert isinstance(live, FollowItem)
        assert (live.next_after_seq, live.head_seq) == (3, 3)


async def test_follower_without_a_cursor_starts_at_the_head(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    await append(store.door, "t", rows("a"))
    async with store.link.follow() as follow:
        await follow.add(1, "t")
        await follow.grant(CREDIT)
        started, level = await take(aiter(follow), 2)
        assert isinstance(started, FollowStarted)
        assert started.after_seq == 1
        assert level == FollowLevel(1, 1)


async def test_credit_bounds_the_bytes_sent(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    for _ in range(3):
        await append(store.door, "t", rows("x" * 700_000))
    async with store.link.follow() as follow, asyncio.TaskGroup() as tasks:
        await follow.add(1, "t", after_seq=0)
        events = aiter(follow)
        await take(events, 1)
        for seq in (1, 2, 3):
            waiting = tasks.create_task(take(events, 1))
            await settle()
            await store.link.get_topic("t")  # over the wire and back: what was sent before has come
            await settle()
            assert not waiting.done()
            await follow.grant(1 if seq == 1 else 700_032)
            (item,) = await waiting
            assert isinstance(item, FollowItem)
            assert item.next_after_seq == seq


async def test_too_much_credit_is_refused(store: LinkedStore) -> None:
    with pytest.raises(InvalidArgument):
        async with store.link.follow() as follow:
            await follow.grant(64 << 20)
            await follow.grant(1)
            await take(aiter(follow), 1)


async def test_topics_that_cannot_be_followed_end_alone(store: LinkedStore) -> None:
    await store.link.create_topic("t", Kind.LOG, TopicConfig())
    async with store.link.follow() as follow:
        await follow.add(1, "none", after_seq=0)
        await follow.add(2, "t", after_seq=5)
        await follow.add(3, "t", after_seq=0)
        await follow.grant(CREDIT)
        events = aiter(follow)
        first, second, third, _ = await take(events, 4)
        assert first == FollowEnded(1, "TOPIC_NOT_FOUND", "no topic none")
        assert isinstance(second, FollowEnded)
        assert (second.follow_id, second.reason) == (2, "CURSOR_AHEAD")
        assert isinstance(third, FollowStarted)
        await append(store.door, "t", rows("a"))
        await take(events, 1)
        await store.door.delete_topic("t")
        (ended,) = await take(events, 1)
        assert ended == FollowEnded(3, "TOPIC_NOT_FOUND", "topic t was deleted")


async def test_follower_of_another_epoch_gets_the_gap_first(store: LinkedStore) -> None:
    old = (await store.link.create_topic("t", Kind.LOG, TopicConfig())).epoch
    await store.door.delete_topic("t")
    new = (await store.link.create_topic("t", Kind.LOG, TopicConfig())).epoch
    await append(store.door, "t", rows("a"))
    async with store.link.follow() as follow:
        await follow.grant(CREDIT)
        await follow.add(1, "t", epoch=old, after_seq=9)
        _, gap, item = await take(aiter(follow), 3)
        assert isinstance(gap, FollowItem)
        assert gap.item == Gap(0, 0, GapReason.RECREATED, old_epoch=old, new_epoch=new)
        assert gap.next_after_seq == 0
        assert isinstance(item, FollowItem)
        assert item.next_after_seq == 1


async def test_removed_topic_sends_no_more_and_a_topic_added_again_starts_over(store: LinkedStore) -> None:
    for name in ("a", "b"):
        await store.link.create_topic(name, Kind.LOG, TopicConfig())
    async with store.link.follow() as follow:
        await follow.grant(CREDIT)
        await follow.add(1, "a", after_seq=0)
        await follow.add(2, "b", after_seq=0)
        events = aiter(follow)
        await take(events, 4)
        await follow.remove(1)
        await follow.add(3, "b", after_seq=0)
        await take(events, 2)
        await append(store.door, "a", rows("a"))
        await append(store.door, "b", rows("b"))
        received = await take(events, 2)
        assert sorted(event.follow_id for event in received) == [2, 3]
        await follow.add(2, "b", after_seq=0)
        started, item, level = await take(events, 3)
        assert (started.follow_id, item.follow_id, level.follow_id) == (2, 2, 2)
        assert isinstance(item, FollowItem)
        assert item.next_after_seq == 1
