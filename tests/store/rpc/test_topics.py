"""TopicService: what it makes, lists and deletes, and every way in which it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.v1 import apply_pb2, topic_pb2
from eddyline.v1.log_pb2 import DeleteRecordsRequest
from eddyline.v1.topic_pb2 import (
    CreateTopicRequest,
    DeleteTopicRequest,
    GetTopicRequest,
    ListTopicsRequest,
    Topic,
    TopicConfig,
)
from tests.store.rpc.requests import keyed, rows
from tests.support.store.served import refused, served_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
BAD_NAMES = ("", ".a", "a b", "a/b", "ä", "a\n", "a" * 256)


async def names(store: ServedStore) -> list[str]:
    answer = await store.topics.ListTopics(ListTopicsRequest())
    return [topic.name for topic in answer.topics]


async def test_created_topic_is_returned_with_its_defaults(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = (await store.topics.CreateTopic(CreateTopicRequest(topic=Topic(name="a:B.c-1_", kind=LOG)))).topic
        found = (await store.topics.GetTopic(GetTopicRequest(topic="a:B.c-1_"))).topic
    assert found == made
    assert made.epoch > 0
    assert made.kind == LOG
    assert made.config.durability == topic_pb2.DURABILITY_DISK
    assert made.config.idempotency_window_ms == 120_000
    assert (made.head_seq, made.earliest_seq, made.source) == (0, 1, "")
    assert made.create_ts_ms > 0


@pytest.mark.parametrize(
    ("topic", "reason", "field"),
    [
        pytest.param(Topic(kind=LOG), "INVALID_NAME", "topic", id="no name"),
        pytest.param(Topic(name="a"), "INVALID_ARGUMENT", "kind", id="no kind"),
        pytest.param(Topic(name="a", kind=3), "NOT_YET", "kind", id="queue"),  # type: ignore[arg-type]
        pytest.param(
            Topic(
                name="a", kind=topic_pb2.TOPIC_KIND_KV, config=TopicConfig(durability=topic_pb2.DURABILITY_EPHEMERAL)
            ),
            "INVALID_CONFIG",
            "config.durability",
            id="ephemeral fold",
        ),
        pytest.param(
            Topic(name="a", kind=LOG, config=TopicConfig(discard=topic_pb2.DISCARD_REJECT)),
            "INVALID_CONFIG",
            "config.discard",
            id="reject without cap",
        ),
        pytest.param(
            Topic(name="a", kind=LOG, config=TopicConfig.FromString(b"\x78\x05")), "NOT_YET", "config", id="setting"
        ),
        pytest.param(
            Topic(name="a", kind=LOG, config=TopicConfig(idempotency_window_ms=0)),
            "INVALID_CONFIG",
            "config.idempotency_window_ms",
            id="no window",
        ),
        pytest.param(
            Topic(name="a", kind=LOG, config=TopicConfig(idempotency_window_ms=86_400_001)),
            "INVALID_CONFIG",
            "config.idempotency_window_ms",
            id="long window",
        ),
        pytest.param(Topic(name="a", kind=LOG, epoch=1), "INVALID_ARGUMENT", "topic.epoch", id="epoch"),
        pytest.param(Topic(name="a", kind=LOG, head_seq=1), "INVALID_ARGUMENT", "topic.head_seq", id="head"),
        pytest.param(
            Topic(name="a", kind=LOG, earliest_seq=1), "INVALID_ARGUMENT", "topic.earliest_seq", id="earliest"
        ),
        pytest.param(Topic(name="a", kind=LOG, source="s"), "INVALID_ARGUMENT", "topic.source", id="source"),
        pytest.param(Topic(name="a", kind=LOG, create_ts_ms=1), "INVALID_ARGUMENT", "topic.create_ts_ms", id="time"),
    ],
)
async def test_invalid_topic_is_refused_and_not_created(tmp_path: Path, topic: Topic, reason: str, field: str) -> None:
    async with served_store(tmp_path / "store") as store:
        error = await refused(store.topics.CreateTopic(CreateTopicRequest(topic=topic)), reason)
        assert error.metadata["field"] == field
        assert await names(store) == []


async def test_request_without_topic_is_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        error = await refused(store.topics.CreateTopic(CreateTopicRequest()), "INVALID_ARGUMENT")
        assert error.metadata["field"] == "topic"


async def test_bad_names_are_refused_by_every_call(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in BAD_NAMES:
            await refused(
                store.topics.CreateTopic(CreateTopicRequest(topic=Topic(name=name, kind=LOG))), "INVALID_NAME"
            )
            await refused(store.topics.GetTopic(GetTopicRequest(topic=name)), "INVALID_NAME")
            await refused(store.topics.DeleteTopic(DeleteTopicRequest(topic=name)), "INVALID_NAME")
        assert await names(store) == []


async def test_second_create_is_refused_whatever_its_configuration(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("a", KV)
        error = await refused(
            store.topics.CreateTopic(CreateTopicRequest(topic=Topic(name="a", kind=LOG))), "TOPIC_EXISTS"
        )
        assert error.metadata == {"topic": "a", "kind": "KV", "durability": "DISK"}
        assert error.message == "topic a exists: kind KV, durability DISK"
        assert (await store.topics.GetTopic(GetTopicRequest(topic="a"))).topic == made


async def test_topic_above_the_quota_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store", topics_max=2) as store:
        await store.create("a")
        await store.create("b")
        await refused(store.topics.CreateTopic(CreateTopicRequest(topic=Topic(name="c", kind=LOG))), "QUOTA_TOPICS")
        assert await names(store) == ["a", "b"]


async def test_pages_cover_all_names_in_byte_order_once(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in ("b", "a", "a.2", "B", "a.1", "a.10", "c"):
            await store.create(name, LOG)
        pages, token = [], ""
        while True:
            request = ListTopicsRequest(name_prefix="a", page_size=2, page_token=token)
            answer = await store.topics.ListTopics(request)
            pages.append([topic.name for topic in answer.topics])
            token = answer.next_page_token
            if not token:
                break
        assert pages == [["a", "a.1"], ["a.10", "a.2"]]
        assert await names(store) == ["B", "a", "a.1", "a.10", "a.2", "b", "c"]
        assert len((await store.topics.ListTopics(ListTopicsRequest(page_size=2_000_000_000))).topics) == 7


async def test_page_tokens_are_bound_to_their_call_and_prefix(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in ("a.1", "a.2", "a.3"):
            await store.create(name, LOG)
        first = await store.topics.ListTopics(ListTopicsRequest(page_size=1, name_prefix="a"))
        token = first.next_page_token
        damaged = token[:-1] + ("A" if token[-1] != "A" else "B")
        for other in ("x", "====", "é", "AAAA", damaged, token + "="):
            error = await refused(
                store.topics.ListTopics(ListTopicsRequest(name_prefix="a", page_token=other)), "PAGE_TOKEN_INVALID"
            )
            assert error.metadata["field"] == "page_token"
        await refused(store.topics.ListTopics(ListTopicsRequest(page_token=token)), "PAGE_TOKEN_INVALID")
        sources = apply_pb2.ApplyServiceListSourcesRequest(page_token=token)
        await refused(store.apply.ListSources(sources), "PAGE_TOKEN_INVALID")
        await refused(store.topics.ListTopics(ListTopicsRequest(page_size=-1)), "INVALID_ARGUMENT")


async def test_deleted_topic_is_gone_and_its_successor_has_another_epoch(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("a", LOG)
        assert (await store.topics.DeleteTopic(DeleteTopicRequest(topic="a"))).epoch == made.epoch
        await refused(store.topics.GetTopic(GetTopicRequest(topic="a")), "TOPIC_NOT_FOUND")
        error = await refused(store.topics.DeleteTopic(DeleteTopicRequest(topic="a")), "TOPIC_NOT_FOUND")
        assert error.metadata["topic"] == "a"
        assert (await store.create("a", LOG)).epoch > made.epoch


async def test_conditions_of_a_delete_hold(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("a")
        await store.log.AppendRecords(rows("a", keyed("k", "v")))
        wrong = DeleteTopicRequest(topic="a", if_epoch=made.epoch + 1)
        error = await refused(store.topics.DeleteTopic(wrong), "EPOCH_MISMATCH")
        assert error.metadata["epoch"] == str(made.epoch)
        await refused(store.topics.DeleteTopic(DeleteTopicRequest(topic="a", if_empty=True)), "TOPIC_NOT_EMPTY")
        assert await names(store) == ["a"]
        await store.topics.DeleteTopic(DeleteTopicRequest(topic="a", if_epoch=made.epoch))
        assert await names(store) == []


async def test_a_log_without_live_records_is_empty(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        await store.log.AppendRecords(rows("a", keyed("k", "v")))
        await store.log.DeleteRecords(DeleteRecordsRequest(topic="a", before_seq=2))
        await store.topics.DeleteTopic(DeleteTopicRequest(topic="a", if_empty=True))
        assert await names(store) == []
