"""A watch by callback: the cursor follows what was applied, whatever ends it."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from xxhash import xxh3_64_hexdigest

from eddyline.client.watch.applied import AppliedOptions, WatchBatch, watch_applied
from eddyline.client.watch.cursor_file import CursorFile
from eddyline.client.watch.events import CaughtUp, Lost, Position, Records, SnapshotBegan, SnapshotEnded, TopicGone
from eddyline.client.watch.plan import WatchTopic
from eddyline.core.errors import CursorAhead, DataCorrupt, InvalidArgument, NewerFormat, NotReady
from eddyline.core.runtime.fs import RealFs
from tests.support.clients.clients import watching
from tests.support.delivery.scripted_roles import (
    WatchScript,
    caught_up_frame,
    cursor,
    deleted_frame,
    gap_frame,
    heartbeat_frame,
    progress_frame,
    rows_frame,
    snapshot_begin_frame,
    snapshot_end_frame,
)
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import Crashed, SimFs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GONE = deleted_frame("a")
GATHERING_TURNS = 60_000
"""Of the loop, while what comes may gather: far more than it takes, since gRPC's own threads need a processor too."""


class Applied:
    """An apply that notes its batches, and fails at a given seq."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.batches: list[WatchBatch] = []
        self.seqs: list[int] = []
        self.threads: set[int] = set()
        self.fails_at = fails_at

    def __call__(self, batch: WatchBatch) -> None:
        seqs = [record.seq for record in batch.records()]
        if self.fails_at in seqs:
            raise ValueError(f"no {self.fails_at}")
        self.threads.add(threading.get_ident())
        self.batches.append(batch)
        self.seqs += seqs

    async def on_loop(self, batch: WatchBatch) -> None:
        self(batch)


class Kept:
    """Cursors in memory, each step noted."""

    def __init__(self, **cursors: Position) -> None:
        self.cursors: Mapping[str, Position] = cursors
        self.saves: list[Mapping[str, Position]] = []

    def load(self) -> Mapping[str, Position]:
        return self.cursors

    def save(self, cursors: Mapping[str, Position]) -> None:
        self.cursors = dict(cursors)
        self.saves.append(self.cursors)


@pytest.mark.parametrize("on_loop", [False, True])
async def test_everything_is_applied_in_order_and_the_cursor_follows(on_loop: bool) -> None:
    frames = [rows_frame("a", 1, 2), rows_frame("a", 3), rows_frame("a", 4)]
    applied, kept = Applied(), Kept()
    async with watching(WatchScript(frames[:2], NotReady("x")), WatchScript([frames[2], GONE])) as (client, _):
        apply = applied.on_loop if on_loop else applied
        await watch_applied(client, "a", apply, cursors=kept, options=AppliedOptions(start="earliest"))
    assert applied.seqs == [1, 2, 3, 4]
    assert applied.batches[-1].events[-1] == TopicGone("a", 7)
    assert kept.cursors == {"a": Position(7, 4)}, "a topic that is gone keeps its place"
    begun, *behind = kept.saves
    assert begun == {"a": Position(7, 0)}, "where it begins, before anything came"
    assert behind == [dict(batch.cursors) for batch in applied.batches], "one behind each"
    assert (applied.threads == {threading.get_ident()}) is on_loop
    assert len(applied.threads) == 1


async def test_batches_are_full_where_there_is_enough_and_read_ahead_is_bounded() -> None:
    frames = [rows_frame("a", *range(at, at + 10)) for at in range(1, 2_001, 10)]
    applied, first = Applied(), asyncio.Event()

    async def apply(batch: WatchBatch) -> None:
        if not first.is_set():
            for _ in range(GATHERING_TURNS):
                await asyncio.sleep(0)
            first.set()
        applied(batch)

    async with watching(WatchScript([*frames, GONE])) as (client, _):
        options = AppliedOptions(start="earliest", batch_records=100)
        await watch_applied(client, "a", apply, cursors={}, options=options)
    assert applied.seqs == list(range(1, 2_001))
    sizes = [len(list(batch.records())) for batch in applied.batches]
    assert max(sizes) == 100
    assert sizes[1] == 100, "what had come meanwhile is one batch"


async def test_batches_of_one_record_on_request() -> None:
    frames = [snapshot_begin_frame("a", 9), rows_frame("a", 3, 5, in_snapshot_of=9), snapshot_end_frame("a", 9, 2)]
    applied, kept = Applied(), Kept()
    async with watching(WatchScript([*frames, rows_frame("a", 10, 11, 12), GONE])) as (client, _):
        await watch_applied(client, "a", applied, cursors=kept, options=AppliedOptions(batch_records=1))
    assert [len(batch.events) for batch in applied.batches] == [1] * 8
    assert applied.seqs == [3, 5, 10, 11, 12]
    places = [batch.cursors.get("a") for batch in applied.batches]
    seqs = [place.seq if place is not None else None for place in places]
    assert seqs == [None, None, None, 9, 10, 11, 12, 12]


@pytest.mark.parametrize("on_loop", [False, True])
async def test_an_exception_stops_it_with_the_cursor_where_it_was(on_loop: bool) -> None:
    frames = [rows_frame("a", seq) for seq in range(1, 9)]
    applied, kept = Applied(fails_at=5), Kept()
    apply = applied.on_loop if on_loop else applied
    options = AppliedOptions(start="earliest", batch_records=1)
    async with watching(WatchScript(frames), WatchScript([*frames[4:], GONE])) as (client, delivery):
        with pytest.raises(ValueError, match="no 5"):
            await watch_applied(client, "a", apply, cursors=kept, options=options)
        assert kept.cursors == {"a": Position(7, 4)}
        applied.fails_at = 0
        await watch_applied(client, "a", apply, cursors=kept, options=options)
    assert applied.seqs == list(range(1, 9)), "nothing was skipped"
    assert delivery.requests[1].topics[0].cursor == cursor("a", 4)


async def test_an_error_of_the_watch_comes_after_what_came_before_it_is_applied() -> None:
    applied, kept = Applied(), Kept()
    async with watching(WatchScript([rows_frame("a", 1), rows_frame("a", 2)], CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", applied, cursors=kept, options=AppliedOptions(start="earliest"))
    assert applied.seqs == [1, 2]
    assert kept.cursors == {"a": Position(7, 2)}


async def test_a_gap_that_is_to_be_healed_or_a_snapshot_under_way_comes_again() -> None:
    frames = [
        rows_frame("a", 1),
        gap_frame("a", 2, 5, at_seq=1),
        snapshot_begin_frame("a", 9),
        rows_frame("a", 3, in_snapshot_of=9),
    ]
    applied, kept = Applied(), Kept()
    async with watching(WatchScript(frames, CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", applied, cursors=kept, options=AppliedOptions(start="earliest"))
    assert kept.cursors == {"a": Position(7, 1)}
    kinds = [type(event) for batch in applied.batches for event in batch.events]
    assert kinds == [Records, Lost, SnapshotBegan, Records]
    async with watching(
        WatchScript([*frames[2:], snapshot_end_frame("a", 9, 1), caught_up_frame()], CursorAhead("x"))
    ) as (
        client,
        delivery,
    ):
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", applied, cursors=kept)
    assert delivery.requests[0].topics[0].cursor == cursor("a", 1)
    assert kept.cursors == {"a": Position(7, 9)}
    assert [type(event) for batch in applied.batches for event in batch.events][-2:] == [SnapshotEnded, CaughtUp]


async def test_a_gap_moves_the_cursor_once_it_was_applied_and_no_earlier() -> None:
    frames = [rows_frame("a", 1), gap_frame("a", 2, 5, at_seq=5)]
    applied, kept = Applied(), Kept()
    options = AppliedOptions(start="earliest", batch_records=1)

    def refuse(batch: WatchBatch) -> None:
        if any(isinstance(event, Lost) for event in batch.events):
            raise ValueError("no gaps")
        applied(batch)

    async with watching(WatchScript(frames, CursorAhead("x")), WatchScript(frames[1:], CursorAhead("x"))) as (
        client,
        _,
    ):
        with pytest.raises(ValueError, match="no gaps"):
            await watch_applied(client, "a", refuse, cursors=kept, options=options)
        assert kept.cursors == {"a": Position(7, 1)}
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", applied, cursors=kept, options=options)
    assert kept.cursors == {"a": Position(7, 5)}


@pytest.mark.parametrize("on_loop", [False, True])
async def test_the_cursor_follows_what_is_hidden_without_an_apply(on_loop: bool) -> None:
    frames = [rows_frame("a", 1), *(progress_frame("a", seq) for seq in range(2, 40)), heartbeat_frame()]
    applied, kept = Applied(), Kept()
    async with watching(WatchScript(frames, CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            apply = applied.on_loop if on_loop else applied
            await watch_applied(client, "a", apply, cursors=kept, options=AppliedOptions(start="earliest"))
    assert kept.cursors == {"a": Position(7, 39)}
    assert applied.seqs == [1]
    assert all(batch.events for batch in applied.batches)


async def test_the_cursor_does_not_follow_what_is_hidden_before_what_came_first_was_applied() -> None:
    frames = [
        rows_frame("a", 1),
        progress_frame("a", 9),
        rows_frame("a", 10),
        progress_frame("a", 20),
        caught_up_frame(),
    ]
    places: list[Mapping[str, Position]] = []
    applied, kept = Applied(fails_at=10), Kept()

    async def apply(batch: WatchBatch) -> None:
        for _ in range(3_000):
            await asyncio.sleep(0)
        places.append(dict(kept.cursors))
        applied(batch)

    async with watching(WatchScript(frames)) as (client, _):
        with pytest.raises(ValueError, match="no 10"):
            options = AppliedOptions(start="earliest", batch_records=1)
            await watch_applied(client, "a", apply, cursors=kept, options=options)
    assert places[0] == {"a": Position(7, 0)}
    assert places[1]["a"].seq in (1, 9), "what was hidden may be stored with the batch behind it"
    assert kept.cursors == places[1]


async def test_a_batch_without_events_moves_the_cursors_past_hidden_records() -> None:
    applied = Applied()
    async with watching(WatchScript([rows_frame("a", 1), progress_frame("a", 9)], CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            options = AppliedOptions(start="earliest", batch_records=1)
            await watch_applied(client, "a", applied, cursors={}, options=options)
    assert [(len(batch.events), batch.cursors["a"].seq) for batch in applied.batches] == [(1, 1), (0, 9)]


async def test_nothing_moves_the_cursor_into_a_snapshot() -> None:
    frames = [snapshot_begin_frame("a", 9), rows_frame("a", 3, in_snapshot_of=9), progress_frame("a", 7)]
    kept = Kept()
    async with watching(WatchScript([*frames, gap_frame("a", 4, 8, at_seq=8)], CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            await watch_applied(client, "a", Applied(), cursors=kept)
    assert kept.cursors == {}


async def test_cancelled_in_an_apply_on_the_loop_it_was_not_applied() -> None:
    kept, began = Kept(), asyncio.Event()

    async def apply(batch: WatchBatch) -> None:
        if any(record.seq == 2 for record in batch.records()):
            began.set()
            await asyncio.Event().wait()

    async with (
        watching(WatchScript([rows_frame("a", 1), rows_frame("a", 2)])) as (client, _),
        asyncio.TaskGroup() as group,
    ):
        options = AppliedOptions(start="earliest", batch_records=1)
        task = group.create_task(watch_applied(client, "a", apply, cursors=kept, options=options))
        await began.wait()
        task.cancel()
    assert kept.cursors == {"a": Position(7, 1)}


async def test_cancelled_in_an_apply_on_its_thread_it_is_awaited_and_stored() -> None:
    kept, began, goes_on = Kept(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def apply(batch: WatchBatch) -> None:
        if list(batch.records()):
            loop.call_soon_threadsafe(began.set)
            goes_on.wait(30)

    async with watching(WatchScript([rows_frame("a", 1)])) as (client, _), asyncio.TaskGroup() as group:
        options = AppliedOptions(start="earliest")
        task = group.create_task(watch_applied(client, "a", apply, cursors=kept, options=options))
        await began.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        goes_on.set()
    assert task.cancelled()
    assert kept.cursors == {"a": Position(7, 1)}


async def test_cancelled_anywhere_what_was_applied_is_what_is_stored_or_one_batch_more(tmp_path: Path) -> None:
    frames = [rows_frame("a", seq) for seq in range(1, 30)]
    options = AppliedOptions(start="earliest", batch_records=3)
    for turns in range(0, 300, 11):
        path = tmp_path / f"{turns}.cursor"
        applied = Applied()
        async with watching(WatchScript(frames)) as (client, _), asyncio.TaskGroup() as group:
            apply = applied.on_loop if turns % 2 else applied
            task = group.create_task(watch_applied(client, "a", apply, cursors=CursorFile(path), options=options))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        stored = CursorFile(path).load().get("a", Position(7, 0)).seq
        assert applied.seqs == list(range(1, len(applied.seqs) + 1))
        batches = [0, *(batch.cursors["a"].seq for batch in applied.batches)]
        # On the loop a cancel may come between `apply` and the save: at least once.
        assert stored in (batches[-2:] if turns % 2 else batches[-1:])


async def test_exactly_once_where_the_apply_stores_the_cursor_itself(tmp_path: Path) -> None:
    frames = [rows_frame("a", seq) for seq in range(1, 9)]
    database = tmp_path / "d.sqlite"
    with sqlite3.connect(database) as made:
        made.execute("CREATE TABLE seen (seq INTEGER PRIMARY KEY)")
        made.execute("CREATE TABLE place (topic TEXT PRIMARY KEY, epoch INTEGER, seq INTEGER)")
    made.close()

    def apply(batch: WatchBatch) -> None:
        connection = sqlite3.connect(database)
        with connection:
            for record in batch.records():
                connection.execute("INSERT INTO seen VALUES (?)", (record.seq,))
            for topic, place in batch.cursors.items():
                connection.execute("REPLACE INTO place VALUES (?, ?, ?)", (topic, place.epoch, place.seq))
            if any(record.seq % 3 == 0 for record in batch.records()) and not failed:
                failed.append(1)
                raise RuntimeError("before the commit")
        connection.close()
        if any(record.seq % 4 == 0 for record in batch.records()):
            raise RuntimeError("after the commit")

    failed: list[int] = []
    options = AppliedOptions(start="earliest", batch_records=1)
    for _ in range(5):
        connection = sqlite3.connect(database)
        places = {topic: Position(epoch, seq) for topic, epoch, seq in connection.execute("SELECT * FROM place")}
        done = [seq for (seq,) in connection.execute("SELECT seq FROM seen ORDER BY seq")]
        connection.close()
        assert done == list(range(1, places.get("a", Position(7, 0)).seq + 1))
        if done[-1:] == [8]:
            break
        async with watching(WatchScript(frames[len(done) :])) as (client, _):
            with pytest.raises(RuntimeError):
                await watch_applied(client, "a", apply, cursors=places, options=options)
    else:
        pytest.fail("it never came to its end")


async def test_cursors_of_topics_that_are_not_watched_are_not_kept() -> None:
    kept = Kept(b=Position(3, 4), a=Position(7, 1))
    async with watching(WatchScript([rows_frame("a", 2)], CursorAhead("x"))) as (client, _):
        with pytest.raises(CursorAhead):
            await watch_applied(client, [WatchTopic("a", "tail")], Applied(), cursors=kept)
    assert kept.cursors == {"a": Position(7, 2)}


@pytest.mark.parametrize("batch_records", [0, -1, 1_000_000])
async def test_a_size_out_of_bounds_is_refused(batch_records: int) -> None:
    async with watching() as (client, _):
        with pytest.raises(InvalidArgument):
            options = AppliedOptions(batch_records=batch_records)
            await watch_applied(client, "a", Applied(), cursors={}, options=options)


async def test_a_store_of_cursors_that_fails_stops_it(tmp_path: Path) -> None:
    fs, applied = FaultyFs(RealFs()), Applied()
    CursorFile(tmp_path / "c").save({"a": Position(7, 0)})
    fs.next_fault("fsync", error=errno.ENOSPC)
    async with watching(WatchScript([rows_frame("a", 1), rows_frame("a", 2)])) as (client, _):
        options = AppliedOptions(start="earliest", batch_records=1)
        with pytest.raises(OSError, match="No space"):
            await watch_applied(client, "a", applied, cursors=CursorFile(tmp_path / "c", fs=fs), options=options)
    assert applied.seqs == [1]
    assert CursorFile(tmp_path / "c").load() == {"a": Position(7, 0)}


def test_cursors_are_the_old_ones_or_the_new_ones_after_a_crash_at_any_call(tmp_path: Path) -> None:
    path = tmp_path / "c"

    def new_disk() -> SimFs:
        fs = SimFs()
        for parent in [*reversed(path.parents)][1:]:
            fs.mkdir(parent)
            fs.fsync_dir(parent.parent)
        CursorFile(path, fs=fs).save({"a": Position(1, 1)})
        return fs

    whole = new_disk()
    before = whole.calls
    CursorFile(path, fs=whole).save({"a": Position(1, 2), "b": Position(2, 1 << 63)})
    for crash_at in range(1, whole.calls - before + 1):
        for outcome in range(4):
            fs = new_disk().reboot("kill", seed=crash_at * 4 + outcome, crash_at=crash_at)
            with pytest.raises(Crashed):
                CursorFile(path, fs=fs).save({"a": Position(1, 2), "b": Position(2, 1 << 63)})
            found = CursorFile(path, fs=fs.reboot("power" if outcome else "kill", seed=outcome)).load()
            assert found in ({"a": Position(1, 1)}, {"a": Position(1, 2), "b": Position(2, 1 << 63)})
    assert CursorFile(path, fs=whole.reboot("power")).load()["b"] == Position(2, 1 << 63)


def test_damaged_cursors_are_refused_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "c"
    CursorFile(path).save({"a": Position(1, 2)})
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(DataCorrupt):
                CursorFile(path).load()


def test_cursors_of_a_later_version_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "c"
    body = b'{"format":2,"cursors":{}}'
    path.write_bytes(xxh3_64_hexdigest(body).encode() + b"\n" + body + b"\n")
    with pytest.raises(NewerFormat):
        CursorFile(path).load()
