"""A local fold follows its topic, through gaps, deletions, rolled back stores and cancels, and is read without any."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import Client
from eddyline.client.local_fold.file import COMPACT_BYTES_MIN, NEW_SUFFIX, new_path
from eddyline.client.local_fold.follow import FoldStep, FollowOptions
from eddyline.client.local_fold.local_fold import LocalFold, open_fold, read_fold
from eddyline.client.transport.topology import Topology
from eddyline.core.errors import (
    CursorAhead,
    DataCorrupt,
    InvalidArgument,
    MemoryFull,
    NotKv,
    NotReady,
    TopicNotFound,
)
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.core.runtime.clock import SystemClock
from eddyline.core.runtime.fs import Locked, RealFs
from eddyline.v1 import delivery_pb2, types_pb2
from tests.support.clients.clients import NoJitter, client_at
from tests.support.delivery.scripted_roles import (
    ScriptedDelivery,
    WatchScript,
    caught_up_frame,
    cursor,
    deleted_frame,
    scripted_server,
    snapshot_begin_frame,
    snapshot_end_frame,
)
from tests.support.manual_clock import ManualClock, pass_time_until
from tests.support.sim.faulty_fs import FaultyFs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from eddyline.core.runtime.clock import Clock

Frame = delivery_pb2.WatchTopicsResponse
TOPIC = "t"


def put(seq: int, key: str, data: str) -> types_pb2.Record:
    return types_pb2.Record(
        seq=seq, ts_ms=seq, op=types_pb2.OP_PUT, key=key.encode(), data=data.encode(), version=seq.to_bytes(8, "big")
    )


def gone(seq: int, key: str, op: types_pb2.Op.ValueType = types_pb2.OP_DELETE) -> types_pb2.Record:
    return types_pb2.Record(seq=seq, op=op, key=key.encode())


def rows(*records: types_pb2.Record, at: int = 0, epoch: int = 7) -> Frame:
    batch = types_pb2.RecordBatch(records=records)
    return Frame(topic=TOPIC, cursor=cursor(TOPIC, at or records[-1].seq, epoch), rows=batch)


def snapshot(seq: int, *records: types_pb2.Record, epoch: int = 7) -> list[Frame]:
    end = delivery_pb2.SnapshotEnd(fold_seq=seq, count=len(records))
    frames = [snapshot_begin_frame(TOPIC, seq)]
    frames += [rows(record, at=seq, epoch=epoch) for record in records]
    frames.append(Frame(topic=TOPIC, cursor=cursor(TOPIC, seq, epoch), snapshot_end=end))
    return frames


def gap(first: int, last: int) -> Frame:
    told = types_pb2.Gap(first_seq=first, last_seq=last, reason=types_pb2.GAP_REASON_CAP)
    return Frame(topic=TOPIC, cursor=cursor(TOPIC, last), gap=told)


@dataclass(slots=True)
class Following:
    """A fold, its delivery, and its reported steps."""

    fold: LocalFold
    client: Client
    delivery: ScriptedDelivery
    clock: Clock
    options: FollowOptions = field(default_factory=FollowOptions)
    steps: list[FoldStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.options = FollowOptions(self.options.refresh_s, on_step=self.steps.append)

    async def run(self) -> None:
        await self.fold.follow(self.client, self.options, random_source=NoJitter(1))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Follow until something holds."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self.run())
            while not condition():
                if following.done():
                    return
                await asyncio.sleep(0)
            following.cancel()

    def values(self) -> dict[bytes, bytes | None]:
        return {record.key or b"": record.data for record in self.fold.range()}


@asynccontextmanager
async def following(
    path: Path,
    *scripts: WatchScript,
    clock: Clock | None = None,
    refresh_s: float = 0.0,
    memory_bytes_max: int = 1 << 20,
    fs: FaultyFs | None = None,
) -> AsyncIterator[Following]:
    delivery = ScriptedDelivery(list(scripts))
    clock = clock or SystemClock()
    async with (
        scripted_server(delivery=delivery) as address,
        open_fold(path, TOPIC, clock=clock, memory_bytes_max=memory_bytes_max, fs=fs) as fold,
        client_at(Topology("test", (address,), (), (address,)), clock=clock) as client,
    ):
        yield Following(fold, client, delivery, clock, FollowOptions(refresh_s))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.fold"


def damage(path: Path) -> None:
    """Flip a bit in what was on the disk."""
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)


def list_new(path: Path) -> list[str]:
    """Files that were begun and are still there."""
    return [found.name for found in path.parent.iterdir() if found.name.endswith(NEW_SUFFIX)]


FIRST = [*snapshot(4, put(2, "a", "1"), put(4, "b", "2")), caught_up_frame()]


async def test_snapshot_and_changes_are_there_online_and_without_anybody(path: Path) -> None:
    frames = [*FIRST, rows(put(5, "c", "3"), put(6, "a", "4")), rows(gone(7, "b"), put(8, "d", "5"))]
    async with following(path, WatchScript(frames)) as fold:
        await fold.until(lambda: fold.fold.state().seq == 8)
        live = fold.values()
        state = fold.fold.state()
    assert live == {b"a": b"4", b"c": b"3", b"d": b"5"}
    assert fold.steps == [FoldStep.SNAPSHOT, FoldStep.LEVEL]
    read = read_fold(path)
    assert {record.key: record.data for record in read.range()} == live
    assert read.get(b"a") == Record(6, 6, 0, Op.PUT, b"a", b"4", version=(6).to_bytes(8, "big"))
    assert read.get(b"b") is None
    assert (read.state().topic, read.state().epoch, read.state().seq) == (TOPIC, 7, 8)
    assert read.state().entry_count == state.entry_count == 3
    assert read.state().as_of_ms > 0
    assert not read.state().level
    with pytest.raises(InvalidArgument):
        await read.follow(fold.client)


async def test_it_goes_on_at_its_place(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    async with following(path, WatchScript([rows(put(5, "c", "3"))])) as fold:
        assert fold.values() == {b"a": b"1", b"b": b"2"}
        await fold.until(lambda: fold.fold.state().seq == 5)
        assert fold.values() == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert fold.delivery.requests[0].topics[0].cursor == cursor(TOPIC, 4)


async def test_range_is_in_byte_order_by_prefix_behind_a_key(path: Path) -> None:
    keys = [b"b", b"a", b"ab", b"a\xff", b"aa", b"", b"c"]
    records = [types_pb2.Record(seq=n, op=types_pb2.OP_PUT, key=key, data=b"") for n, key in enumerate(keys, 1)]
    changes = [rows(gone(8, "ab"), put(9, "ac", "")), rows(put(10, "ab", ""))]
    async with following(path, WatchScript(snapshot(7, *records)), WatchScript(changes)) as fold:
        await fold.until(lambda: fold.fold.state().seq == 7)
        before = fold.fold.range()
        await fold.until(lambda: fold.fold.state().seq == 10)
        assert [record.key for record in before] == sorted(keys), "a range is of its moment"

        def keys_of(**asked: bytes | int) -> list[bytes | None]:
            return [record.key for record in fold.fold.range(**asked)]  # type: ignore[arg-type]

        assert keys_of() == sorted([*keys, b"ac"])
        assert keys_of(key_prefix=b"a") == [b"a", b"aa", b"ab", b"ac", b"a\xff"]
        assert keys_of(key_prefix=b"a", after_key=b"aa", limit=2) == [b"ab", b"ac"]
        assert keys_of(after_key=b"a\xff") == [b"b", b"c"]
        assert keys_of(key_prefix=b"x") == []


async def test_everything_of_a_record_is_kept(path: Path) -> None:
    meta = [types_pb2.MetaEntry(name="m", value=b"\x00")]
    rich = types_pb2.Record(
        seq=3, ts_ms=5, source_ts_ns=6, op=types_pb2.OP_PUT, key=b"r", tag="t", node="n", meta=meta, version=b"\x09"
    )
    async with following(path, WatchScript(snapshot(3, rich))) as fold:
        await fold.until(lambda: fold.fold.state().seq == 3)
    assert read_fold(path).get(b"r") == Record(
        3, 5, 6, Op.PUT, b"r", None, "t", "n", (MetaEntry("m", b"\x00"),), b"\x09"
    )


async def test_purges_remove_and_what_folds_nothing_does_nothing(path: Path) -> None:
    odd = [types_pb2.Record(seq=6, op=types_pb2.OP_APPEND, key=b"b"), types_pb2.Record(seq=7, op=types_pb2.OP_APPEND)]
    async with following(path, WatchScript([*FIRST, rows(gone(5, "a", types_pb2.OP_PURGE), *odd)])) as fold:
        await fold.until(lambda: fold.fold.state().seq == 7)
        assert fold.values() == {b"b": b"2"}


async def test_a_gap_is_healed_by_a_snapshot_that_replaces_all(path: Path) -> None:
    scripts = [
        WatchScript([*FIRST, gap(5, 9)]),
        WatchScript([*snapshot(9, put(9, "b", "new")), caught_up_frame(), rows(put(10, "c", "3"))]),
    ]
    async with following(path, *scripts) as fold:
        await fold.until(lambda: fold.fold.state().seq == 10)
        assert fold.values() == {b"b": b"new", b"c": b"3"}
    assert fold.delivery.requests[1].topics[0].point == delivery_pb2.START_POINT_SNAPSHOT
    assert FoldStep.GAP in fold.steps
    assert {record.key for record in read_fold(path).range()} == {b"b", b"c"}


async def test_the_old_fold_is_served_until_the_snapshot_is_complete(path: Path) -> None:
    incomplete = snapshot(9, put(9, "b", "new"))[:-1]
    scripts = [WatchScript([*FIRST, gap(5, 9)]), WatchScript(incomplete), WatchScript([gap(5, 9)])]
    async with following(path, *scripts) as fold:
        await fold.until(lambda: len(fold.delivery.requests) == 2)
        assert fold.values() == {b"a": b"1", b"b": b"2"}
    assert not list_new(path)
    # The process ends in the middle of the snapshot: the gap comes again, and with it another snapshot.
    assert read_fold(path).state().seq == 4
    async with following(path, WatchScript([gap(5, 9)]), WatchScript(snapshot(9, put(9, "b", "new")))) as fold:
        await fold.until(lambda: fold.fold.state().seq == 9)
        assert fold.values() == {b"b": b"new"}
    assert fold.delivery.requests[0].topics[0].cursor == cursor(TOPIC, 4)


async def test_a_snapshot_that_is_cut_off_begins_again(path: Path) -> None:
    scripts = [
        WatchScript(snapshot(4, put(2, "a", "1"), put(4, "b", "2"))[:-1], NotReady("stopping")),
        WatchScript(snapshot(5, put(5, "c", "3"))),
    ]
    async with following(path, *scripts) as fold:
        await fold.until(lambda: fold.fold.state().seq == 5)
        assert fold.values() == {b"c": b"3"}


async def test_a_snapshot_with_less_than_it_says_is_refused(path: Path) -> None:
    frames = [snapshot_begin_frame(TOPIC, 4), rows(put(2, "a", "1"), at=4), snapshot_end_frame(TOPIC, 4, 2)]
    async with following(path, WatchScript(frames)) as fold:
        with pytest.raises(DataCorrupt, match="2 entries contained 1"):
            await fold.run()
    with pytest.raises(FileNotFoundError):
        read_fold(path)


@pytest.mark.parametrize(
    "frames",
    [[rows(put(1, "a", "1"))], [*snapshot(1)[:1], snapshot_end_frame(TOPIC, 1, 0), snapshot_end_frame(TOPIC, 1, 0)]],
)
async def test_frames_out_of_their_order_never_reach_the_file(path: Path, frames: list[Frame]) -> None:
    async with following(path, WatchScript(frames)) as fold:
        with pytest.raises(DataCorrupt, match="an event of its"):
            await fold.run()


async def test_a_deleted_topic_leaves_nothing_and_is_waited_for(path: Path) -> None:
    scripts = [
        WatchScript([*FIRST, deleted_frame(TOPIC)]),
        WatchScript([], TopicNotFound("no such topic", topic=TOPIC)),
        WatchScript([], TopicNotFound("no such topic", topic=TOPIC)),
        WatchScript([*snapshot(1, put(1, "z", "9"), epoch=8), caught_up_frame()]),
    ]
    async with following(path, *scripts) as fold:
        await fold.until(lambda: fold.fold.state().deleted)
        assert fold.values() == {}
    assert read_fold(path).state().deleted
    assert list(read_fold(path).range()) == []
    async with following(path, *scripts[1:]) as fold:
        await fold.until(lambda: fold.fold.state().level)
        assert fold.values() == {b"z": b"9"}
        assert (fold.fold.state().epoch, fold.fold.state().deleted) == (8, False)


async def test_a_topic_deleted_while_away_is_noticed(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    async with following(path, WatchScript([], TopicNotFound("no such topic", topic=TOPIC))) as fold:
        await fold.until(lambda: fold.fold.state().deleted)
        assert fold.values() == {}


async def test_a_topic_re_created_during_an_outage_replaces_all(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    recreated = Frame(
        topic=TOPIC,
        cursor=cursor(TOPIC, 0, 8),
        gap=types_pb2.Gap(reason=types_pb2.GAP_REASON_RECREATED, old_epoch=7, new_epoch=8),
    )
    scripts = [
        WatchScript([recreated, rows(put(1, "z", "9"), epoch=8)]),
        WatchScript(snapshot(1, put(1, "z", "9"), epoch=8)),
    ]
    async with following(path, *scripts) as fold:
        await fold.until(lambda: fold.fold.state().epoch == 8)
        assert fold.values() == {b"z": b"9"}


async def test_a_store_that_was_rolled_back_replaces_all(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    async with following(
        path, WatchScript([], CursorAhead("ahead", headSeq=2)), WatchScript(snapshot(2, put(2, "a", "1")))
    ) as fold:
        await fold.until(lambda: fold.fold.state().seq == 2)
        assert fold.values() == {b"a": b"1"}
    assert fold.steps[0] is FoldStep.CURSOR_AHEAD


@pytest.mark.parametrize("error", [TopicNotFound("no such topic", topic=TOPIC), NotKv("a log")])
async def test_a_topic_that_has_no_fold_is_an_error(path: Path, error: TopicNotFound | NotKv) -> None:
    async with following(path, WatchScript([], error)) as fold:
        with pytest.raises(type(error)):
            await fold.run()


async def test_it_is_read_again_after_its_refresh_time(path: Path) -> None:
    clock = ManualClock()
    scripts = [WatchScript(FIRST), *[WatchScript([*snapshot(4, put(4, "b", "2")), caught_up_frame()])] * 20]
    async with following(path, *scripts, clock=clock, refresh_s=10.0) as fold:
        async with asyncio.TaskGroup() as group:
            done = group.create_task(
                fold.until(lambda: FoldStep.REFRESH in fold.steps and fold.fold.state().entry_count == 1)
            )
            await pass_time_until(done, clock, 1.0)
        assert fold.values() == {b"b": b"2"}, "a delete by key is silent in the log"


async def test_more_than_its_memory_is_refused_and_nothing_of_it_taken(path: Path) -> None:
    frames = [*FIRST, rows(put(5, "c", "3"), put(6, "large", "x" * 9_000)), rows(put(7, "d", "4"))]
    async with following(path, WatchScript(frames), memory_bytes_max=5_000) as fold:
        with pytest.raises(MemoryFull, match="key_prefixes"):
            await fold.run()
        assert fold.values() == {b"a": b"1", b"b": b"2"}
    assert read_fold(path).state().seq == 4
    with pytest.raises(MemoryFull):
        read_fold(path, memory_bytes_max=100)
    async with following(path, WatchScript(snapshot(4, put(4, "large", "x" * 9_000))), memory_bytes_max=5_000) as fold:
        pass


@pytest.mark.parametrize("operation", ["pwritev", "fsync", "rename", "fsync_dir"])
async def test_a_disk_that_fails_ends_it_and_leaves_what_it_had(path: Path, operation: str) -> None:
    scripts = [WatchScript([*FIRST, gap(5, 9)]), WatchScript(snapshot(9, put(9, "b", "new"))), WatchScript([])]
    fs = FaultyFs(RealFs())
    async with following(path, *scripts, fs=fs) as fold:
        await fold.until(lambda: fold.fold.state().level)
        fs.next_fault(operation, error=errno.EIO, lasting=True)
        with pytest.raises(OSError):
            await fold.run()
        assert fold.values() == {b"a": b"1", b"b": b"2"}
    values = {record.key: record.data for record in read_fold(path).range()}
    assert values == ({b"b": b"new"} if operation == "fsync_dir" else {b"a": b"1", b"b": b"2"})


async def test_what_a_crash_left_unfinished_is_removed(path: Path) -> None:
    new_path(path).write_bytes(b"half")
    async with open_fold(path, TOPIC) as fold:
        assert fold.state().epoch == 0
    assert not list_new(path)


async def test_a_snapshot_larger_than_its_memory_is_refused(path: Path) -> None:
    frames = snapshot(4, put(1, "a", "x" * 3_000), put(2, "b", "x" * 3_000))
    async with following(path, WatchScript(frames), memory_bytes_max=5_000) as fold:
        with pytest.raises(MemoryFull):
            await fold.run()


async def test_the_file_stays_bounded(path: Path) -> None:
    size = 10_000
    rounds = 3 * COMPACT_BYTES_MIN // size
    changes = [rows(put(seq, "a", "x" * size)) for seq in range(5, 5 + rounds)]
    largest = 0
    async with following(path, WatchScript([*FIRST, *changes])) as fold:

        def done() -> bool:
            nonlocal largest
            largest = max(largest, path.stat().st_size if path.exists() else 0)
            return fold.fold.state().seq == 4 + rounds

        await fold.until(done)
    assert COMPACT_BYTES_MIN / 2 < largest < COMPACT_BYTES_MIN + 5 * size
    assert read_fold(path).state().seq == 4 + rounds
    assert not list_new(path)


async def test_cancelled_anywhere_file_and_memory_agree(path: Path) -> None:
    changes = [rows(put(seq, f"k{seq % 7}", str(seq))) for seq in range(5, 60)]
    for turns in range(0, 400, 7):
        async with following(path, WatchScript([*FIRST, *changes]), *[WatchScript()] * 3) as fold:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(fold.run())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
            state, live = fold.fold.state(), fold.values()
        if not state.epoch:
            continue
        read = read_fold(path)
        assert (read.state().seq, {r.key or b"": r.data for r in read.range()}) == (state.seq, live)
        RealFs().unlink(path)


async def test_only_one_has_it_open_and_anybody_reads_it(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
        with pytest.raises(Locked):
            async with open_fold(path, TOPIC):
                pass
        assert read_fold(path).state().entry_count == 2
    async with open_fold(path, TOPIC) as again:
        assert again.state().entry_count == 2


async def test_a_link_is_the_file_that_it_leads_to_and_a_second_name_is_refused(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.fold"
    link.symlink_to(path)
    async with following(link, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
        with pytest.raises(Locked):
            async with open_fold(path, TOPIC):
                pass
    assert link.is_symlink()
    assert read_fold(path).state().entry_count == 2
    (tmp_path / "second.fold").hardlink_to(path)
    with pytest.raises(InvalidArgument, match="a second name"):
        async with open_fold(path, TOPIC):
            pass


async def test_a_file_of_something_else_is_refused(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    with pytest.raises(InvalidArgument, match="topic 't', not to topic 'u'"):
        async with open_fold(path, "u"):
            pass
    with pytest.raises(InvalidArgument, match="with keys from b'a'"):
        async with open_fold(path, TOPIC, key_prefixes=[b"a"]):
            pass


async def test_a_damaged_file_is_refused_or_rebuilt(path: Path) -> None:
    async with following(path, WatchScript(FIRST)) as fold:
        await fold.until(lambda: fold.fold.state().level)
    damage(path)
    with pytest.raises(DataCorrupt) as refused:
        async with open_fold(path, TOPIC):
            pass
    assert refused.value.metadata["file"] == str(path)
    with pytest.raises(DataCorrupt):
        read_fold(path)
    async with open_fold(path, TOPIC, rebuild=True) as rebuilt:
        assert rebuilt.state().entry_count == 0
    with pytest.raises(DataCorrupt):
        read_fold(path)  # it is left until there is something to take its place


async def test_how_stale_it_is(path: Path) -> None:
    clock = ManualClock()
    async with following(path, WatchScript(FIRST), clock=clock) as fold:
        await fold.until(lambda: fold.fold.state().level)
        assert fold.fold.state().as_of_ms == clock.now_ms()
        clock.advance(60)
        assert fold.fold.state().as_of_ms == clock.now_ms() - 60_000
        assert not fold.fold.state().level
    assert read_fold(path).state().as_of_ms == clock.now_ms() - 60_000
