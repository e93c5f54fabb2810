"""Synchronous calls to a cluster, for Spark's processes, which have no loop.

Errors are the classes of `eddyline.core.errors`. Calls that are safe to repeat are retried while a role is unreachable
(`RetryBudget`), with full jitter and for a bounded time. A `Cluster` owns its channels and is closed by who opened it,
before a function that Spark called returns: nothing pickles one, and no process is forked while one is open.
Threading: one thread; gRPC's own threads read ahead.
Rejected: the client on a loop of its own: a task would need a second thread to feed a generator that Spark pulls.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import grpc

from eddyline.client.transport.call import CALL_TIMEOUT_S, RETRY_CAP_S, STREAM_RETRYABLE, retry_after_s
from eddyline.client.transport.topology import topology_from_pb
from eddyline.core.errors import Code, NotReady
from eddyline.core.model.sharding import shard_of
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import SystemClock
from eddyline.export.split.channels import NO_ACCESS, REFUSED, domain_error, how_dialled, open_channel
from eddyline.v1 import cluster_pb2, log_pb2, segment_pb2, topic_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from google.protobuf.message import Message

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.errors import EddylineError
    from eddyline.core.runtime.clock import Clock

ASK_TIMEOUT_S: Final = 5.0
"""Timeout for each address that may return the topology; then the next address is tried."""
TURN_PATIENCE_S: Final = 1_800.0
"""Elsewhere one patience for all. A store that is there and has more reads than it serves at a time says so
(RESOURCE_EXHAUSTED): the others are tasks of this job as a rule, each of which takes its minutes."""
READ_TIMEOUT_S: Final = 900.0
"""Of one ReadSplit, which is resumed when it is over. Longer than Spark leaves a task's batches unread as a rule, and an
end for a call whose peer is alive and does nothing."""
PAGE_SIZE: Final = 1_000

Answer = TypeVar("Answer")


class RetryBudget:
    """Says whether there is another try, and waits for it."""

    def __init__(self, patience_s: float, *, clock: Clock, random_source: random.Random) -> None:
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=RETRY_CAP_S)
        self._patience_s = patience_s
        self._since_s = clock.monotonic_s()

    def reset(self) -> None:
        """The work made progress: its time begins anew."""
        self._backoff.reset()
        self._since_s = self._clock.monotonic_s()

    def wait(self, error: EddylineError) -> None:
        """Wait for the next try after this failure.

        Raises:
            EddylineError: `error`, where there is none.
        """
        delay_s = self._backoff.next_delay_s(minimum_s=retry_after_s(error))
        patience_s = self._patience_s
        if error.code is Code.RESOURCE_EXHAUSTED:
            patience_s = max(patience_s, TURN_PATIENCE_S)
        waited_s = self._clock.monotonic_s() - self._since_s
        if error.code not in STREAM_RETRYABLE or waited_s + delay_s > patience_s:
            raise error
        threading.Event().wait(delay_s)


class Reached(Protocol):
    """Addresses, credentials and retry budget of a read."""

    @property
    def stores(self) -> tuple[str, ...]:
        """Addresses of roles of the cluster."""
        ...

    @property
    def access(self) -> CallerAccess:
        """The credentials for the roles."""
        ...

    @property
    def patience_s(self) -> int:
        """How long a store may stay away."""
        ...


class Cluster:
    """A cluster, found through any of `seeds`, or known by its `stores`. A context manager; the channels close with it."""

    def __init__(
        self,
        seeds: Sequence[str],
        *,
        patience_s: float,
        stores: Sequence[str] = (),
        access: CallerAccess = NO_ACCESS,
        clock: Clock | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        self._seeds = tuple(seeds)
        self._patience_s = patience_s
        self._access = access
        self._clock = clock if clock is not None else SystemClock()
        self._random = random_source if random_source is not None else random.Random()
        self._channels: dict[str, grpc.Channel] = {}
        self._stores = tuple(stores)
        self._known = self._stores

    @classmethod
    def of(cls, reached: Reached, *, stores: Sequence[str] = ()) -> Cluster:
        """The one that options or a piece of work name."""
        return cls(reached.stores, patience_s=reached.patience_s, stores=stores, access=reached.access)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every channel. It may be used again after it: channels are opened as they are needed."""
        while self._channels:
            _address, channel = self._channels.popitem()
            channel.close()

    def now_ms(self) -> int:
        """This process's wall clock."""
        return self._clock.now_ms()

    def patience(self) -> RetryBudget:
        """Patience for one piece of work."""
        return RetryBudget(self._patience_s, clock=self._clock, random_source=self._random)

    @property
    def access(self) -> CallerAccess:
        """The credentials for the roles."""
        return self._access

    @property
    def stores(self) -> tuple[str, ...]:
        """Addresses of the shards by index, as they were last heard of.

        Raises:
            NotReady: no role of the cluster answered, or none knows of a store.
            Unauthenticated, PermissionDenied: what a role thinks of who asks.
        """
        if not self._stores:
            self._stores = self._find_stores()
        return self._stores

    def store_of(self, topic: str) -> str:
        """Address of the store that owns a topic.

        Raises:
            NotReady: no role of the cluster answered, or none knows of a store.
            Unauthenticated, PermissionDenied: what a role thinks of who asks.
        """
        return self.stores[shard_of(topic, len(self.stores))]

    def look_again(self) -> None:
        """Ask where the stores are before the next call: one did not answer where it was. The topology is requested from
        them, too."""
        self._known = self._stores or self._known
        self._stores = ()

    def get_topic(self, topic: str) -> topic_pb2.Topic:
        """A topic with its state.

        Raises:
            EddylineError: TopicNotFound, and a store that stayed away.
        """
        request = topic_pb2.GetTopicRequest(topic=topic)
        return self._call(topic, "TopicService/GetTopic", request, topic_pb2.GetTopicResponse.FromString).topic

    def list_topics(self, name_prefix: str) -> list[topic_pb2.Topic]:
        """Topics whose names begin so, by name, of all shards.

        Raises:
            EddylineError: a store that stayed away.
        """
        found: list[topic_pb2.Topic] = []
        request = topic_pb2.ListTopicsRequest(page_size=PAGE_SIZE, name_prefix=name_prefix)
        while True:
            # any store gives those of all
            answer = self._call_at(
                lambda: self.stores[0], "TopicService/ListTopics", request, topic_pb2.ListTopicsResponse.FromString
            )
            found += answer.topics
            if not answer.next_page_token:
                return found
            request.page_token = answer.next_page_token

    def find_seq(self, request: log_pb2.FindSeqRequest) -> log_pb2.FindSeqResponse:
        """The first live record at or after a time.

        Raises:
            EddylineError: TopicNotFound, EpochMismatch, DataCorrupt, and a store that stayed away.
        """
        return self._call(request.topic, "LogService/FindSeq", request, log_pb2.FindSeqResponse.FromString)

    def plan_splits(self, request: segment_pb2.PlanSplitsRequest) -> segment_pb2.PlanSplitsResponse:
        """One page of a plan.

        Raises:
            EddylineError: what PlanSplits ends with, and a store that stayed away.
        """
        decode = segment_pb2.PlanSplitsResponse.FromString
        return self._call(request.topic, "SegmentService/PlanSplits", request, decode)

    def read_split(self, request: segment_pb2.ReadSplitRequest) -> Iterator[bytes]:
        """The answers of one attempt to read a split, as bytes, from the store of its topic. A caller that stops early must
        close it.

        Raises:
            EddylineError: what ReadSplit ends with; NotReady and Deadline where it was cut off.
        """
        method: grpc.UnaryStreamMultiCallable[segment_pb2.ReadSplitRequest, bytes]
        method = self._channel(self.store_of(request.topic)).unary_stream(
            "/eddyline.v1.SegmentService/ReadSplit",
            request_serializer=segment_pb2.ReadSplitRequest.SerializeToString,
        )
        call = method(request, timeout=READ_TIMEOUT_S)
        try:
            yield from call
        except grpc.RpcError as error:
            raise domain_error(error) from None
        finally:
            call.cancel()

    def _call(self, topic: str, method: str, request: Message, decode: Callable[[bytes], Answer]) -> Answer:
        return self._call_at(lambda: self.store_of(topic), method, request, decode)

    def _call_at(
        self, address: Callable[[], str], method: str, request: Message, decode: Callable[[bytes], Answer]
    ) -> Answer:
        patience = self.patience()
        while True:
            try:
                return self._call_once(address(), method, request, decode, CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                patience.wait(domain_error(error))
                self.look_again()

    def _call_once(
        self, address: str, method: str, request: Message, decode: Callable[[bytes], Answer], timeout_s: float
    ) -> Answer:
        call: grpc.UnaryUnaryMultiCallable[Message, Answer] = self._channel(address).unary_unary(
            f"/eddyline.v1.{method}", request_serializer=_serialized, response_deserializer=decode
        )
        return call(request, timeout=timeout_s)

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._access)
        return channel

    def _find_stores(self) -> tuple[str, ...]:
        patience = self.patience()
        while True:
            for seed in dict.fromkeys((*self._seeds, *self._known)):
                request, decode = cluster_pb2.GetTopologyRequest(), cluster_pb2.GetTopologyResponse.FromString
                try:
                    answer = self._call_once(seed, "ClusterService/GetTopology", request, decode, ASK_TIMEOUT_S)
                except grpc.RpcError as error:
                    failure = domain_error(error)
                    if failure.code in REFUSED:
                        raise failure from None
                    continue
                if answer.shards:
                    return topology_from_pb(answer, seed).stores
                failure = NotReady(f"{seed} lists no store")
            tried = f"{', '.join(self._seeds)} (option store), {how_dialled(self._access)}"
            patience.wait(NotReady(f"no answer from {tried}: {failure.message}"))


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
