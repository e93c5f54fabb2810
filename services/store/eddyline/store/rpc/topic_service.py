"""TopicService: create, update, get, list, delete and erase topics. Translates, validates, delegates."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.core.auth.grant import caller
from eddyline.core.codec import calls as wire_calls
from eddyline.core.codec import state as wire_state
from eddyline.core.errors import InvalidArgument
from eddyline.core.forwarding.list_topics import LIST
from eddyline.core.model.paging import name_after, page_limit, token_after
from eddyline.core.model.topic import check_name
from eddyline.store.rpc.requests import new_topic
from eddyline.v1 import topic_pb2, topic_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.topic import TopicInfo
    from eddyline.store.rpc.shard_handle import ShardHandle

_OUTPUT_ONLY: Final = (
    "epoch",
    "head_seq",
    "earliest_seq",
    "source",
    "create_ts_ms",
    "evict_floor",
    "record_count",
    "record_bytes",
    "config_version",
    "delete_mark",
)


class TopicServicer(topic_pb2_grpc.TopicServiceServicer):
    """TopicService on the shard of a handle."""

    def __init__(self, handle: ShardHandle) -> None:
        self._handle = handle

    async def CreateTopic(
        self, request: topic_pb2.CreateTopicRequest, context: object
    ) -> topic_pb2.CreateTopicResponse:
        shard = self._handle.get()
        if not request.HasField("topic"):
            raise InvalidArgument("topic is missing", field="topic")
        check_name(request.topic.name, "topic")
        for field in _OUTPUT_ONLY:
            if getattr(request.topic, field):
                raise InvalidArgument(f"{field} is output only and must be unset", field=f"topic.{field}")
        created = new_topic(request.topic)
        info = await shard.create_topic(request.topic.name, created.kind, created.config)
        return topic_pb2.CreateTopicResponse(topic=wire_state.topic_info_to_pb(info))

    async def UpdateTopic(
        self, request: topic_pb2.UpdateTopicRequest, context: object
    ) -> topic_pb2.UpdateTopicResponse:
        shard = self._handle.get()
        change = wire_state.config_change_from_pb(request.config, clear_priority=request.clear_priority)
        info = await shard.update_topic(request.topic, change, if_epoch=request.if_epoch)
        return topic_pb2.UpdateTopicResponse(topic=wire_state.topic_info_to_pb(info))

    async def GetTopic(self, request: topic_pb2.GetTopicRequest, context: object) -> topic_pb2.GetTopicResponse:
        info = await self._handle.get().get_topic(request.topic)
        return topic_pb2.GetTopicResponse(topic=wire_state.topic_info_to_pb(info))

    async def ListTopics(self, request: topic_pb2.ListTopicsRequest, context: object) -> topic_pb2.ListTopicsResponse:
        shard = self._handle.get()
        prefix = request.name_prefix
        limit = page_limit(request.page_size)
        after = name_after(request.page_token, call=LIST, argument=prefix)
        # One record more than the page shows whether there is another page, so the last page is never empty.
        topics: list[TopicInfo] = []
        for seen in caller().narrowed(prefix):
            topics += await shard.list_topics(seen, after, limit + 1 - len(topics))
            if len(topics) > limit:
                break
        page = topics[:limit]
        token = token_after(page[-1].name, call=LIST, argument=prefix) if len(topics) > limit else ""
        return topic_pb2.ListTopicsResponse(
            topics=[wire_state.topic_info_to_pb(info) for info in page], next_page_token=token
        )

    async def DeleteTopic(
        self, request: topic_pb2.DeleteTopicRequest, context: object
    ) -> topic_pb2.DeleteTopicResponse:
        shard = self._handle.get()
        epoch = await shard.delete_topic(
            request.topic,
            if_epoch=request.if_epoch,
            if_empty=request.if_empty,
            if_no_source=request.if_no_source,
        )
        return topic_pb2.DeleteTopicResponse(epoch=epoch)

    async def EraseTopic(
        self, request: topic_pb2.EraseTopicRequest, context: object
    ) -> AsyncGenerator[topic_pb2.EraseTopicResponse, None]:
        erasing = self._handle.get().erase_topic(request.topic, if_epoch=request.if_epoch)
        async with aclosing(self._handle.each_until_stop(erasing)) as steps:
            async for progress in steps:
                yield wire_calls.erase_progress_to_pb(progress)
