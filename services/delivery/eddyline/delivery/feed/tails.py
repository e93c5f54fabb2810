"""Tails of all shards, each over a stream of its own.

I1: an unreachable shard stops only the topics that live on it: each shard's tails retry independently.
The role serves while any shard is followed; `trouble` names the missing ones.
Threading: event loop only; `run` is one task and one a shard.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.sharding import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eddyline.delivery.feed.tail import Tails, TopicTail


class Missing(NamedTuple):
    """A shard that is not followed, and the contract's reason."""

    shard: int
    reason: str


class AllTails:
    """Followed topics of all shards. `shard_by_topic` = the shard of a topic."""

    def __init__(self, tails: Sequence[Tails], *, shard_by_topic: Callable[[str], int] | None = None) -> None:
        self.shards = tuple(tails)
        self._shard_by_topic = shard_by_topic or partial(shard_of, count=len(tails))
        self.up = asyncio.Event()
        """Set while any shard is followed."""
        self.down = asyncio.Event()
        """Set while none is followed."""
        self.down.set()
        self.changed = asyncio.Event()
        """Set when a shard begins or ends to be followed. Its reader clears it."""
        for each in self.shards:
            each.on_change = self._on_shard_change

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __contains__(self, topic: str) -> bool:
        return topic in self.of(topic)

    @property
    def followed(self) -> tuple[TopicTail, ...]:
        """Every followed topic."""
        return tuple(tail for each in self.shards for tail in each.followed)

    @property
    def reached(self) -> tuple[bool, ...]:
        """One flag a shard: True = it is followed."""
        return tuple(each.up.is_set() for each in self.shards)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Shards that are not followed."""
        return tuple(Missing(shard, each.trouble) for shard, each in enumerate(self.shards) if not each.up.is_set())

    @property
    def trouble(self) -> str:
        """Contract's reasons why shards are not followed, with the shard if there are several; "" = all are."""
        if len(self.shards) == 1:
            return "".join(missing.reason for missing in self.missing)
        return " ".join(f"{missing.reason} (shard {missing.shard})" for missing in self.missing)

    def of(self, topic: str) -> Tails:
        """Return the tails of the shard that a topic lives on."""
        return self.shards[self._shard_by_topic(topic)]

    def attach(self, topic: str, listener: Callable[[], None]) -> TopicTail:
        """As `Tails.attach`."""
        return self.of(topic).attach(topic, listener)

    def detach(self, tail: TopicTail, listener: Callable[[], None]) -> None:
        """As `Tails.detach`."""
        self.of(tail.name).detach(tail, listener)

    async def run(self) -> None:
        """Follow every shard until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self.shards:
                tasks.create_task(each.run())

    def _on_shard_change(self) -> None:
        risen, fallen = (self.up, self.down) if any(self.reached) else (self.down, self.up)
        risen.set()
        fallen.clear()
        self.changed.set()
