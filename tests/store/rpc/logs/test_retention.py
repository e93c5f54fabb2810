"""Updates, erasure, look-ups by time, deletes and the status of upkeep, over a scripted door."""

from __future__ import annotations

import pytest

from eddyline.core.errors import DiskFloor, InvalidConfig, TopicNotFound
from eddyline.core.model.deletion import DeleteResult, EraseProgress
from eddyline.core.model.read import SeqFound
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig, TopicInfo
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.stats import RecoveryProgress, ShardStatus, Stage
from eddyline.v1.cluster_pb2 import MAINTENANCE_STAGE_MERGE, GetStatusRequest
from eddyline.v1.log_pb2 import (
    MATCH_FIELD_KEY,
    MATCH_FIELD_TAG,
    MATCH_KIND_EQ,
    MATCH_KIND_PREFIX,
    DeleteRecordsRequest,
    FindSeqRequest,
    RecordMatch,
)
from eddyline.v1.topic_pb2 import (
    DISCARD_REJECT,
    DURABILITY_FSYNC,
    EraseTopicRequest,
    UpdateTopicRequest,
)
from eddyline.v1.topic_pb2 import TopicConfig as ConfigMessage
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import answers_of, refused

INFO = TopicInfo("t", 7, Kind.LOG, TopicConfig(cap_records=5, discard=Discard.REJECT), 9, 5, "", 1, 4, 5, 320, 2)


async def test_an_update_changes_the_fields_set_and_returns_the_topic() -> None:
    door = ScriptedShard({"update_topic": INFO})
    config = ConfigMessage(durability=DURABILITY_FSYNC, ttl_ms=0, cap_records=5, discard=DISCARD_REJECT)
    async with scripted_store(door) as store:
        request = UpdateTopicRequest(topic="t", config=config, if_epoch=7, clear_priority=True)
        topic = (await store.topics.UpdateTopic(request)).topic
        await store.topics.UpdateTopic(UpdateTopicRequest(topic="t"))
    assert (topic.epoch, topic.config.cap_records, topic.config.discard) == (7, 5, DISCARD_REJECT)
    assert (topic.evict_floor, topic.record_count, topic.record_bytes, topic.config_version) == (4, 5, 320, 2)
    change = ConfigChange(Durability.FSYNC, None, 0, 5, discard=Discard.REJECT, clear_priority=True)
    assert door.asked == [
        ("update_topic", ("t", change), {"if_epoch": 7}),
        ("update_topic", ("t", ConfigChange()), {"if_epoch": 0}),
    ]


async def test_an_update_that_may_not_be_is_refused() -> None:
    async with scripted_store(ScriptedShard({"update_topic": InvalidConfig("no", field="config.ttl_ms")})) as store:
        await refused(store.topics.UpdateTopic(UpdateTopicRequest(topic="t")), "INVALID_CONFIG")
        compact = UpdateTopicRequest(topic="t", config=ConfigMessage(compact=True))
        assert (await refused(store.topics.UpdateTopic(compact), "NOT_YET")).metadata["field"] == "config.compact"


async def test_erasure_tells_how_far_it_is() -> None:
    door = ScriptedShard({"erase_topic": [EraseProgress(0, 9), EraseProgress(9, 9, erased=True)]})
    async with scripted_store(door) as store:
        answers, reason = await answers_of(store.topics.EraseTopic(EraseTopicRequest(topic="t", if_epoch=7)))
    assert reason == ""
    assert [(one.done_bytes, one.total_bytes, one.erased) for one in answers] == [(0, 9, False), (9, 9, True)]
    assert door.asked == [("erase_topic", ("t",), {"if_epoch": 7})]
    assert door.closed == ["erase_topic"]


async def test_refusal_by_the_disk_floor_has_a_time_to_retry() -> None:
    door = ScriptedShard({"erase_topic": [DiskFloor("full", retryAfterMs=500)]})
    async with scripted_store(door) as store:
        assert await answers_of(store.topics.EraseTopic(EraseTopicRequest(topic="t"))) == ([], "DISK_FLOOR")


async def test_a_time_is_looked_up_by_commit_or_by_source() -> None:
    door = ScriptedShard({"find_seq": SeqFound(10, False, 9, 5, 7)})
    async with scripted_store(door) as store:
        found = await store.log.FindSeq(FindSeqRequest(topic="t", epoch=7, commit_time_ms=0))
        await store.log.FindSeq(FindSeqRequest(topic="t", source_time_ns=-1))
        error = await refused(store.log.FindSeq(FindSeqRequest(topic="t")), "INVALID_ARGUMENT")
    assert (found.seq, found.found, found.head_seq, found.earliest_seq, found.epoch) == (10, False, 9, 5, 7)
    assert error.metadata["field"] == "time"
    assert door.asked == [
        ("find_seq", ("t",), {"epoch": 7, "commit_time_ms": 0, "source_time_ns": None}),
        ("find_seq", ("t",), {"epoch": 0, "commit_time_ms": None, "source_time_ns": -1}),
    ]


async def test_a_delete_reaches_the_shard_unchanged_and_returns_its_counts() -> None:
    door = ScriptedShard({"delete_records": DeleteResult(3, 5, 9, 7)}, kind=Kind.LOG)
    match = RecordMatch(field=MATCH_FIELD_TAG, kind=MATCH_KIND_PREFIX, value=b"x")
    async with scripted_store(door) as store:
        answer = await store.log.DeleteRecords(DeleteRecordsRequest(topic="t", epoch=7, before_seq=8, match=match))
        await store.log.DeleteRecords(DeleteRecordsRequest(topic="t", before_seq=8))
    assert (answer.deleted_count, answer.earliest_seq, answer.head_seq, answer.epoch) == (3, 5, 9, 7)
    wanted = Match(MatchField.TAG, MatchKind.PREFIX, b"x")
    assert door.asked == [
        ("delete_records", ("t",), {"epoch": 7, "before_seq": 8, "match": wanted}),
        ("delete_records", ("t",), {"epoch": 0, "before_seq": 8, "match": None}),
    ]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (DeleteRecordsRequest(topic="t"), "before_seq"),
        (DeleteRecordsRequest(topic="t", match=RecordMatch()), "match.field"),
        (DeleteRecordsRequest(topic="t", match=RecordMatch(field=MATCH_FIELD_KEY)), "match.kind"),
        (
            DeleteRecordsRequest(
                topic="t", before_seq=5, match=RecordMatch(field=MATCH_FIELD_TAG, kind=MATCH_KIND_EQ, value=b"x")
            ),
            "match.field",
        ),
        (
            DeleteRecordsRequest(
                topic="t", match=RecordMatch(field=MATCH_FIELD_KEY, kind=MATCH_KIND_EQ, value=bytes(1_025))
            ),
            "match.value",
        ),
    ],
)
async def test_a_delete_that_means_nothing_or_too_much_is_refused(request_: DeleteRecordsRequest, field: str) -> None:
    door = ScriptedShard({}, kind=Kind.KV)
    async with scripted_store(door) as store:
        error = await refused(store.log.DeleteRecords(request_), "INVALID_ARGUMENT")
    assert error.metadata["field"] == field
    assert door.asked == []


async def test_a_delete_in_a_missing_topic_is_refused() -> None:
    door = ScriptedShard({"delete_records": TopicNotFound("none", topic="t")})
    async with scripted_store(door) as store:
        await refused(store.log.DeleteRecords(DeleteRecordsRequest(topic="t", before_seq=2)), "TOPIC_NOT_FOUND")


async def test_status_has_the_background_job_in_progress() -> None:
    figures = ShardStatus(
        1, 0, 2, 3, 4, 5, 6, "", Stage.MERGE, 7, 8, 9, 10, 11, 12, 13, 14, fold_count=15, lost_fold_count=16
    )
    async with scripted_store(ScriptedShard({"status": figures})) as store:
        detail = (await store.cluster.GetStatus(GetStatusRequest())).store
    assert (detail.maintenance_stage, detail.checkpoint, detail.segment_count) == (MAINTENANCE_STAGE_MERGE, 7, 8)
    assert (detail.segment_bytes, detail.unsegmented_bytes, detail.disk_free_bytes) == (9, 10, 11)
    assert (detail.memory_bytes, detail.corrupt_count, detail.wal_shards) == (12, 13, 14)
    assert (detail.fold_count, detail.lost_fold_count) == (15, 16)
    assert not detail.HasField("recovery")


async def test_status_tells_how_far_recovery_is() -> None:
    async with scripted_store(None) as store:
        store.handle.set_progress(RecoveryProgress(3, 9))
        status = await store.cluster.GetStatus(GetStatusRequest())
    assert (status.ready, status.reason) == (False, "NOT_READY")
    assert (status.store.recovery.replayed_bytes, status.store.recovery.total_bytes) == (3, 9)
