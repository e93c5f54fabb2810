"""Frames mark the ends of appends: live, from the log, behind filters, from sealed segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.store_link.protocol import FollowItem, FollowStarted
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail
from eddyline.v1 import delivery_pb2 as pb
from tests.support.delivery.role import ServedDelivery, Watch, at, earliest, served_delivery, snapshot, tail
from tests.support.store.simulated import append, kv_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIZES = (1, 40, 3, 25, 1)
"""Records of one append each, of 8 KiB: some are several frames, some part of one."""
TAGGED = 5
"""The first records of each append, up to this number, have the tag of the filters."""


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        await kv_topic(cluster.store)
        yield cluster


async def append_all(cluster: ServedDelivery) -> list[int]:
    """Make appends of several sizes; return the last seq of each."""
    ends, seq = [], 0
    for number, size in enumerate(SIZES):
        records = [
            Record(op=Op.PUT, key=b"%d-%d" % (number, row), data=bytes(8 << 10), tag="t" if row < TAGGED else None)
            for row in range(size)
        ]
        await append(cluster.store, "kv", Batch.from_rows(records))
        seq += size
        ends.append(seq)
    return ends


def appends_of(frames: list[pb.WatchTopicsResponse]) -> list[list[int]]:
    """Return the seqs as applied by a reader that holds records back until `batch_end`."""
    applied, held = [], list[int]()
    for frame in frames:
        held += [record.seq for record in frame.rows.records]
        if frame.batch_end and held:
            applied.append(held)
            held = []
    assert held == [], "a reader that is level holds nothing back"
    return applied


def is_whole(applied: list[list[int]], ends: list[int]) -> bool:
    """Return True if each portion ends at the end of an append."""
    return all(portion[-1] in ends for portion in applied)


async def until_seq(watch: Watch, seq: int) -> None:
    """Return frames up to one whose cursor is at `seq`."""
    while True:
        frame = await watch.next()
        if frame.HasField("cursor") and frame.cursor.seq >= seq:
            return


@pytest.mark.parametrize("start", ["earliest", "tail"])
async def test_records_held_back_until_the_mark_are_whole_appends(cluster: ServedDelivery, start: str) -> None:
    if start == "tail":
        async with cluster.watch(tail("kv")) as watch:
            await watch.kind("caught_up")
            ends = await append_all(cluster)
            await until_seq(watch, ends[-1])
    else:
        ends = await append_all(cluster)
        async with cluster.watch(earliest("kv")) as watch:
            await watch.until_kind("caught_up")
    applied = appends_of(watch.frames)
    assert is_whole(applied, ends)
    assert [seq for portion in applied for seq in portion] == list(range(1, ends[-1] + 1))
    assert sum(1 for frame in watch.frames if frame.HasField("rows") and not frame.batch_end) >= 1


async def test_a_cursor_within_an_append_has_its_rest_up_to_the_mark(cluster: ServedDelivery) -> None:
    ends = await append_all(cluster)
    async with cluster.watch(at("kv", 10)) as watch:
        await watch.until_kind("caught_up")
    applied = appends_of(watch.frames)
    assert is_whole(applied, ends)
    assert applied[0][0] == 11


@pytest.mark.parametrize("start", ["earliest", "tail"])
async def test_a_hidden_end_of_an_append_is_reported_at_once(cluster: ServedDelivery, start: str) -> None:
    if start == "tail":
        wanted = tail("kv")
        wanted.tags.append("t")
        async with cluster.watch(wanted) as watch:
            await watch.kind("caught_up")
            ends = await append_all(cluster)
            while sum(len(frame.rows.records) for frame in watch.frames) < 1 + TAGGED + 3 + TAGGED + 1:
                await watch.next()
    else:
        ends = await append_all(cluster)
        wanted = earliest("kv")
        wanted.tags.append("t")
        async with cluster.watch(wanted) as watch:
            await watch.until_kind("caught_up")
    applied = appends_of(watch.frames)
    firsts = [end - size for end, size in zip(ends, SIZES, strict=True)]
    tagged = [first + row for first, size in zip(firsts, SIZES, strict=True) for row in range(1, min(size, TAGGED) + 1)]
    assert [seq for portion in applied for seq in portion] == tagged
    if start == "tail":
        assert any(frame.HasField("progress") and frame.batch_end for frame in watch.frames)


async def test_a_snapshot_is_complete_only_at_its_end(cluster: ServedDelivery) -> None:
    await append_all(cluster)
    async with cluster.watch(snapshot("kv")) as watch:
        await watch.until_kind("caught_up")
    marked = [frame.WhichOneof("frame") for frame in watch.frames if frame.batch_end]
    assert marked == ["snapshot_end"]


def test_an_append_of_several_items_is_marked_only_at_its_end() -> None:
    held = TopicTail("log", 1, Ring("log", RingBudget(1 << 20), 1 << 20))
    held.start(FollowStarted(1, TopicInfo("log", 7, Kind.LOG, TopicConfig(), 0, 1, "", 0), 0))
    first, rest = Batch.from_rows([Record(1, 5, data=b"a")]), Batch.from_rows([Record(2, 5, data=b"b")])
    held.push_item(FollowItem(1, first, next_after_seq=1, head_seq=9))
    held.push_item(FollowItem(1, rest, next_after_seq=2, head_seq=9, batch_end=True))
    marks = [frame.batch_end for frame in (held.ring.frame_after(0), held.ring.frame_after(1)) if frame is not None]
    assert marks == [False, True]


def test_rows_with_two_commit_times_are_two_appends() -> None:
    batch = Batch.from_rows([Record(1, 5, data=b"a"), Record(2, 5, data=b"b"), Record(3, 6, data=b"c")])
    assert [batch.ends_append(index) for index in (1, 2)] == [False, True]
    assert not batch.slice(0, 2).ends_append(1)
