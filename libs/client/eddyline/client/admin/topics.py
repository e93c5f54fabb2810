"""Topics: made, looked at, listed, changed, deleted, erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once, domain_errors
from eddyline.client.transport.items import Items, read_once
from eddyline.core.codec.calls import erase_progress_from_pb
from eddyline.core.codec.state import config_change_to_pb, topic_config_to_pb, topic_info_from_pb
from eddyline.v1 import topic_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from eddyline.client.transport.call import Retry
    from eddyline.core.errors import EddylineError
    from eddyline.core.model.deletion import EraseProgress
    from eddyline.core.model.topic import ConfigChange, Kind, TopicConfig, TopicInfo
    from eddyline.v1.topic_pb2_grpc import TopicServiceStub

PAGE_SIZE: Final = 1_000
ERASE_TIMEOUT_S: Final = 86_400.0
"""An erasure reads and rewrites what holds deleted payloads: hours on a large disk, never a day."""


async def create_topic(stub: TopicServiceStub, name: str, kind: Kind, config: TopicConfig | None) -> TopicInfo:
    """Create a topic.

    Raises:
        EddylineError: InvalidName, TopicExists, InvalidConfig, QuotaTopics, DiskFloor, ReadOnly.
    """
    topic = topic_pb2.Topic(name=name, kind=kind_to_pb(kind))
    if config is not None:
        topic.config.CopyFrom(topic_config_to_pb(config))
    request = topic_pb2.CreateTopicRequest(topic=topic)
    return topic_info_from_pb((await call_once(stub.CreateTopic(request, timeout=CALL_TIMEOUT_S))).topic)


async def update_topic(stub: TopicServiceStub, name: str, change: ConfigChange, *, if_epoch: int) -> TopicInfo:
    """Change a topic's settings; the topic as it is then.

    Raises:
        EddylineError: InvalidName, TopicNotFound, EpochMismatch, InvalidConfig, DiskFloor, ReadOnly, CommitUnknown.
    """
    request = topic_pb2.UpdateTopicRequest(
        topic=name, config=config_change_to_pb(change), if_epoch=if_epoch, clear_priority=change.clear_priority
    )
    return topic_info_from_pb((await call_once(stub.UpdateTopic(request, timeout=CALL_TIMEOUT_S))).topic)


async def get_topic(
    stub: TopicServiceStub, name: str, *, retry: Retry, on_retry: Callable[[EddylineError], None] | None = None
) -> TopicInfo:
    """One topic. `on_retry` hears why the call is repeated.

    Raises:
        EddylineError: InvalidName, TopicNotFound.
    """
    request = topic_pb2.GetTopicRequest(topic=name)
    answer = await retry.run(
        lambda left_s: stub.GetTopic(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S, on_retry=on_retry
    )
    return topic_info_from_pb(answer.topic)


def list_topics(stub: TopicServiceStub, name_prefix: str, *, retry: Retry) -> Items[TopicInfo]:
    """Yield the cluster's topics in byte order of their names."""
    request = topic_pb2.ListTopicsRequest(page_size=PAGE_SIZE, name_prefix=name_prefix)
    return Items.one_by_one(lambda: _topics(stub, request, retry))


async def _topics(
    stub: TopicServiceStub, request: topic_pb2.ListTopicsRequest, retry: Retry
) -> AsyncGenerator[TopicInfo, None]:
    while True:
        answer = await retry.run(_lister(stub, request), timeout_s=CALL_TIMEOUT_S)
        for topic in answer.topics:
            yield topic_info_from_pb(topic)
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


async def delete_topic(stub: TopicServiceStub, name: str, *, if_epoch: int, if_empty: bool) -> int:
    """Delete a topic; its epoch.

    Raises:
        EddylineError: InvalidName, TopicNotFound, EpochMismatch, TopicNotEmpty, ReadOnly.
    """
    request = topic_pb2.DeleteTopicRequest(topic=name, if_epoch=if_epoch, if_empty=if_empty)
    return (await call_once(stub.DeleteTopic(request, timeout=CALL_TIMEOUT_S))).epoch


@read_once("erase_topic")
async def erase_topic(stub: TopicServiceStub, name: str, *, if_epoch: int) -> AsyncGenerator[EraseProgress, None]:
    """Yield how far an erasure is; the last one is `erased`.

    Raises:
        EddylineError: InvalidName, TopicNotFound, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt, and a
            store that went away: what is left is done by the next call, or by the store in its own time.
    """
    call = stub.EraseTopic(topic_pb2.EraseTopicRequest(topic=name, if_epoch=if_epoch), timeout=ERASE_TIMEOUT_S)
    try:
        with domain_errors():
            async for answer in call:
                yield erase_progress_from_pb(answer)
    finally:
        call.cancel()


def kind_to_pb(kind: Kind) -> topic_pb2.TopicKind.ValueType:
    """A kind; the numbers are the same by design."""
    return topic_pb2.TopicKind.ValueType(int(kind))


def _lister(
    stub: TopicServiceStub, request: topic_pb2.ListTopicsRequest
) -> Callable[[float], grpc.aio.UnaryUnaryCall[topic_pb2.ListTopicsRequest, topic_pb2.ListTopicsResponse]]:
    return lambda left_s: stub.ListTopics(request, timeout=left_s)
