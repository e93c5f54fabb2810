"""A topic's store as a task sees it: one blocking channel, opened in the process that uses it, never handed to another.

Found by asking any role where the shards are, anew whenever it is opened, so that a store that came back elsewhere is
found. A writer's position is found by appends that the store must refuse (`NOWHERE` is the position of no writer): the
refusal carries the writer's position, and a last append that names this position is answered once it is durable.
Failure: what the store said, as its domain error. Nothing is repeated here.
Threading: one thread, and gRPC's own, which sends what `Appends` was given.
"""

from __future__ import annotations

from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from eddyline.core.codec.records import fill_columns
from eddyline.core.codec.state import topic_info_from_pb
from eddyline.core.errors import NotReady, StaleFence, StalePosition, TopicExists
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import Column
from eddyline.core.records.record import Op
from eddyline.export.split.calls import Cluster
from eddyline.export.split.channels import NO_ACCESS, domain_error, open_channel
from eddyline.v1 import log_pb2, topic_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from google.protobuf.message import Message

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.model.topic import TopicInfo

    Answer = TypeVar("Answer", bound=Message)

CALL_TIMEOUT_S: Final = 10.0
"""Of the small calls; a role that takes longer is as good as gone."""
STREAM_TIMEOUT_S: Final = 60.0
"""Of a stream of appends. A store that hangs is noticed after it; one whose rows come slower is opened anew each minute."""
PLACE_TRIES_MAX: Final = 16
"""Another attempt of the same partition may move the writer meanwhile."""
NOWHERE: Final = b"?"
"""No writer stands here: `Position.encoded` is longer."""


class StoredPosition(NamedTuple):
    """A writer's durable position; empty `position` and fence 0 = it never wrote."""

    fence: int
    position: bytes


class Acknowledged(NamedTuple):
    """The answer to one append. `first_seq` 0 = known by its position."""

    first_seq: int
    last_seq: int
    is_known: bool


class StoreChannel:
    """One topic's store. `open_store_channel` makes and closes it."""

    def __init__(self, channel: grpc.Channel, topic: str) -> None:
        self._channel = channel
        self._topic = topic

    def get_topic(self) -> TopicInfo:
        """The topic. Raises: EddylineError: TopicNotFound, NotReady, and what else the store says."""
        request = topic_pb2.GetTopicRequest(topic=self._topic)
        answer = _ask(self._channel, "TopicService/GetTopic", request, topic_pb2.GetTopicResponse)
        return topic_info_from_pb(answer.topic)

    def create_topic(self, kind: Kind) -> TopicInfo:
        """The topic, made where it is missing. Raises: EddylineError: QuotaTopics, and what else the store says."""
        made = topic_pb2.Topic(name=self._topic, kind=_KINDS[kind])
        request = topic_pb2.CreateTopicRequest(topic=made)
        try:
            answer = _ask(self._channel, "TopicService/CreateTopic", request, topic_pb2.CreateTopicResponse)
        except TopicExists:
            return self.get_topic()
        return topic_info_from_pb(answer.topic)

    def place_of(self, writer: str, *, kind: Kind, epoch: int) -> StoredPosition:
        """Return a writer's position once it is as durable as the topic's class says.

        Raises:
            EddylineError: EpochMismatch, NotReady, CommitUnknown, and what else the store says.
        """
        fence, position = 0, NOWHERE
        probe = _PROBES[kind]
        for _ in range(PLACE_TRIES_MAX):
            move = types_pb2.WriterPosition(writer=writer, fence=fence, previous=NOWHERE, new=position)
            request = log_pb2.AppendRecordsRequest(topic=self._topic, epoch=epoch, writer=move)
            fill_columns(request.columns, probe)
            try:
                _ask(self._channel, "LogService/AppendRecords", request, log_pb2.AppendRecordsResponse)
            except StaleFence as error:
                fence, position = error.fence, NOWHERE
            except StalePosition as error:
                position = error.position
                if not position:
                    return StoredPosition(fence, b"")
            else:
                return StoredPosition(fence, position)
        raise NotReady(f"the position of writer {writer} changed {PLACE_TRIES_MAX} times while it was read")

    @contextmanager
    def appends(self, *, epoch: int) -> Iterator[Appends]:
        """A stream of appends to the topic of this epoch; what was not acknowledged when it is left has no known outcome."""
        call = Appends(self._channel)
        try:
            call.put(log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=self._topic, epoch=epoch)))
            yield call
        finally:
            call.close()


class Appends:
    """One AppendStream call. Its caller bounds what is under way."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._outbox: SimpleQueue[log_pb2.AppendStreamRequest | None] = SimpleQueue()
        stream = channel.stream_stream(
            "/eddyline.v1.LogService/AppendStream",
            request_serializer=log_pb2.AppendStreamRequest.SerializeToString,
            response_deserializer=log_pb2.AppendStreamResponse.FromString,
        )
        self._call = stream(iter(self._outbox.get, None), timeout=STREAM_TIMEOUT_S)

    def put(self, request: log_pb2.AppendStreamRequest) -> None:
        """Send a step; does not wait."""
        self._outbox.put(request)

    def append(self, batch: Batch, move: types_pb2.WriterPosition) -> None:
        """Send an append that makes this move."""
        request = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(writer=move))
        fill_columns(request.append.columns, batch)
        self.put(request)

    def answer(self) -> Acknowledged:
        """Wait for the answer to the oldest append that has none.

        Raises:
            EddylineError: what ended the stream.
        """
        try:
            answer: log_pb2.AppendStreamResponse = next(self._call)
        except grpc.RpcError as error:
            raise domain_error(error) from None
        except StopIteration:
            raise NotReady("the stream was ended by the server before its answers") from None
        return Acknowledged(answer.first_seq, answer.last_seq, answer.deduplicated)

    def close(self) -> None:
        """End the call, whatever is under way."""
        self._outbox.put(None)
        self._call.cancel()


@contextmanager
def open_store_channel(stores: Sequence[str], topic: str, access: CallerAccess = NO_ACCESS) -> Iterator[StoreChannel]:
    """A link to the store that owns `topic`, found by the addresses of any roles.

    Raises:
        NotReady: none of them answers, or they name no store.
        Unauthenticated, PermissionDenied: what a role thinks of who asks.
    """
    with Cluster(stores, patience_s=0, access=access) as cluster:
        address = cluster.store_of(topic)
    with open_channel(address, access) as channel:
        yield StoreChannel(channel, topic)


def _ask(channel: grpc.Channel, method: str, request: Message, answer: type[Answer]) -> Answer:
    call: Callable[..., Answer] = channel.unary_unary(
        f"/eddyline.v1.{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    try:
        return call(request, timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        raise domain_error(error) from None


_KINDS: Final = {Kind.LOG: topic_pb2.TOPIC_KIND_LOG, Kind.KV: topic_pb2.TOPIC_KIND_KV}
_KEY: Final = Column((0).to_bytes(4, "little") + (1).to_bytes(4, "little"), b"?")
_PROBES: Final = {Kind.LOG: Batch(1, data=_KEY), Kind.KV: Batch(1, ops=bytes([Op.PUT]), key=_KEY)}
"""One record that each kind would take: what is refused is the position alone."""
