"""Settings, deletes, erasure, times, keys as they were, checks of folds and figures, through the client."""

from __future__ import annotations

from collections import deque

import pytest

from eddyline.client.admin.status import role_status
from eddyline.core.errors import EpochMismatch, FoldLost, HistoryGone, InvalidArgument, NotReady, ScanExpired
from eddyline.core.model.deletion import DeleteResult, EraseProgress
from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
from eddyline.core.model.read import EntryPage, FoldState, SeqFound
from eddyline.core.model.topic import ConfigChange, Discard, Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.transport.channel import open_channel
from eddyline.store.stats import RecoveryProgress, ShardStatus, Stage
from tests.support.clients.clients import client_of_a_door
from tests.support.store.scripted_shard import ScriptedShard, scripted_store

INFO = TopicInfo(
    "t", 7, Kind.KV, TopicConfig(ttl_ms=5, cap_records=9, discard=Discard.REJECT), 9, 5, "", 1, 4, 5, 320, 2
)
STATE = FoldState(4, 7)
ENTRY = Record(seq=3, ts_ms=9, op=Op.PUT, key=b"k", data=b"v", version=b"\x03")
REVISIONS = Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"1"), Record(op=Op.DELETE, key=b"k")]).with_seqs(5, 9)
LOST = Gap(1, 4, GapReason.TTL)


async def test_an_update_changes_what_it_names() -> None:
    door = ScriptedShard({"update_topic": INFO})
    change = ConfigChange(ttl_ms=5, discard=Discard.REJECT, clear_priority=True)
    async with client_of_a_door(door) as client:
        assert await client.update_topic("t", change, if_epoch=7) == INFO
    assert door.asked == [("update_topic", ("t", change), {"if_epoch": 7})]


async def test_an_erasure_reports_progress_to_its_end() -> None:
    steps = [EraseProgress(0, 9), EraseProgress(9, 9, erased=True)]
    async with client_of_a_door(ScriptedShard({"erase_topic": steps})) as client:
        assert [step async for step in client.erase_topic("t", if_epoch=7)] == steps
    async with client_of_a_door(ScriptedShard({"erase_topic": [steps[0], EpochMismatch("other")]})) as client:
        erasing = client.erase_topic("t")
        assert await anext(erasing) == steps[0]
        with pytest.raises(EpochMismatch):
            await anext(erasing)


async def test_a_delete_says_what_it_did_and_is_not_repeated() -> None:
    match = Match(MatchField.KEY, MatchKind.PREFIX, b"x")
    door = ScriptedShard({"delete_records": deque([DeleteResult(3, 5, 9, 7), NotReady("stopping")])}, kind=Kind.KV)
    async with client_of_a_door(door) as client:
        assert await client.delete_records("t", before_seq=8, match=match, epoch=7) == DeleteResult(3, 5, 9, 7)
        with pytest.raises(NotReady):
            await client.delete_records("t", before_seq=8)
        with pytest.raises(InvalidArgument):
            await client.delete_records("t")
    assert door.asked == [
        ("delete_records", ("t",), {"epoch": 7, "before_seq": 8, "match": match}),
        ("delete_records", ("t",), {"epoch": 0, "before_seq": 8, "match": None}),
    ]


async def test_find_seq_repeats_after_an_outage_of_the_store() -> None:
    found = SeqFound(10, False, 9, 5, 7)
    door = ScriptedShard({"find_seq": deque([NotReady("starting"), found, found])})
    async with client_of_a_door(door) as client:
        assert await client.find_seq("t", commit_time_ms=0) == found
        assert await client.find_seq("t", source_time_ns=-1, epoch=7) == found
        with pytest.raises(InvalidArgument):
            await client.find_seq("t")
    assert [options for _, _, options in door.asked[1:]] == [
        {"epoch": 0, "commit_time_ms": 0, "source_time_ns": None},
        {"epoch": 7, "commit_time_ms": None, "source_time_ns": -1},
    ]


async def test_a_key_as_it_was_may_be_none_at_a_point_that_is_named() -> None:
    pages = deque([EntryPage(STATE, (ENTRY,)), EntryPage(STATE, (None,)), HistoryGone("gone", earliestSeq=12)])
    door = ScriptedShard({"entry_at": pages})
    async with client_of_a_door(door) as client:
        assert await client.get_at("t", b"k", at_seq=4) == EntryPage(STATE, (ENTRY,))
        page = await client.get_at("t", b"k", at_time_ms=-5)
        assert (page.entries, page.state.fold_seq) == ((None,), 4)
        with pytest.raises(HistoryGone):
            await client.get_at("t", b"k", at_seq=1)
    assert [options for _, _, options in door.asked[:2]] == [{"at_seq": 4}, {"at_time_ms": -5}]


async def test_a_history_that_breaks_goes_on_in_the_same_topic() -> None:
    door = ScriptedShard(
        {
            "get_topic": INFO,
            "key_history": deque([[LOST, REVISIONS.slice(0, 1), NotReady("x")], [REVISIONS.slice(1, 2)]]),
        }
    )
    async with client_of_a_door(door) as client:
        items = [item async for item in client.history("t", b"k", limit=9)]
    assert items[0] == LOST
    assert [(item.seq, item.op) for item in items[1:] if isinstance(item, Record)] == [(5, Op.PUT), (6, Op.DELETE)]
    assert [options for name, _, options in door.asked if name == "key_history"] == [
        {"after_seq": 0, "limit": 9, "epoch": 7},
        {"after_seq": 5, "limit": 8, "epoch": 7},
    ]


async def test_a_whole_history_that_breaks_resumes_without_a_limit() -> None:
    door = ScriptedShard({"get_topic": INFO, "key_history": deque([[REVISIONS, NotReady("x")], []])})
    async with client_of_a_door(door) as client:
        assert len([item async for item in client.history("t", b"k")]) == 2
    assert door.asked[-1][2] == {"after_seq": 6, "limit": 0, "epoch": 7}


async def test_a_check_tells_its_verdict_last_and_does_not_resume() -> None:
    steps = [FoldCheckProgress(3, 9), FoldCheckProgress(9, 9, 5), FoldVerdict(9, 2, 7, 1, ("key 6b differs",))]
    async with client_of_a_door(ScriptedShard({"verify_fold": steps})) as client:
        assert [step async for step in client.verify_fold("t")] == steps
    for error in (ScanExpired("late"), FoldLost("lost", topic="t")):
        async with client_of_a_door(ScriptedShard({"verify_fold": [steps[0], error]})) as client:
            with pytest.raises(type(error)):
                assert [step async for step in client.verify_fold("t")]


async def test_a_lost_fold_is_settled() -> None:
    settled = FoldSettled(True, 2, 5, STATE)
    door = ScriptedShard({"settle_fold": settled})
    async with client_of_a_door(door) as client:
        assert await client.settle_fold("t", if_epoch=7) == settled
    assert door.asked == [("settle_fold", ("t",), {"if_epoch": 7})]


async def test_status_has_the_stores_figures_or_how_far_its_recovery_is() -> None:
    figures = ShardStatus(1, 0, 2, 3, 4, 5, 6, "", Stage.MERGE, 7, 8, 9, 10, 11, 12, 13, 14)
    async with scripted_store(ScriptedShard({"status": figures})) as store, open_channel(store.address) as channel:
        told = dict((await role_status(channel, "store", store.address)).figures)
    assert (told["maintenance_stage"], told["checkpoint"], told["wal_shards"]) == ("MERGE", 7, 14)
    assert (told["segment_count"], told["segment_bytes"], told["unsegmented_bytes"]) == (8, 9, 10)
    async with scripted_store(None) as store, open_channel(store.address) as channel:
        store.handle.set_progress(RecoveryProgress(3, 9))
        status = await role_status(channel, "store", store.address)
    assert (status.ready, status.figures) == (False, (("replayed_bytes", 3), ("total_bytes", 9)))
