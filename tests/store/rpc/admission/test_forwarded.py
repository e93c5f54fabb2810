"""Two stores of one cluster: each answers as the owner does, or reports that it cannot be reached."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.client.transport.topology import Topology
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import SourceExists, SourceNotFound, TopicNotFound, WrongShard
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.store_link.open import open_link
from eddyline.core.store_link.sharded import ShardedLink, shards_of
from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY, FORWARDED_KEY
from eddyline.core.transport.status import unwrap
from eddyline.v1 import apply_pb2, fold_pb2, log_pb2, segment_pb2, topic_pb2
from eddyline.v1.log_pb2 import AppendStart, AppendStreamRequest, ReadRecordsRequest, StreamRecordsRequest
from eddyline.v1.topic_pb2 import CreateTopicRequest, DeleteTopicRequest, GetTopicRequest, ListTopicsRequest, Topic
from tests.store.rpc.requests import append_of, append_step, appends_step, independent_start, keyed, rows
from tests.support.clients.clients import client_at
from tests.support.cluster.processes import free_address
from tests.support.hang import HANG_S
from tests.support.store.served import CLUSTER_ID, answers_of, refused, served_store
from tests.support.store.shard_pair import SHARDS, served_pair, topic_on
from tests.support.store.shards import names_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
MARKED = ((FORWARDED_KEY, CLUSTER_ID),)


async def raw_error(answer: Awaitable[object]) -> tuple[object, ...]:
    """All that a refusal brings."""
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await answer
    error = told.value
    return error.code(), error.details(), tuple(error.trailing_metadata() or ())


async def steps(*all_steps: AppendStreamRequest) -> AsyncIterator[AppendStreamRequest]:
    for step in all_steps:
        yield step


def start(topic: str) -> AppendStreamRequest:
    return AppendStreamRequest(start=AppendStart(topic=topic))


async def test_a_topic_is_made_used_and_deleted_through_the_other_store(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (wrong, right):
        topic = topic_on(1)
        made = (await wrong.topics.CreateTopic(CreateTopicRequest(topic=Topic(name=topic, kind=KV)))).topic
        assert made == (await right.topics.GetTopic(GetTopicRequest(topic=topic), metadata=MARKED)).topic
        assert (await wrong.log.AppendRecords(rows(topic, keyed("a", "1"), keyed("b", "2")))).last_seq == 2
        # who does not own it has nothing of it
        with pytest.raises(TopicNotFound):
            await wrong.link.get_topic(topic)
        reads: list[Callable[[ServedStore], Awaitable[Message]]] = [
            lambda store: store.log.ReadRecords(ReadRecordsRequest(topic=topic)),
            lambda store: store.log.FindSeq(log_pb2.FindSeqRequest(topic=topic, commit_time_ms=1)),
            lambda store: store.fold.GetEntry(fold_pb2.GetEntryRequest(topic=topic, key=b"b")),
            lambda store: store.fold.BatchGetEntries(fold_pb2.BatchGetEntriesRequest(topic=topic, keys=[b"a", b"b"])),
            lambda store: store.segments.PlanSplits(segment_pb2.PlanSplitsRequest(topic=topic)),
        ]
        for read in reads:
            assert (answer := await read(wrong)) == await read(right)
            assert answer.ByteSize() > 0
        streams: list[Callable[[ServedStore], AsyncIterable[Message]]] = [
            lambda store: store.log.StreamRecords(StreamRecordsRequest(topic=topic)),
            lambda store: store.fold.RangeEntries(fold_pb2.RangeEntriesRequest(topic=topic)),
            lambda store: store.fold.KeyHistory(fold_pb2.KeyHistoryRequest(topic=topic, key=b"a")),
            lambda store: store.fold.VerifyFold(fold_pb2.VerifyFoldRequest(topic=topic)),
        ]
        for stream in streams:
            frames, ended = await answers_of(stream(wrong))
            assert (frames, ended) == await answers_of(stream(right))
            assert frames
            assert not ended
        await wrong.topics.DeleteTopic(DeleteTopicRequest(topic=topic))
        await refused(right.topics.GetTopic(GetTopicRequest(topic=topic)), "TOPIC_NOT_FOUND")


async def test_errors_are_the_owner_s_to_the_byte(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (wrong, right):
        topic = topic_on(1)
        calls: list[Callable[[ServedStore], Awaitable[object]]] = [
            lambda store: store.topics.GetTopic(GetTopicRequest(topic=topic)),
            lambda store: store.topics.CreateTopic(CreateTopicRequest(topic=Topic(name=topic))),
            lambda store: store.log.AppendRecords(rows(topic, keyed("a", "1"))),
            lambda store: anext(aiter(store.log.StreamRecords(StreamRecordsRequest(topic=topic)))),
            lambda store: anext(aiter(store.log.AppendStream(steps(start(topic))))),
        ]
        for call in calls:
            assert await raw_error(call(wrong)) == await raw_error(call(right))


async def test_a_stream_of_appends_is_acknowledged_in_order_and_ends_as_the_owner_ends_it(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (wrong, right):
        topic = topic_on(1)
        await right.create(topic, LOG)
        many = [append_step(keyed("k", str(number))) for number in range(100)]
        answers, ended = await answers_of(wrong.log.AppendStream(steps(start(topic), *many)))
        assert ([answer.first_seq for answer in answers], ended) == (list(range(1, 101)), "")
        # what comes before a bad step is acknowledged, what comes behind it is not stored
        answers, ended = await answers_of(wrong.log.AppendStream(steps(start(topic), *many, start(topic), *many)))
        assert (len(answers), ended) == (100, "STREAM_ORDER")
        assert await right.head(topic) == 200
        assert (await answers_of(wrong.log.AppendStream(steps(append_step(keyed("k", "v"))))))[1] == "STREAM_ORDER"
        assert await answers_of(wrong.log.AppendStream(steps())) == ([], "")


async def test_several_appends_in_a_message_have_the_owner_s_outcomes(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (wrong, right):
        topic = topic_on(1)
        await right.create(topic, LOG)
        several = appends_step(
            append_of(keyed("k", "1")), append_of(keyed("k", "2"), head=9), append_of(keyed("k", "3"))
        )
        answers, ended = await answers_of(wrong.log.AppendStream(steps(independent_start(topic), several, several)))
        assert ended == ""
        assert [answer.appends_max > 0 for answer in answers] == [True, False]
        told = [(outcome.first_seq, outcome.error.reason) for answer in answers for outcome in answer.outcomes]
        assert told == [(1, ""), (0, "HEAD_MISMATCH"), (2, ""), (3, ""), (0, "HEAD_MISMATCH"), (4, "")]
        assert await right.head(topic) == 4


async def test_invalid_message_ends_a_stream_after_the_ones_before_it(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (wrong, right):
        topic = topic_on(1)
        await right.create(topic, LOG)
        calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        calls = wrong.channel.stream_stream("/eddyline.v1.LogService/AppendStream")
        call = calls()
        for step in (start(topic), append_step(keyed("k", "v"))):
            await call.write(step.SerializeToString())
        await call.write(b"\xff\xff")
        assert log_pb2.AppendStreamResponse.FromString(await call.read()).first_seq == 1  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await call.read()
        assert unwrap(told.value).reason == "INVALID_ARGUMENT"


async def test_lists_are_of_the_whole_cluster_page_by_page(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        names = sorted(f"topic-{name}" for shard in (0, 1) for name in names_on(shard, SHARDS, 7))
        for name in names:
            await pair[0].create(name, LOG)
        await pair[1].create("other", LOG)
        for store in pair:
            for size in (1, 2, 5, 14, 100):
                found, token, pages = list[str](), "", 0
                while True:
                    asked = ListTopicsRequest(page_size=size, page_token=token, name_prefix="topic-")
                    page = await store.topics.ListTopics(asked)
                    assert len(page.topics) <= size
                    found += [topic.name for topic in page.topics]
                    token, pages = page.next_page_token, pages + 1
                    if not token:
                        break
                assert (found, pages) == (names, -(-len(names) // size))
        await refused(pair[0].topics.ListTopics(ListTopicsRequest(page_token="x")), "PAGE_TOKEN_INVALID")
        own = await pair[0].topics.ListTopics(ListTopicsRequest(), metadata=MARKED)
        assert 0 < len(own.topics) < len(names) + 1


async def test_the_client_lists_every_topic_once(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        names = sorted(topic_on(shard) for shard in range(SHARDS))
        for name in names:
            await pair[0].create(name, LOG)
        async with client_at(Topology(CLUSTER_ID, tuple(store.address for store in pair), (), ())) as client:
            for prefix in ("", "t"):
                assert [topic.name async for topic in client.list_topics(prefix)] == names


async def test_a_call_that_was_forwarded_already_is_never_forwarded_again(tmp_path: Path) -> None:
    # each believes that the other is the other shard, and of itself what the other believes
    ours, theirs = free_address(), free_address()
    topic = topic_on(1)
    async with (
        served_store(tmp_path / "a", shard_index=0, addresses=(ours, theirs)) as first,
        served_store(tmp_path / "b", shard_index=0, addresses=(theirs, ours)) as second,
    ):
        for store in (first, second):
            error = await refused(store.topics.GetTopic(GetTopicRequest(topic=topic)), "WRONG_SHARD")
            assert error.metadata == {"shardIndex": "0", "shardCount": "2", "ownerIndex": "1"}
            assert (await answers_of(store.log.StreamRecords(StreamRecordsRequest(topic=topic))))[1] == "WRONG_SHARD"
            assert (await answers_of(store.log.AppendStream(steps(start(topic)))))[1] == "WRONG_SHARD"


async def test_a_topic_of_another_shard_is_not_followed_here(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (first, second):
        mine, foreign = topic_on(0), topic_on(1)
        for name in (mine, foreign):
            await first.create(name, LOG)

        async def follow(*topics: str) -> AsyncIterator[apply_pb2.FollowTopicsRequest]:
            yield apply_pb2.FollowTopicsRequest(credit_bytes=1 << 20)
            for number, topic in enumerate(topics, 1):
                yield apply_pb2.FollowTopicsRequest(add=apply_pb2.FollowAdd(follow_id=number, topic=topic))

        answers, ended = await answers_of(first.apply.FollowTopics(follow(mine, foreign)))
        assert ended == "WRONG_SHARD"
        assert all(answer.follow_id == 1 for answer in answers)
        call = second.apply.FollowTopics(follow(foreign))
        assert (await anext(aiter(call))).started.topic.name == foreign
        call.cancel()


async def test_every_store_finds_a_source_at_the_shard_of_its_topic(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as (first, second):
        topic, other = topic_on(1), topic_on(0)
        for name in (topic, other):
            await first.create(name, KV)
        definition = apply_pb2.SourceDefinition(name="s", topic=topic, bucket="b")
        for store in (first, second):
            await store.apply.PutSource(apply_pb2.PutSourceRequest(definition=definition))
            found = await store.apply.GetSource(apply_pb2.ApplyServiceGetSourceRequest(source="s"))
            assert (found.source.definition.topic, found.source.definition.bucket) == (topic, "b")
            elsewhere = apply_pb2.SourceDefinition(name="s", topic=other, bucket="b")
            error = await refused(
                store.apply.PutSource(apply_pb2.PutSourceRequest(definition=elsewhere)), "SOURCE_EXISTS"
            )
            assert error.metadata["fields"] == "topic"
            await refused(
                store.apply.GetSource(apply_pb2.ApplyServiceGetSourceRequest(source="none")), "SOURCE_NOT_FOUND"
            )
            await refused(store.apply.PutSource(apply_pb2.PutSourceRequest()), "INVALID_ARGUMENT")
        taken = apply_pb2.AcquireLeaseRequest(source="s", holder="h", lease_ms=1000)
        assert (await first.apply.AcquireLease(taken)).fence == 1
        listed = [
            [source.definition.name for source in (await store.apply.ListSources(_sources())).sources]
            for store in (first, second)
        ]
        assert listed == [[], ["s"]]  # the shard's own


def _sources() -> apply_pb2.ApplyServiceListSourcesRequest:
    return apply_pb2.ApplyServiceListSourcesRequest()


async def test_a_role_s_link_knows_the_shards_and_asks_each_for_itself(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        common = CommonSettings(cluster_id=CLUSTER_ID, store_addresses=tuple(store.address for store in pair))
        async with open_link(common, CallerAccess()) as link:
            for shard in range(SHARDS):
                await link.create_topic(topic_on(shard), Kind.KV, TopicConfig())
                definition = SourceDefinition(f"s{shard}", topic_on(shard), "b")
                assert (await link.put_source(definition))[1]
                assert not (await link.put_source(definition))[1]
            assert [source.definition.name for source in await link.list_sources()] == ["s0", "s1"]
            with pytest.raises(SourceExists):
                await link.put_source(SourceDefinition("s0", topic_on(1), "b"))
            await link.delete_source("s1")
            with pytest.raises(SourceNotFound):
                await link.get_source("s1")
            # one that computed the wrong shard hears of it
            with pytest.raises(WrongShard):
                await ShardedLink(shards_of(link), shard_by_topic=lambda _topic: 0).get_topic(topic_on(1))


async def test_an_owner_that_is_away_is_unavailable_and_nothing_hangs(tmp_path: Path) -> None:
    addresses = (free_address(), free_address())
    topic = topic_on(1)
    async with served_store(tmp_path / "0", shard_index=0, addresses=addresses) as store, asyncio.timeout(HANG_S):
        error = await refused(store.topics.GetTopic(GetTopicRequest(topic=topic)), "STORE_UNREACHABLE")
        assert error.metadata == {"shardIndex": "1"}
        await refused(store.log.AppendRecords(rows(topic, keyed("a", "1"))), "STORE_UNREACHABLE")
        await refused(store.topics.ListTopics(ListTopicsRequest()), "STORE_UNREACHABLE")
        await refused(store.apply.GetSource(apply_pb2.ApplyServiceGetSourceRequest(source="s")), "STORE_UNREACHABLE")
        assert (await answers_of(store.log.StreamRecords(StreamRecordsRequest(topic=topic))))[1] == "STORE_UNREACHABLE"
        assert (await answers_of(store.log.AppendStream(steps(start(topic)))))[1] == "STORE_UNREACHABLE"
        await store.create(topic_on(0), LOG)
        assert await store.head(topic_on(0)) == 0


async def test_store_of_another_cluster_refuses_forwarded_calls(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for key in (CLUSTER_ID_KEY, FORWARDED_KEY):
            await refused(
                store.topics.GetTopic(GetTopicRequest(topic="t"), metadata=((key, "another"),)), "CLUSTER_MISMATCH"
            )
