"""`Follow` over the shards of a cluster: one stream a shard, their events as one.

I1: the follow ends as a whole with the first stream that breaks: whoever follows adds every topic again from where it
stands, so no topic of a lost shard is silently followed no more. (Who wants the others to go on follows each shard by
itself, as delivery does.) I2: events of one topic are ordered. I3: one event a shard is held at most, and one more.
Credit is what all may send together. Since nobody knows which shard sends next, each is given all of it, so that what
comes may exceed it by as much for each shard more.
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
    """One stream a shard. Made by `ShardedLink.follow`, which runs `read` of each."""

    def __init__(self, follows: Sequence[Follow], *, place: Callable[[str], int]) -> None:
        self._follows = tuple(follows)
        self._place = place
        self._shards: dict[int, int] = {}
        self._credit = 0
        self._granted = [0] * len(self._follows)
        self._events: asyncio.Queue[tuple[int, FollowEvent | EddylineError]] = asyncio.Queue(1)

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        shard = self._place(topic)
        before = self._shards.get(follow_id, shard)
        if before != shard:
            await self._follows[before].remove(follow_id)
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
        """Take one shard's events until its stream ends, and say how."""
        broken: EddylineError = StoreUnreachable("a store's stream of followed topics has ended")
        try:
            async for event in self._follows[shard]:
                await self._events.put((shard, event))
        except EddylineError as error:
            broken = error
        await self._events.put((shard, broken))
