"""The client: `async with connect("127.0.0.1:7701") as client:`, with the address of any role.

GetTopology says where the others are. Reads, and writes that carry an idempotency key, are repeated while a role is away;
a plain append is not, since nobody could tell whether it had been done. Errors are the classes of `eddyline.core.errors`.
Threading: one event loop. The client owns its channels; iterators and streams that it gave end with it.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from eddyline.client.append_run import AppendRun
from eddyline.client.append_stream import AppendStream
from eddyline.client.call import CALL_TIMEOUT_S, Retry, call_once
from eddyline.client.events import Position
from eddyline.client.fold import get_entries, range_entries
from eddyline.client.read import ReadPlan, read_log
from eddyline.client.sources import Sources
from eddyline.client.status import role_statuses
from eddyline.client.topology import Channels, find_topology
from eddyline.client.watch import HEARTBEAT_MS, Watch
from eddyline.client.watch_plan import WatchPlan, WatchTopic
from eddyline.core.clock import SystemClock
from eddyline.core.errors import EddylineError
from eddyline.core.read import ALL_RECORDS, RecordFilter
from eddyline.core.routing import shard_of
from eddyline.core.store_link import AppendResult
from eddyline.core.wire import record_to_pb
from eddyline.core.wire_state import topic_config_to_pb, topic_info_from_pb
from eddyline.v1 import log_pb2, topic_pb2, types_pb2
from eddyline.v1.delivery_pb2_grpc import DeliveryServiceStub
from eddyline.v1.fold_pb2_grpc import FoldServiceStub
from eddyline.v1.log_pb2_grpc import LogServiceStub
from eddyline.v1.topic_pb2_grpc import TopicServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    import grpc

    from eddyline.client.status import RoleStatus
    from eddyline.client.topology import Topology
    from eddyline.client.watch_plan import Start
    from eddyline.core.clock import Clock
    from eddyline.core.read import EntryPage
    from eddyline.core.record import Gap, Record
    from eddyline.core.topic import Kind, TopicConfig, TopicInfo
    from eddyline.v1 import delivery_pb2

PAGE_SIZE: Final = 1_000
START: Final = Position(epoch=0, seq=0)


def _nothing(*_: object) -> None:
    """What is done where nobody wants to hear."""


@asynccontextmanager
async def connect(
    address: str,
    *,
    timeout_s: float = 10.0,
    clock: Clock | None = None,
    random_source: random.Random | None = None,
) -> AsyncIterator[Client]:
    """Find the cluster at `address` (`host:port` of any role, or several with commas, asked in turn).

    Raises:
        NotReady: no address answered within `timeout_s`.
    """
    system_clock = clock if clock is not None else SystemClock()
    jitter = random_source if random_source is not None else random.Random()
    retry = Retry(system_clock, random_source=jitter)
    channels = Channels()
    try:
        addresses = [part.strip() for part in address.split(",") if part.strip()]
        topology = await find_topology(channels, addresses, retry=retry, timeout_s=timeout_s)
        yield Client(topology, channels=channels, clock=system_clock, random_source=jitter)
    finally:
        await channels.close()


class Client:
    """One cluster. Made by `connect`."""

    def __init__(self, topology: Topology, *, channels: Channels, clock: Clock, random_source: random.Random) -> None:
        self.topology = topology
        self._channels = channels
        self._clock = clock
        self._random = random_source
        self._retry = Retry(clock, random_source=random_source)

    @property
    def sources(self) -> Sources:
        """What ingest copies from NATS."""
        return Sources(self._channels.any_of(self.topology.ingests, 0, "ingest"), retry=self._retry)

    async def statuses(self) -> tuple[RoleStatus, ...]:
        """How each role does; one that does not answer is in the list too."""
        return await role_statuses(self._channels, self.topology)

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig | None = None) -> TopicInfo:
        """Create a topic; durable and appendable when it returns.

        Raises:
            EddylineError: InvalidName, TopicExists, InvalidConfig, QuotaTopics, ReadOnly.
        """
        topic = topic_pb2.Topic(name=name, kind=_kind_to_pb(kind))
        if config is not None:
            topic.config.CopyFrom(topic_config_to_pb(config))
        request = topic_pb2.CreateTopicRequest(topic=topic)
        answer = await call_once(TopicServiceStub(self._store(name)).CreateTopic(request, timeout=CALL_TIMEOUT_S))
        return topic_info_from_pb(answer.topic)

    async def get_topic(self, name: str) -> TopicInfo:
        """One topic's configuration and state.

        Raises:
            EddylineError: InvalidName, TopicNotFound.
        """
        stub = TopicServiceStub(self._store(name))
        answer = await self._retry.run(
            lambda left_s: stub.GetTopic(topic_pb2.GetTopicRequest(topic=name), timeout=left_s),
            timeout_s=CALL_TIMEOUT_S,
        )
        return topic_info_from_pb(answer.topic)

    async def list_topics(self, name_prefix: str = "") -> AsyncIterator[TopicInfo]:
        """Topics by name, in byte order (shard by shard where there are several)."""
        for address in self.topology.stores:
            stub = TopicServiceStub(self._channels.to(address))
            request = topic_pb2.ListTopicsRequest(page_size=PAGE_SIZE, name_prefix=name_prefix)
            while True:
                answer = await self._retry.run(_lister(stub, request), timeout_s=CALL_TIMEOUT_S)
                for topic in answer.topics:
                    yield topic_info_from_pb(topic)
                if not answer.next_page_token:
                    break
                request.page_token = answer.next_page_token

    async def delete_topic(self, name: str, *, if_epoch: int = 0, if_empty: bool = False) -> int:
        """Delete a topic with all it has; returns its epoch.

        Raises:
            EddylineError: InvalidName, TopicNotFound, EpochMismatch, TopicNotEmpty, ReadOnly.
        """
        request = topic_pb2.DeleteTopicRequest(topic=name, if_epoch=if_epoch, if_empty=if_empty)
        answer = await call_once(TopicServiceStub(self._store(name)).DeleteTopic(request, timeout=CALL_TIMEOUT_S))
        return answer.epoch

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        idempotency_key: str = "",
        expected_head_seq: int | None = None,
        expected_versions: Mapping[bytes, bytes] | None = None,
        create: Kind | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> AppendResult:
        """Append records, all or none. With an `idempotency_key` it is repeated while the store is away.

        `expected_versions`: the version each key must have, empty = not live. `create` makes a missing topic first.

        Raises:
            EddylineError: a refusal (nothing was stored), or CommitUnknown and NotReady, where only a call with the
                same idempotency key settles whether it was.
        """
        request = log_pb2.AppendRecordsRequest(
            topic=topic,
            rows=types_pb2.RecordBatch(records=[record_to_pb(record) for record in records]),
            idempotency_key=idempotency_key,
            expected_head_seq=expected_head_seq,
            expected_versions=[
                log_pb2.ExpectedVersion(key=key, version=version) for key, version in (expected_versions or {}).items()
            ],
        )
        if create is not None:
            request.create.kind = _kind_to_pb(create)
        stub = LogServiceStub(self._store(topic))
        if idempotency_key:
            answer = await self._retry.run(
                lambda left_s: stub.AppendRecords(request, timeout=min(left_s, CALL_TIMEOUT_S)), timeout_s=timeout_s
            )
        else:
            answer = await call_once(stub.AppendRecords(request, timeout=timeout_s))
        return AppendResult(answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated)

    @asynccontextmanager
    async def append_stream(
        self, topic: str, *, create: Kind | None = None, epoch: int = 0
    ) -> AsyncIterator[AppendStream]:
        """Open a stream of appends to one topic, many in flight; leaving it waits for every outcome.

        `epoch`: only to the topic of this epoch; 0 = whichever it is.

        Raises:
            EddylineError: what the stream failed with.
        """
        call = LogServiceStub(self._store(topic)).AppendStream()
        start = log_pb2.AppendStart(topic=topic, epoch=epoch)
        if create is not None:
            start.create.kind = _kind_to_pb(create)
        stream = AppendStream(call)
        try:
            await stream.start(start)
            yield stream
            await stream.finish()
        finally:
            call.cancel()

    def append_run(
        self,
        topic: str,
        *,
        run_id: str,
        create: Kind | None = None,
        on_away: Callable[[EddylineError], None] = _nothing,
        on_back: Callable[[], None] = _nothing,
    ) -> AppendRun:
        """A run of single appends, each stored once, across restarts of the store; `AppendRun.run` does it.

        `run_id`: what its idempotency keys begin with; another run with the same one goes on where this one broke off.
        """
        return AppendRun(
            # A topic that was there once is not made again: its records would be gone.
            lambda epoch: self.append_stream(topic, create=None if epoch else create, epoch=epoch),
            run_id=run_id,
            clock=self._clock,
            random_source=self._random,
            on_away=on_away,
            on_back=on_back,
        )

    def read(
        self,
        topic: str,
        *,
        after: Position | int = START,
        limit: int = 0,
        follow: bool = False,
        record_filter: RecordFilter = ALL_RECORDS,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Read the log behind `after` (exclusive), what was lost as gaps in their places; `limit` 0 = to the head.

        `follow` goes on with what comes, across restarts of the store; `on_retry` hears why a call is repeated,
        `on_resume` that one answers again.

        Raises:
            EddylineError: TopicNotFound, CursorAhead, DataCorrupt.
        """
        place = after if isinstance(after, Position) else Position(0, after)
        plan = ReadPlan(topic, place, limit, follow, record_filter, on_retry, on_resume)
        return read_log(LogServiceStub(self._store(topic)), plan, retry=self._retry)

    def watch(
        self,
        topics: str | WatchTopic | Sequence[str | WatchTopic],
        *,
        start: Start = "snapshot",
        key_prefixes: Sequence[bytes] = (),
        heartbeat_ms: int = HEARTBEAT_MS,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> Watch:
        """Watch topics, for ever, across restarts: nothing is lost and nothing comes twice.

        A topic given by name has the common `start` and `key_prefixes`. `on_retry` hears why a reconnect is
        needed, each time, `on_resume` that it goes on.

        Raises:
            EddylineError: InvalidArgument, InvalidName; when read: TopicNotFound, NotKv, CursorAhead, DataCorrupt.
        """
        named = [topics] if isinstance(topics, str | WatchTopic) else topics
        wanted = [
            topic if isinstance(topic, WatchTopic) else WatchTopic(topic, start, tuple(key_prefixes)) for topic in named
        ]
        return Watch(
            WatchPlan(wanted, heartbeat_ms=heartbeat_ms),
            open_call=self._open_watch,
            clock=self._clock,
            random_source=self._random,
            heartbeat_ms=heartbeat_ms,
            on_retry=on_retry,
            on_resume=on_resume,
        )

    async def get(self, topic: str, key: bytes, *, min_seq: int = 0) -> Record | None:
        """The record that wrote the key's live value; None = not live.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind.
        """
        return (await self.get_many(topic, [key], min_seq=min_seq)).entries[0]

    async def get_many(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        """Live entries of up to 10 000 keys at one point, in the order asked; None = not live.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind, InvalidArgument.
        """
        return await get_entries(FoldServiceStub(self._store(topic)), topic, keys, min_seq=min_seq, retry=self._retry)

    def range(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[Record]:
        """Live entries in byte order of their keys, all at one point; `limit` 0 = all.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind, TooManyScans, ScanExpired.
        """
        stub = FoldServiceStub(self._store(topic))
        return range_entries(stub, topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq)

    def _store(self, topic: str) -> grpc.aio.Channel:
        stores = self.topology.stores
        return self._channels.any_of(stores, shard_of(topic, len(stores)) if stores else 0, "store")

    def _open_watch(
        self, request: delivery_pb2.WatchTopicsRequest, attempt: int
    ) -> grpc.aio.UnaryStreamCall[delivery_pb2.WatchTopicsRequest, delivery_pb2.WatchTopicsResponse]:
        channel = self._channels.any_of(self.topology.deliveries, attempt, "delivery")
        return DeliveryServiceStub(channel).WatchTopics(request)


def _kind_to_pb(kind: Kind) -> topic_pb2.TopicKind.ValueType:
    # The numbers are the same by design.
    return topic_pb2.TopicKind.ValueType(int(kind))


def _lister(
    stub: TopicServiceStub, request: topic_pb2.ListTopicsRequest
) -> Callable[[float], grpc.aio.UnaryUnaryCall[topic_pb2.ListTopicsRequest, topic_pb2.ListTopicsResponse]]:
    return lambda left_s: stub.ListTopics(request, timeout=left_s)
