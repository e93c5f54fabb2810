"""Splits: cutting, paging, batches passed on, refused requests, and changes of the log during a read."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from eddyline.core.errors import (
    CursorAhead,
    DataCorrupt,
    EddylineError,
    EpochMismatch,
    InvalidArgument,
    NotKv,
    TopicNotFound,
)
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.arrow import arrow_schema
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.store.splits.cutter import SplitCutter
from eddyline.store.splits.model import (
    ALL,
    ArrowMessage,
    PlanRequest,
    Split,
    SplitCounts,
    SplitFilter,
    SplitKind,
    SplitRead,
)
from eddyline.store.storage.segment.reader import read_footer, read_message
from eddyline.store.storage.segment.writer import BYTES_MAX
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, placed_store, rows
from tests.support.store.split_reads import planned, read_split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.splits.model import SplitFrame

K = Match(MatchField.KEY, MatchKind.EQ, b"k")


async def filled(store: PlacedStore, count: int = 10, config: TopicConfig | None = None) -> None:
    """Make a LOG topic with `count` appends of three records."""
    await store.link.create_topic("t", Kind.LOG, config or TopicConfig())
    for number in range(count):
        await append(store.link, "t", rows(*(f"{number}-{row}" for row in range(3))))


async def cut(store: PlacedStore, **request: object) -> list[tuple[int, int, int]]:
    """Plan splits. Returns first, last and record count of each."""
    _, splits = await planned(store.link, "t", PlanRequest(**request))  # type: ignore[arg-type]
    return [split[1:4] for split in splits]


async def seqs(store: PlacedStore, split: Split, split_filter: SplitFilter = ALL) -> list[int | Gap]:
    """Read a split: seqs of records, and gaps."""
    result = await read_split(store.link, "t", split, epoch=1, split_filter=split_filter)
    return [item.seq if isinstance(item, Record) else item for item in result.items]


async def frames_of(store: PlacedStore, split: Split, columns: Sequence[str] = ()) -> list[SplitFrame]:
    """Read a split's frames."""
    return [frame async for frame in store.link.read_split("t", SplitRead(split, columns=tuple(columns)), epoch=1)]


def damage(store: PlacedStore, *, number: int) -> None:
    """Damage the first record batch of segment `number` of the topic."""
    path = list(store.topic("t").segments)[number].path
    entry = read_footer(store.fs, path).batches[0]
    store.fs.content(path)[entry.offset + entry.length - 1] ^= 1


async def merge_all(store: PlacedStore) -> None:
    """Merge all segments of the topic into one."""
    topic = store.topic("t")
    await store.link._parts.maintenance._planner._rewriter.rewrite(topic, list(topic.segments), stage="merge")


# --- plans ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()), max_size=30),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_parts_are_joined_up_to_the_bounds(
    parts: list[tuple[int, int, bool]], records_max: int, bytes_max: int, limit: int
) -> None:
    """Page by page: no part twice, none lost but skipped ones, and no two splits that would fit into one."""
    splits: list[Split] = []
    at, position, ends = 0, 0, []
    for rows_, _, _ in parts:
        at += rows_
        ends.append(at)
    first = 1
    while True:
        cutter = SplitCutter(
            Split(SplitKind.LOG, first, first), records_max=records_max, bytes_max=bytes_max, limit=limit
        )
        while position < len(parts):
            rows_, size, skipped = parts[position]
            if skipped:
                cutter.skip(ends[position])
            elif not cutter.add(ends[position], rows_, size):
                break
            position += 1
        done = position == len(parts) and cutter.finish(at, covers=False)
        splits += cutter.splits
        assert len(cutter.splits) <= limit
        if done:
            break
        assert len(cutter.splits) == limit
        first = cutter.last_row + 1
    kept = [
        (end - rows_ + 1, end, rows_, size)
        for end, (rows_, size, skipped) in zip(ends, parts, strict=True)
        if not skipped
    ]
    for split in splits:
        inside = [part for part in kept if split.first <= part[0] and part[1] <= split.last]
        assert split.record_count == sum(part[2] for part in inside)
        assert split.size_bytes == sum(part[3] for part in inside)
        assert len(inside) == 1 or (split.record_count <= records_max and split.size_bytes <= bytes_max)
        kept = kept[len(inside) :]
    assert not kept


async def test_splits_end_where_stored_batches_end() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=9) as store:
        await filled(store)
        assert await cut(store, max_records=4) == [(3 * n + 1, 3 * n + 3, 3) for n in range(10)]
        await store.seal()
        await append(store.link, "t", rows("x"))
        assert await cut(store, max_records=9) == [(1, 9, 9), (10, 18, 9), (19, 27, 9), (28, 31, 4)]
        assert await cut(store, max_records=18) == [(1, 18, 18), (19, 31, 13)]
        assert await cut(store) == [(1, 31, 31)]
        assert len(await cut(store, max_bytes=1)) == 5


async def test_a_range_cuts_the_batches_at_its_ends() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=9) as store:
        await filled(store)
        await store.seal()
        assert await cut(store, after_seq=4, end_seq=12, max_records=9) == [(5, 11, 7)]
        assert await cut(store, after_seq=4, end_seq=12, max_records=5) == [(5, 9, 5), (10, 11, 2)]
        assert await cut(store, after_seq=30) == []
        assert await cut(store, after_seq=9, end_seq=5) == []


async def test_later_pages_have_the_head_of_the_first() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        plan = await store.link.plan_splits("t", PlanRequest(max_records=3, limit=2))
        assert ([split.last for split in plan.splits], plan.head_seq) == ([3, 6], 30)
        assert plan.mark is not None
        await append(store.link, "t", rows("late"))
        rest = await store.link.plan_splits("t", PlanRequest(max_records=3, limit=20, mark=plan.mark))
        assert ([split.last for split in rest.splits], rest.mark) == ([9, 12, 15, 18, 21, 24, 27, 30], None)
        assert (rest.first_seq, rest.end_seq, rest.head_seq) == (1, 31, 30)


async def test_a_page_of_a_recreated_topic_is_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        plan = await store.link.plan_splits("t", PlanRequest(max_records=3, limit=1))
        await store.link.delete_topic("t")
        await filled(store)
        with pytest.raises(EpochMismatch):
            await store.link.plan_splits("t", PlanRequest(max_records=3, limit=1, mark=plan.mark))


async def test_segments_ruled_out_by_the_filter_are_in_no_split_and_never_read() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
        for site in ("a", "b", "a"):
            records = [Record(key=f"{site}{n}".encode(), tag=site, source_ts_ns=ord(site)) for n in range(3)]
            await append(store.link, "t", Batch.from_rows(records))
            await store.seal()
        by_key = SplitFilter(RecordFilter(key_prefixes=(b"b",)))
        by_tag, by_time = SplitFilter(RecordFilter(tags=("b",))), SplitFilter(source_from_ns=ord("b"))
        for split_filter in (by_key, by_tag, by_time):
            assert await cut(store, split_filter=split_filter) == [(4, 6, 3)]
            whole = Split(SplitKind.LOG, 1, 9)
            assert await seqs(store, whole, split_filter) == [4, 5, 6]
        assert await cut(store, split_filter=SplitFilter(RecordFilter(key_prefixes=(b"a",)))) == [(1, 9, 6)]
        damage(store, number=0)
        assert await seqs(store, Split(SplitKind.LOG, 1, 9), by_time) == [4, 5, 6]


async def test_evicted_records_are_a_gap_in_the_first_split() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store, config=TopicConfig(cap_records=4))
        plan, splits = await planned(store.link, "t", PlanRequest(after_seq=2, max_records=2))
        assert (plan.first_seq, splits[0].first, splits[-1].last) == (3, 3, 30)
        assert await seqs(store, splits[0]) == [Gap(3, 26, GapReason.CAP), 27]
        plan, splits = await planned(store.link, "t", PlanRequest())
        assert (plan.first_seq, await seqs(store, splits[0])) == (27, [27, 28, 29, 30])


async def test_a_range_without_records_left_is_one_gap() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store, config=TopicConfig(ttl_ms=1_000))
        store.clock.advance(2)
        for split_filter in (ALL, SplitFilter(RecordFilter(key_prefixes=(b"a",)))):
            _, splits = await planned(store.link, "t", PlanRequest(after_seq=5, split_filter=split_filter))
            assert [split[1:4] for split in splits] == [(6, 30, 0)]
            assert await seqs(store, splits[0]) == [Gap(6, 30, GapReason.TTL)]
        assert await cut(store) == []


# --- reads ----------------------------------------------------------------------------------------------------------


async def test_whole_batches_are_passed_on_as_stored() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=9) as store:
        await filled(store)
        await store.seal()
        stored = []
        for segment in store.topic("t").segments:
            footer = read_footer(store.fs, segment.path)
            file = store.fs.open(segment.path)
            stored += [
                ArrowMessage(read_message(file, segment.path, each), each.checksum, each.rows)
                for each in footer.batches
            ]
        _, (split,) = await planned(store.link, "t", PlanRequest())
        assert (await frames_of(store, split))[1:-1] == stored
        part = await frames_of(store, Split(SplitKind.LOG, 2, 30))
        assert (part[2:-1], part[-1]) == (stored[1:], SplitCounts(29, 0, 0, 0))
        assert part[1].rows == 8  # type: ignore[union-attr]


async def test_deleted_records_are_hidden_and_counted() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=9) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
        for key in ("k", "l", "k", "m"):
            await append(store.link, "t", Batch.from_rows([Record(key=key.encode())] * 3))
        await store.seal()
        await store.link.delete_records("t", match=K, before_seq=9)
        result = await read_split(store.link, "t", Split(SplitKind.LOG, 1, 12), epoch=1)
        assert [item.seq for item in result.items] == [4, 5, 6, 9, 10, 11, 12]
        assert result.counts == SplitCounts(7, 0, 5, 0)


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_gap_records_come_in_their_places(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
        lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"s", source_first=4, source_last=9)
        records = [Record(key=b"a"), Record(op=Op.GAP, data=encode_gap(lost)), Record(key=b"b")]
        await append(store.link, "t", Batch.from_rows(records), source=True)
        await store.put()
        gap = lost._replace(first_seq=2, last_seq=2, seq=2)
        split = Split(SplitKind.LOG, 1, 3)
        assert await seqs(store, split) == [1, gap, 3]
        assert await seqs(store, split, SplitFilter(RecordFilter(key_prefixes=(b"b",)))) == [gap, 3]
        assert (await frames_of(store, split))[-1] == SplitCounts(2, 1, 0, 0)


@pytest.mark.parametrize("seals", [False, True])
async def test_lost_seqs_count_at_their_place_and_their_gap_comes_at_its_record(seals: bool) -> None:
    async with placed_store(LogPlace.KILLED) as store:
        await filled(store)
        await store.stop(kill=True)
        store.fs.boots += 1
        await store.start()
        await append(store.link, "t", rows("after"))
        if seals:
            await store.seal()
        _, (split,) = await planned(store.link, "t", PlanRequest())
        result = await read_split(store.link, "t", split, epoch=1)
        *before, gap, after = result.items
        assert isinstance(gap, Gap)
        assert isinstance(after, Record)
        assert (len(before), gap.first_seq, gap.reason, after.seq) == (30, 31, GapReason.UNSYNCED, split.last)
        assert result.counts == SplitCounts(31, split.last - 31, 0, 0)
        assert split.record_count == 31
        front, rest = split._replace(last=40), split._replace(first=41)
        assert (await read_split(store.link, "t", front, epoch=1)).counts == SplitCounts(30, 10, 0, 0)
        assert (await read_split(store.link, "t", rest, epoch=1)).items == [gap, after]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_only_the_requested_columns_are_sent_in_schema_order(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        await store.put()
        schema, *batches, _ = await frames_of(store, Split(SplitKind.LOG, 1, 30), ("seq", "data"))
        sent = ipc.read_schema(pa.py_buffer(schema.message))  # type: ignore[union-attr]
        assert sent.names == ["seq", "data"]
        table = pa.Table.from_batches([ipc.read_record_batch(pa.py_buffer(each.message), sent) for each in batches])  # type: ignore[union-attr]
        assert table.column("seq").to_pylist() == list(range(1, 31))
        assert table.column("data").to_pylist()[:4] == [b"0-0", b"0-1", b"0-2", b"1-0"]


async def test_records_in_memory_are_read_too() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store, config=TopicConfig(durability=Durability.EPHEMERAL))
        assert await cut(store, max_records=12) == [(1, 12, 12), (13, 24, 12), (25, 30, 6)]
        assert await seqs(store, Split(SplitKind.LOG, 2, 29)) == list(range(2, 30))


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.EPHEMERAL])
async def test_a_large_append_comes_in_many_messages(durability: Durability) -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig(durability=durability))
        await append(store.link, "t", Batch.from_rows([Record(data=bytes(BYTES_MAX // 4))] * 10))
        _, *messages, counts = await frames_of(store, Split(SplitKind.LOG, 1, 10))
        assert [message.rows for message in messages] == [4, 4, 2]  # type: ignore[union-attr]
        assert counts == SplitCounts(10, 0, 0, 0)


async def test_nodes_are_excluded_only_if_the_topic_has_dedupe_node() -> None:
    split_filter = SplitFilter(RecordFilter(exclude_nodes=("n",)))
    for dedupe_node, expected in ((False, [1, 2]), (True, [2])):
        async with placed_store(LogPlace.FRAMES) as store:
            await store.link.create_topic("t", Kind.LOG, TopicConfig(dedupe_node=dedupe_node))
            await append(store.link, "t", Batch.from_rows([Record(node="n"), Record(node="m")]))
            assert await seqs(store, Split(SplitKind.LOG, 1, 2), split_filter) == expected


async def test_shares_contain_every_keyed_record_once() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
        await append(store.link, "t", Batch.from_rows([Record(key=b"%d" % n) for n in range(20)] + [Record()]))
        shares = [await seqs(store, Split(SplitKind.LOG, 1, 21), SplitFilter(share_count=3, share=n)) for n in range(3)]
        assert all(shares)
        assert sorted(seq for share in shares for seq in share if isinstance(seq, int)) == list(range(1, 21))


# --- while it is read -----------------------------------------------------------------------------------------------


async def test_a_log_may_be_sealed_and_merged_during_a_read() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=6) as store:
        await filled(store)
        await store.seal()
        await append(store.link, "t", rows("x", "y"))
        result: list[int] = []
        async with aclosing(store.link.read_split("t", SplitRead(Split(SplitKind.LOG, 1, 32)), epoch=1)) as frames:
            async for frame in frames:
                if isinstance(frame, ArrowMessage):
                    batch = ipc.read_record_batch(pa.py_buffer(frame.message), arrow_schema())
                    result += batch.column("seq").to_pylist()
                    await store.seal()
                    await merge_all(store)
        assert result == list(range(1, 33))
        assert len(store.topic("t").segments) == 1


async def test_records_evicted_during_a_split_read_are_a_gap() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=6) as store:
        await filled(store, config=TopicConfig(ttl_ms=1_000))
        await store.seal()
        frames = store.link.read_split("t", SplitRead(Split(SplitKind.LOG, 1, 30)), epoch=1)
        async with aclosing(frames):
            await anext(frames)
            first = await anext(frames)
            assert isinstance(first, ArrowMessage)
            store.clock.advance(2)
            await store.link.get_topic("t")
            rest = [frame async for frame in frames]
        assert rest == [Gap(7, 30, GapReason.TTL), SplitCounts(6, 24, 0, 0)]


async def test_a_topic_deleted_during_a_split_read_ends_it() -> None:
    async with placed_store(LogPlace.FRAMES, seal_records=6) as store:
        await filled(store)
        await store.seal()
        frames = store.link.read_split("t", SplitRead(Split(SplitKind.LOG, 1, 30)), epoch=1)
        async with aclosing(frames):
            for _ in range(2):
                await anext(frames)
            await store.link.delete_topic("t")
            with pytest.raises(TopicNotFound):
                _ = [frame async for frame in frames]


async def test_a_damaged_batch_ends_the_stream_and_is_counted() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.seal()
        damage(store, number=0)
        with pytest.raises(DataCorrupt):
            await frames_of(store, Split(SplitKind.LOG, 1, 30))
        assert store.link.status().corrupt_count == 1


async def test_a_damaged_footer_ends_the_plan_and_is_counted() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.seal()
        (segment,) = store.topic("t").segments
        store.link._parts.log.files.forget(segment.path)
        store.fs.content(segment.path)[-20] ^= 1
        with pytest.raises(DataCorrupt):
            await store.link.plan_splits("t", PlanRequest(max_records=9))
        assert store.link.status().corrupt_count == 1


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "error"),
    [
        (Split(SplitKind.LOG, 0, 3), InvalidArgument),
        (Split(SplitKind.LOG, 3, 2), InvalidArgument),
        (Split(SplitKind.LOG, 1, 31), CursorAhead),
        (Split(SplitKind.LOG, 1, 3, base_seq=1), InvalidArgument),
        (Split(SplitKind.HISTORY, 1, 3, as_of_seq=3), NotKv),
        (Split(SplitKind.HISTORY, 1, 3), InvalidArgument),
        (Split(SplitKind.BASE, 0, 3, as_of_seq=3), InvalidArgument),
        (Split(SplitKind.BASE, 0, 3, base_seq=3, base_generation=1, as_of_seq=2), InvalidArgument),
        (Split(SplitKind.BASE, 0, 3, base_seq=3, base_generation=1, as_of_seq=3), NotKv),
    ],
)
async def test_splits_that_no_plan_can_return_are_refused(split: Split, error: type[EddylineError]) -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        with pytest.raises(error):
            await frames_of(store, split)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (PlanRequest(after_seq=31), CursorAhead),
        (PlanRequest(end_seq=32), CursorAhead),
        (PlanRequest(as_of_seq=1), NotKv),
        (PlanRequest(as_of_seq=1, after_seq=1), InvalidArgument),
        (PlanRequest(split_filter=SplitFilter(share=1)), InvalidArgument),
        (PlanRequest(split_filter=SplitFilter(share_count=2, share=2)), InvalidArgument),
        (PlanRequest(split_filter=SplitFilter(share_count=65_537)), InvalidArgument),
    ],
)
async def test_invalid_plans_are_refused(plan: PlanRequest, error: type[EddylineError]) -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        with pytest.raises(error):
            await store.link.plan_splits("t", plan)


async def test_another_epoch_is_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        with pytest.raises(EpochMismatch):
            await store.link.plan_splits("t", PlanRequest(), epoch=2)
        with pytest.raises(EpochMismatch):
            store.link.read_split("t", SplitRead(Split(SplitKind.LOG, 1, 3)), epoch=2)
