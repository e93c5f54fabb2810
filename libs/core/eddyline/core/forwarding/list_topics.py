"""ListTopics for a whole cluster: requests the page from every shard and merges the pages by name.

A page token holds the last name of its page and is bound to the call and its prefix, not to a shard, so each shard
continues after that name. The cluster's first names are among the shards' first names, so one page of each is enough
for one page.
Failure: a shard that does not answer fails the call, since a list without its topics would be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eddyline.core.forwarding.routes import LIST_TOPICS
from eddyline.core.model.paging import page_limit, token_after
from eddyline.v1 import topic_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.core.forwarding.shards import ShardForwarder

LIST: Final = "TopicService.ListTopics"
"""Page tokens are bound to this name."""


async def list_topics(
    shards: ShardForwarder,
    request: topic_pb2.ListTopicsRequest,
    context: Any,
    *,
    here: tuple[int, Callable[[Any, Any], Awaitable[topic_pb2.ListTopicsResponse]]] | None,
) -> topic_pb2.ListTopicsResponse:
    """Return the cluster's page. `here` = index and handler of the own shard, if there is one.

    Raises:
        EddylineError: of any shard.
    """
    limit = page_limit(request.page_size)
    message = request.SerializeToString()
    own_index, own = here if here is not None else (None, None)
    pages = [] if own is None else [await own(request, context)]
    others = {shard: message for shard in range(shards.count) if shard != own_index}
    answers = await shards.each(LIST_TOPICS, others, context)
    pages += map(topic_pb2.ListTopicsResponse.FromString, answers.values())
    topics = sorted((topic for page in pages for topic in page.topics), key=lambda topic: topic.name.encode())
    is_last = len(topics) <= limit and not any(page.next_page_token for page in pages)
    topics = topics[:limit]
    token = "" if is_last else token_after(topics[-1].name, call=LIST, argument=request.name_prefix)
    return topic_pb2.ListTopicsResponse(topics=topics, next_page_token=token)
