"""`Follow` over the shards of a cluster: one stream a shard, merged into one.

I1: the whole follow ends with the first stream that breaks: the follower adds every topic again from its cursor, so no
    topic of a lost shard stops silently. (A follower that must keep the other shards' streams follows each shard
    separately, as delivery does.) I2: events of one topic are ordered. I3: at most one event a shard is buffered, plus
    one.
Credit is the total that all shards may send together. The next sender is unknown, so each shard gets all of it, and the
received bytes may exceed it by as much for each additional shard.
Threading: event loop only; one task iterates, one a shard reads, steps may come from others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError, StoreUnreachable
from eddyline.core.records.size import item_bytes
from eddyline.core.store_link.protocol import FollowItem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from eddyline.core.store_link.protocol import Follow, FollowEvent


class ShardedFollow:
    """One stream a shard. Made by `ShardedLink.follow`, which runs `read` for each."""

    def __init__(self, follows: Sequence[Follow], *, shard_by_topic: Callable[[str], int]) -> None:
        self._follows = tuple(follows)
        self._shard_by_topic = shard_by_topic
        self._shards: dict[int, int] = {}
        self._credit = 0
        self._granted = [0] * len(self._follows)
        self._events: asyncio.Queue[tuple[int, FollowEvent | EddylineError]] = asyncio.Queue(1)

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        shard = self._shard_by_topic(topic)
        previous = self._shards.get(follow_id, shard)
        if previous != shard:
            await self._follows[previous].remove(follow_id)
        self._shards[follow_id] = shard
        await self._follows[shard].add(follow_id, topic, epoch=epoch, after_seq=after_seq)

    async def remove(self, follow_id: int) -> None:
        shard = self._shards.pop(follow_id, None)
        if shard is not None:
            await self._follows[shard].remove(follow_id)

    async def grant(self, credit_bytes: int) -> None:
        self._credit += credit_bytes
        for shard, follow in enumerate(self._follows):
            missing = self._credit - self._granted[shard]
            if missing > 0:
                self._granted[shard] += missing
                await follow.grant(missing)

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        while True:
            shard, event = await self._events.get()
            if isinstance(event, EddylineError):
                raise event
            if isinstance(event, FollowItem):
                self._credit -= item_bytes(event.item)
                self._granted[shard] -= item_bytes(event.item)
            yield event

    async def read(self, shard: int) -> None:
        """Queue one shard's events until its stream ends, then the error that ended it."""
        broken: EddylineError = StoreUnreachable("a store's stream of followed topics has ended")
        try:
            async for event in self._follows[shard]:
                await self._events.put((shard, event))
        except EddylineError as error:
            broken = error
        await self._events.put((shard, broken))
