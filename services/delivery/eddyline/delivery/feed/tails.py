"""All tails of a delivery: those of every shard, each over a stream of its own.

I1: a shard that is away stops the topics that live on it, and no other's: what follows it retries by itself.
The role serves while any shard is followed; `trouble` says what is missing.
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
    """A shard that is not followed, and the reason of the contract."""

    shard: int
    reason: str


class AllTails:
    """The followed topics of all shards; see the module. `place` = the shard of a topic."""

    def __init__(self, tails: Sequence[Tails], *, place: Callable[[str], int] | None = None) -> None:
        self.shards = tuple(tails)
        self._place = place or partial(shard_of, count=len(tails))
        self.up = asyncio.Event()
        """Some shard is followed."""
        self.down = asyncio.Event()
        """None is."""
        self.down.set()
        self.changed = asyncio.Event()
        """Another shard is followed than before, or one less. Whoever looks clears it."""
        for each in self.shards:
            each.on_change = self._look

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
        """Of every shard whether it is followed."""
        return tuple(each.up.is_set() for each in self.shards)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The shards that are not followed."""
        return tuple(Missing(shard, each.trouble) for shard, each in enumerate(self.shards) if not each.up.is_set())

    @property
    def trouble(self) -> str:
        """Why not all is followed, as a reason of the contract, with the shard where there are several; "" = it is."""
        if len(self.shards) == 1:
            return "".join(missing.reason for missing in self.missing)
        return " ".join(f"{missing.reason} (shard {missing.shard})" for missing in self.missing)

    def of(self, topic: str) -> Tails:
        """The tails of the shard that a topic lives on."""
        return self.shards[self._place(topic)]

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

    def _look(self) -> None:
        risen, fallen = (self.up, self.down) if any(self.reached) else (self.down, self.up)
        risen.set()
        fallen.clear()
        self.changed.set()
