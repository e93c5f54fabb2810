"""Keys as they were, their histories, checks of folds and the way back from a lost one, over a scripted door."""

from __future__ import annotations

from eddyline.core.errors import FoldLost, HistoryGone, NotKv, TimeNotReached
from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
from eddyline.core.model.read import EntryPage, FoldState
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.v1.fold_pb2 import GetEntryRequest, KeyHistoryRequest, SettleFoldRequest, VerifyFoldRequest
from eddyline.v1.types_pb2 import BATCH_FORMAT_COLUMNS, GAP_REASON_TTL
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import answers_of, refused, until

STATE = FoldState(4, 7)
ENTRY = Record(seq=3, ts_ms=9, op=Op.PUT, key=b"k", data=b"v")
REVISIONS = Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"1"), Record(op=Op.DELETE, key=b"k")]).with_seqs(5, 9)


async def test_a_key_is_read_as_it_was_at_a_seq_or_a_time() -> None:
    door = ScriptedShard({"entry_at": EntryPage(STATE, (ENTRY,))})
    async with scripted_store(door) as store:
        answer = await store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=0))
        await store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_time_ms=-5))
    assert (answer.entry.data, answer.entry.seq, answer.state.fold_seq, answer.state.epoch) == (b"v", 3, 4, 7)
    assert door.asked == [("entry_at", ("t", b"k"), {"at_seq": 0}), ("entry_at", ("t", b"k"), {"at_time_ms": -5})]


async def test_a_key_that_was_not_live_at_that_point_is_a_missing_key() -> None:
    async with scripted_store(ScriptedShard({"entry_at": EntryPage(STATE, (None,))})) as store:
        error = await refused(store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=4)), "KEY_NOT_FOUND")
    assert error.metadata["foldSeq"] == "4"


async def test_refused_point_in_the_past_names_the_nearest_possible_one() -> None:
    async with scripted_store(ScriptedShard({"entry_at": HistoryGone("gone", earliestSeq=12)})) as store:
        error = await refused(store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=4)), "HISTORY_GONE")
        assert isinstance(error, HistoryGone)
        assert error.earliest_seq == 12
    async with scripted_store(ScriptedShard({"entry_at": TimeNotReached("later", nowMs=8)})) as store:
        request = GetEntryRequest(topic="t", key=b"k", at_time_ms=9)
        error = await refused(store.fold.GetEntry(request), "TIME_NOT_REACHED")
        assert isinstance(error, TimeNotReached)
        assert error.now_ms == 8


async def test_a_key_as_it_was_waits_for_no_version() -> None:
    async with scripted_store(ScriptedShard({})) as store:
        request = GetEntryRequest(topic="t", key=b"k", at_seq=4, min_version=b"\1")
        error = await refused(store.fold.GetEntry(request), "INVALID_ARGUMENT")
    assert error.metadata["field"] == "min_version"


async def test_key_history_is_in_order_with_gaps() -> None:
    lost = Gap(1, 4, GapReason.TTL)
    door = ScriptedShard({"key_history": [lost, REVISIONS]})
    async with scripted_store(door) as store:
        request = KeyHistoryRequest(topic="t", key=b"k", after_seq=0, limit=9, epoch=7)
        answers, reason = await answers_of(store.fold.KeyHistory(request))
        request.format = BATCH_FORMAT_COLUMNS
        columns, _ = await answers_of(store.fold.KeyHistory(request))
    assert reason == ""
    assert [answer.next_after_seq for answer in answers] == [4, 6]
    assert (answers[0].gap.last_seq, answers[0].gap.reason) == (4, GAP_REASON_TTL)
    assert [record.seq for record in answers[1].rows.records] == [5, 6]
    assert columns[1].columns.count == 2
    assert door.asked[0] == ("key_history", ("t", b"k"), {"after_seq": 0, "limit": 9, "epoch": 7})
    assert door.closed == ["key_history", "key_history"]


async def test_a_history_is_of_one_key() -> None:
    async with scripted_store(ScriptedShard({})) as store:
        for key in (b"", bytes(1_025)):
            assert await answers_of(store.fold.KeyHistory(KeyHistoryRequest(topic="t", key=key))) == (
                [],
                "INVALID_ARGUMENT",
            )
    async with scripted_store(ScriptedShard({"key_history": [NotKv("a log", topic="t")]})) as store:
        assert await answers_of(store.fold.KeyHistory(KeyHistoryRequest(topic="t", key=b"k"))) == ([], "NOT_KV")


async def test_verify_fold_streams_progress_and_ends_with_the_verdict() -> None:
    steps = [FoldCheckProgress(3, 9), FoldCheckProgress(9, 9, 5), FoldVerdict(9, 2, 7, 1, ("key 6b differs",))]
    async with scripted_store(ScriptedShard({"verify_fold": steps})) as store:
        answers, reason = await answers_of(store.fold.VerifyFold(VerifyFoldRequest(topic="t")))
    assert reason == ""
    assert [answer.WhichOneof("step") for answer in answers] == ["progress", "progress", "verdict"]
    verdict = answers[2].verdict
    assert (verdict.base_seq, verdict.differing_count, list(verdict.findings)) == (2, 1, ["key 6b differs"])


async def test_a_check_that_fails_midway_ends_with_its_error() -> None:
    door = ScriptedShard({"verify_fold": [FoldCheckProgress(3, 9), FoldLost("lost", topic="t")]})
    async with scripted_store(door) as store:
        answers, reason = await answers_of(store.fold.VerifyFold(VerifyFoldRequest(topic="t")))
    assert (len(answers), reason) == (1, "FOLD_LOST")


async def test_a_lost_fold_is_settled() -> None:
    door = ScriptedShard({"settle_fold": FoldSettled(True, 2, 5, STATE)})
    async with scripted_store(door) as store:
        answer = await store.fold.SettleFold(SettleFoldRequest(topic="t", if_epoch=7))
    assert (answer.settled, answer.base_seq, answer.log_first_seq, answer.state.fold_seq) == (True, 2, 5, 4)
    assert door.asked == [("settle_fold", ("t",), {"if_epoch": 7})]


async def test_a_check_ends_when_the_store_stops_or_the_call_is_cancelled() -> None:
    for stops in (True, False):
        door = ScriptedShard({"verify_fold": [FoldCheckProgress(1, 9), *[FoldCheckProgress(2, 9)] * 100_000]})
        async with scripted_store(door) as store:
            call = store.fold.VerifyFold(VerifyFoldRequest(topic="t"))
            assert (await anext(aiter(call))).progress.replayed_seq == 1
            if stops:
                store.handle.close()
                assert (await answers_of(call))[1] == "NOT_READY"
            else:
                call.cancel()
            await until(lambda door=door: bool(door.closed))  # type: ignore[misc]  # a lambda's default has no type
