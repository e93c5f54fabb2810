"""Two stores, ingest and delivery as real processes with keys: every entry point answers as the topic's owner does."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc
import pytest

from eddyline.core.server.health import STORE_LEG
from eddyline.core.telemetry import names as telemetry
from eddyline.core.transport.status import unwrap
from eddyline.v1 import (
    fold_pb2,
    fold_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    segment_pb2,
    segment_pb2_grpc,
    topic_pb2,
    topic_pb2_grpc,
)
from tests.store.rpc.requests import append_step, keyed, rows
from tests.support.access import Keys, calling, secret_of
from tests.support.cluster.processes import delivery_at, free_address, nats_server, process, serving
from tests.support.store.served import answers_of
from tests.support.store.shards import names_on
from tests.support.telemetry.scrape import scraped_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable
    from pathlib import Path

    from google.protobuf.message import Message

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.v1 import types_pb2
    from tests.support.telemetry.scrape import Scrape

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COUNT = 2
TOPICS = tuple(names_on(shard, COUNT, 1)[0] for shard in range(COUNT))
LONG_S = 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One way into the cluster, of one caller."""

    channel: grpc.aio.Channel

    @property
    def topics(self) -> topic_pb2_grpc.TopicServiceStub:
        return topic_pb2_grpc.TopicServiceStub(self.channel)

    @property
    def log(self) -> log_pb2_grpc.LogServiceStub:
        return log_pb2_grpc.LogServiceStub(self.channel)

    @property
    def fold(self) -> fold_pb2_grpc.FoldServiceStub:
        return fold_pb2_grpc.FoldServiceStub(self.channel)

    @property
    def segments(self) -> segment_pb2_grpc.SegmentServiceStub:
        return segment_pb2_grpc.SegmentServiceStub(self.channel)


class Cluster:
    """The processes, and where they are."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.keys = Keys(folder)
        self.root = self.keys.add("root", "read", "write", "delete", "admin")
        self.keys.add("roles", "role")
        own = folder / "own.key"
        own.write_text(secret_of("roles"), encoding="utf-8")
        self.stores = tuple(free_address() for _ in range(COUNT))
        self.ingest, self.delivery = free_address(), free_address()
        self.metrics = {part: free_address() for part in ("store 0", "store 1", "ingest", "delivery")}
        self.setting = ",".join(self.stores)
        self.secrets = {
            "EDDYLINE_COMMON_KEYS_FILE": str(self.keys.path),
            "EDDYLINE_COMMON_KEY_FILE": str(own),
            # a process of another test that took one of our ports is told from ours
            "EDDYLINE_COMMON_CLUSTER_ID": f"forwarding-{os.getpid()}",
        }
        self.common = {"EDDYLINE_COMMON_STORE_ADDRESSES": self.setting, **self.secrets}
        self.running: list[asyncio.subprocess.Process] = []
        self._folder = folder
        self._stack = stack

    async def start(self) -> None:
        for shard, address in enumerate(self.stores):
            settings = {
                "EDDYLINE_STORE_LISTEN": address,
                "EDDYLINE_STORE_SHARD_INDEX": str(shard),
                "EDDYLINE_STORE_DATA_DIR": str(self._folder / f"store-{shard}"),
                "EDDYLINE_STORE_METRICS_LISTEN": self.metrics[f"store {shard}"],
            }
            started = process("eddyline.store", **self.common, **settings)
            self.running.append(await self._stack.enter_async_context(started))
        nats_url = await self._stack.enter_async_context(nats_server(self._folder))
        settings = {
            "EDDYLINE_INGEST_LISTEN": self.ingest,
            "EDDYLINE_INGEST_NATS_URL": nats_url,
            "EDDYLINE_INGEST_METRICS_LISTEN": self.metrics["ingest"],
        }
        await self._stack.enter_async_context(process("eddyline.ingest", **self.common, **settings))
        settings = {**self.secrets, "EDDYLINE_DELIVERY_METRICS_LISTEN": self.metrics["delivery"]}
        await self._stack.enter_async_context(delivery_at(self.delivery, self.setting, **settings))
        for address in (*self.stores, self.ingest):
            await serving(address)
        for address in (self.ingest, self.delivery):  # they are ready by any store of several
            await serving(address, STORE_LEG)
        assert [store.returncode for store in self.running] == [None] * COUNT

    async def entry(self, address: str, access: CallerAccess | None = None) -> Entry:
        """A way in, of the caller who may do everything, or of another."""
        return Entry(await self._stack.enter_async_context(calling(address, access or self.root)))


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster(folder, stack)
        await made.start()
        yield made


async def reason_of(answer: Awaitable[object]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await answer
    return unwrap(told.value).reason


class WithRows(Protocol):
    """A frame of a stream."""

    @property
    def rows(self) -> types_pb2.RecordBatch: ...


async def records_of(stream: AsyncIterable[WithRows]) -> tuple[list[types_pb2.Record], str]:
    """A stream's records, wherever its frames are cut (a store's upkeep may cut them anew), and the reason it ended for."""
    frames, ended = await answers_of(stream)
    return [record for frame in frames for record in frame.rows.records], ended


async def read_on(
    stream: grpc.aio.UnaryStreamCall[log_pb2.StreamRecordsRequest, log_pb2.StreamRecordsResponse],
) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def steps(topic: str, *values: str) -> AsyncIterator[log_pb2.AppendStreamRequest]:
    yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=topic))
    for value in values:
        yield append_step(keyed("k", value))


async def topics_are_one_s_whoever_is_asked(made: Cluster) -> None:
    """Made, listed and found through every role."""
    entries = [await made.entry(address) for address in (*made.stores, made.ingest, made.delivery)]
    for number, entry in enumerate(entries):
        for shard in range(COUNT):
            name = names_on(shard, COUNT, len(entries))[number]
            topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_KV)
            await entry.topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
            assert (
                await reason_of(entry.topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))) == "TOPIC_EXISTS"
            )
    lists = []
    for entry in entries:
        token, names = "", list[str]()
        while token or not names:
            page = await entry.topics.ListTopics(topic_pb2.ListTopicsRequest(page_size=3, page_token=token))
            names += [topic.name for topic in page.topics]
            if not (token := page.next_page_token):
                break
        lists.append(names)
        assert await reason_of(entry.topics.GetTopic(topic_pb2.GetTopicRequest(topic="none"))) == "TOPIC_NOT_FOUND"
    assert len(lists[0]) == COUNT * len(entries)
    assert all(names == sorted(lists[0]) for names in lists)


async def appends_are_one_s_whoever_is_asked(made: Cluster) -> None:
    """By single calls and by streams, through both stores and ingest; delivery says where to go."""
    entries = [await made.entry(address) for address in (*made.stores, made.ingest)]
    for topic in TOPICS:
        seq = 0
        for entry in entries:
            assert (await entry.log.AppendRecords(rows(topic, keyed("k", "v")))).first_seq == seq + 1
            answers, ended = await answers_of(entry.log.AppendStream(steps(topic, *map(str, range(20)))))
            assert ([answer.last_seq for answer in answers], ended) == ([*range(seq + 2, seq + 22)], "")
            seq += 21
    reader = await made.entry(made.delivery)
    assert await reason_of(reader.log.AppendRecords(rows(TOPICS[0], keyed("k", "v")))) == "SERVED_ELSEWHERE"
    writer = await made.entry(made.ingest)
    assert await reason_of(writer.log.ReadRecords(log_pb2.ReadRecordsRequest(topic=TOPICS[0]))) == "SERVED_ELSEWHERE"


async def reads_are_the_owner_s_whoever_is_asked(made: Cluster) -> None:
    """Through both stores and delivery, record by record."""
    entries = [await made.entry(address) for address in (*made.stores, made.delivery)]
    for topic in TOPICS:
        found: list[list[object]] = []
        for entry in entries:
            streamed: list[AsyncIterable[WithRows]] = [
                entry.log.StreamRecords(log_pb2.StreamRecordsRequest(topic=topic)),
                entry.fold.RangeEntries(fold_pb2.RangeEntriesRequest(topic=topic)),
                entry.fold.KeyHistory(fold_pb2.KeyHistoryRequest(topic=topic, key=b"k")),
            ]
            read = await entry.log.ReadRecords(log_pb2.ReadRecordsRequest(topic=topic))
            single: list[Awaitable[Message]] = [
                entry.log.FindSeq(log_pb2.FindSeqRequest(topic=topic, commit_time_ms=1)),
                entry.fold.GetEntry(fold_pb2.GetEntryRequest(topic=topic, key=b"k")),
                entry.fold.BatchGetEntries(fold_pb2.BatchGetEntriesRequest(topic=topic, keys=[b"k", b"l"])),
            ]
            rows_read = [row for item in read.items for row in item.rows.records]
            streams, singles = [await records_of(stream) for stream in streamed], [await call for call in single]
            found.append([rows_read, read.head_seq, streams, singles])
            assert len(rows_read) == read.head_seq > 0
            missing = fold_pb2.GetEntryRequest(topic=topic, key=b"none")
            assert await reason_of(entry.fold.GetEntry(missing)) == "KEY_NOT_FOUND"
        assert found[0] == found[1] == found[2]
    for address in made.stores:
        entry = await made.entry(address)
        for topic in TOPICS:
            plan = await entry.segments.PlanSplits(segment_pb2.PlanSplitsRequest(topic=topic))
            assert len(plan.splits) == 1
            frames, ended = await answers_of(entry.topics.EraseTopic(topic_pb2.EraseTopicRequest(topic=topic)))
            assert (frames[-1].erased, ended) == (True, "")


async def keys_hold_at_every_way_in(made: Cluster) -> None:
    """A key of one topic has that one everywhere, and the store that owns it knows who calls."""
    mine = made.keys.add("mine", "read", "write", prefixes=(TOPICS[1],))
    for address in (*made.stores, made.ingest, made.delivery):
        entry = await made.entry(address, mine)
        async with asyncio.timeout(LONG_S):  # the keys file is looked at each second
            while True:
                try:
                    page = await entry.topics.GetTopic(topic_pb2.GetTopicRequest(topic=TOPICS[1]))
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                    await asyncio.sleep(0.1)
        assert page.topic.name == TOPICS[1]
        assert await reason_of(entry.topics.GetTopic(topic_pb2.GetTopicRequest(topic=TOPICS[0]))) == "PERMISSION_DENIED"
        deleted = topic_pb2.DeleteTopicRequest(topic=TOPICS[1])
        assert await reason_of(entry.topics.DeleteTopic(deleted)) == "PERMISSION_DENIED"


async def who_is_dead_is_unavailable_and_the_rest_goes_on(made: Cluster) -> None:
    """The owner is killed under an open stream; the other's topics do not notice."""
    entries = [await made.entry(address) for address in (made.stores[0], made.delivery)]
    following = log_pb2.StreamRecordsRequest(topic=TOPICS[1], follow=True)
    streams = [entry.log.StreamRecords(following) for entry in entries]
    for stream in streams:
        await stream.read()
    made.running[1].send_signal(signal.SIGKILL)
    await made.running[1].wait()
    async with asyncio.timeout(LONG_S):
        for stream in streams:
            assert await reason_of(read_on(stream)) == "STORE_UNREACHABLE"
        for entry in entries:
            for topic, reason in ((TOPICS[0], ""), (TOPICS[1], "STORE_UNREACHABLE")):
                read = log_pb2.ReadRecordsRequest(topic=topic)
                if reason:
                    assert await reason_of(entry.log.ReadRecords(read)) == reason
                else:
                    assert (await entry.log.ReadRecords(read)).head_seq > 0
            assert await reason_of(entry.topics.ListTopics(topic_pb2.ListTopicsRequest())) == "STORE_UNREACHABLE"


async def each_role_counts_what_it_passed_on(made: Cluster) -> None:
    """By the owner's shard: a store none to itself; what the owner refused apart."""
    names = {
        "store 0": telemetry.STORE_FORWARDED_CALLS,
        "store 1": telemetry.STORE_FORWARDED_CALLS,
        "ingest": telemetry.INGEST_FORWARDED_CALLS,
        "delivery": telemetry.DELIVERY_FORWARDED_CALLS,
    }
    for part, name in names.items():

        def has_all(seen: Scrape, name: str = name, part: str = part) -> bool:
            """A text may be half a second old."""
            counts = seen.series(name)
            others = [str(shard) for shard in range(COUNT) if part != f"store {shard}"]
            return all(counts["ok", shard] for shard in others) and any(counts["refused", shard] for shard in others)

        seen = await scraped_until(made.metrics[part], has_all)
        counts = seen.series(name)
        assert {shard for _, shard in counts} == {str(shard) for shard in range(COUNT)}
        assert not any(value for (_, shard), value in counts.items() if part == f"store {shard}")
        assert not any(value for (outcome, _), value in counts.items() if outcome == "unreachable")


async def test_every_way_into_a_cluster_of_two_shards_answers_right(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        await topics_are_one_s_whoever_is_asked(made)
        await appends_are_one_s_whoever_is_asked(made)
        await reads_are_the_owner_s_whoever_is_asked(made)
        await keys_hold_at_every_way_in(made)
        await each_role_counts_what_it_passed_on(made)
        await who_is_dead_is_unavailable_and_the_rest_goes_on(made)
