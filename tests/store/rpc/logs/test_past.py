"""Deletes, look-ups by time, histories and points in time over a real store: what the contract says of each, end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.storage.layout import Layout
from eddyline.v1.fold_pb2 import (
    BatchGetEntriesRequest,
    GetEntryRequest,
    KeyHistoryRequest,
    SettleFoldRequest,
    VerifyFoldRequest,
)
from eddyline.v1.log_pb2 import (
    MATCH_FIELD_KEY,
    MATCH_KIND_EQ,
    MATCH_KIND_PREFIX,
    DeleteRecordsRequest,
    FindSeqRequest,
    ReadRecordsRequest,
    RecordFilter,
    RecordMatch,
)
from eddyline.v1.topic_pb2 import (
    TOPIC_KIND_KV,
    TOPIC_KIND_LOG,
    CreateTopicRequest,
    DeleteTopicRequest,
    EraseTopicRequest,
    Topic,
    TopicConfig,
)
from eddyline.v1.types_pb2 import GAP_REASON_CAP, OP_DELETE, Record
from tests.store.rpc.requests import keyed, keyless, rows
from tests.support.store.served import ServedStore, answers_of, passing_time, refused, served_store

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.v1.topic_pb2 import TopicKind


async def create(store: ServedStore, kind: TopicKind.ValueType, config: TopicConfig) -> Topic:
    request = CreateTopicRequest(topic=Topic(name="t", kind=kind, config=config))
    return (await store.topics.CreateTopic(request)).topic


async def filled(store: ServedStore) -> Topic:
    """A KV topic of at most 3 records: k at 1, l at 2, k at 3, no k at 4, k at 5; a second between appends."""
    topic = await create(store, TOPIC_KIND_KV, TopicConfig(cap_records=3))
    gone = Record(key=b"k", op=OP_DELETE)
    for records in ((keyed("k", "1"), keyed("l", "1")), (keyed("k", "2"), gone), (keyed("k", "3"),)):
        await store.log.AppendRecords(rows("t", *records))
        store.clock.advance(1)
    return topic


async def test_keys_are_deleted_from_log_and_fold(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        topic = await filled(store)
        match = RecordMatch(field=MATCH_FIELD_KEY, kind=MATCH_KIND_EQ, value=b"k")
        request = DeleteRecordsRequest(topic="t", epoch=topic.epoch, match=match)
        answer = await store.log.DeleteRecords(request)
        assert (answer.deleted_count, answer.earliest_seq, answer.head_seq, answer.epoch) == (3, 6, 5, topic.epoch)
        assert (await store.log.DeleteRecords(request)).deleted_count == 0
        entries = (await store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="t", keys=[b"k", b"l"]))).entries
        assert [entry.HasField("entry") for entry in entries] == [False, True]
        (item,) = (await store.log.ReadRecords(ReadRecordsRequest(topic="t"))).items
        assert (item.gap.first_seq, item.gap.last_seq, item.gap.reason) == (1, 2, GAP_REASON_CAP)
        await refused(store.log.DeleteRecords(DeleteRecordsRequest(topic="t", epoch=9, before_seq=1)), "EPOCH_MISMATCH")


async def test_prefix_of_everything_is_deleted_below_a_bound(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await create(store, TOPIC_KIND_LOG, TopicConfig())
        await store.log.AppendRecords(rows("t", keyed("a", "1"), keyless("2"), keyed("b", "3"), keyed("c", "4")))
        match = RecordMatch(field=MATCH_FIELD_KEY, kind=MATCH_KIND_PREFIX)
        await store.log.DeleteRecords(DeleteRecordsRequest(topic="t", before_seq=4, match=match))
        (item,) = (await store.log.ReadRecords(ReadRecordsRequest(topic="t"))).items
        assert [record.seq for record in item.rows.records] == [2, 4]


async def test_find_seq_returns_the_first_record_at_or_after_a_time(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        now_ms = store.clock.now_ms()
        found = await store.log.FindSeq(FindSeqRequest(topic="t", commit_time_ms=now_ms - 1_500))
        assert (found.seq, found.found, found.head_seq, found.earliest_seq) == (5, True, 5, 3)
        found = await store.log.FindSeq(FindSeqRequest(topic="t", commit_time_ms=now_ms))
        assert (found.seq, found.found) == (6, False)
        found = await store.log.FindSeq(FindSeqRequest(topic="t", source_time_ns=1))
        assert (found.seq, found.found) == (6, False)


async def test_history_of_a_key_has_its_live_revisions_and_gaps(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        answers, reason = await answers_of(store.fold.KeyHistory(KeyHistoryRequest(topic="t", key=b"k")))
        assert (reason, [answer.next_after_seq for answer in answers]) == ("", [2, 5])
        assert answers[0].gap.reason == GAP_REASON_CAP
        assert [record.seq for record in answers[1].rows.records] == [3, 4, 5]
        ahead = KeyHistoryRequest(topic="t", key=b"k", after_seq=6)
        assert await answers_of(store.fold.KeyHistory(ahead)) == ([], "CURSOR_AHEAD")
        other = KeyHistoryRequest(topic="t", key=b"k", epoch=9)
        assert await answers_of(store.fold.KeyHistory(other)) == ([], "EPOCH_MISMATCH")


async def test_key_is_read_as_it_was(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        now_ms = store.clock.now_ms()
        answer = await store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=3))
        assert (answer.entry.data, answer.entry.seq, answer.state.fold_seq) == (b"2", 3, 3)
        answer = await store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_time_ms=now_ms - 1))
        assert (answer.entry.data, answer.state.fold_seq) == (b"3", 5)
        for at_seq in (4, 0):
            request = GetEntryRequest(topic="t", key=b"k", at_seq=at_seq)
            error = await refused(store.fold.GetEntry(request), "KEY_NOT_FOUND")
            assert error.metadata["foldSeq"] == str(at_seq)
        await refused(store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=6)), "CURSOR_AHEAD")
        await refused(store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_time_ms=now_ms)), "TIME_NOT_REACHED")
        trim = DeleteRecordsRequest(topic="t", before_seq=4)
        assert (await store.log.DeleteRecords(trim)).deleted_count == 1
        error = await refused(store.fold.GetEntry(GetEntryRequest(topic="t", key=b"k", at_seq=3)), "HISTORY_GONE")
        assert error.metadata["earliestSeq"] == "4"


async def test_topic_may_have_its_readers_see_their_own_node(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for dedupe_node, expected in ((False, [1, 2]), (True, [2])):
            topic = await create(store, TOPIC_KIND_LOG, TopicConfig(dedupe_node=dedupe_node))
            await store.log.AppendRecords(rows("t", Record(data=b"1", node="n"), Record(data=b"2")))
            read = ReadRecordsRequest(topic="t", filter=RecordFilter(exclude_nodes=["n"]))
            (item,) = (await store.log.ReadRecords(read)).items
            assert [record.seq for record in item.rows.records] == expected
            assert topic.config.dedupe_node == dedupe_node
            await store.topics.DeleteTopic(DeleteTopicRequest(topic="t"))


async def test_fold_is_checked_and_one_that_is_not_lost_is_left_as_it_is(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        topic = await filled(store)
        answers, reason = await answers_of(store.fold.VerifyFold(VerifyFoldRequest(topic="t")))
        assert reason == ""
        verdict = answers[-1].verdict
        assert (verdict.fold_seq, verdict.entry_count, verdict.differing_count) == (5, 2, 0)
        settled = await store.fold.SettleFold(SettleFoldRequest(topic="t", if_epoch=topic.epoch))
        assert (settled.settled, settled.state.fold_seq, settled.state.epoch) == (False, 5, topic.epoch)


async def test_topic_is_erased_at_once(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await create(store, TOPIC_KIND_LOG, TopicConfig())
        await store.log.AppendRecords(rows("t", Record(data=b"a secret of its own"), Record(data=b"kept")))
        await store.log.DeleteRecords(DeleteRecordsRequest(topic="t", before_seq=2))
        wal = Layout(tmp_path / "store").wal_shard(0)
        assert any(b"a secret" in path.read_bytes() for path in wal.iterdir())
        async with passing_time(store.clock):
            answers, reason = await answers_of(store.topics.EraseTopic(EraseTopicRequest(topic="t")))
        assert (reason, answers[-1].erased) == ("", True)
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if b"a secret" in path.read_bytes()]
