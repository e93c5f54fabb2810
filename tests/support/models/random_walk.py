"""A random walk through all calls of a store, each step recorded in its history.

Threading: one loop; nothing of a walk is under way when a step returns.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CommitUnknown, DataCorrupt, EddylineError, NotReady, ReadOnly
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from tests.support.models.recorded_store import kv_rows, log_rows

if TYPE_CHECKING:
    from random import Random

    from tests.support.models.history import TopicHistory
    from tests.support.models.recorded_store import Play, Rows

NAMES: Final = ("a", "b", "c", "d", "e", "f")
PASSING: Final = (ReadOnly, NotReady, CommitUnknown)
"""The errors of a shard with disk trouble: definite before a seq was assigned, or decided at its restart."""


class Wanderer:
    """Takes steps; see the module. `number` makes every value unique."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0

    async def step(self, play: Play) -> None:
        """Do one thing, whichever."""
        topics = [topic for topic in play.history.current() if topic.made and topic.gone is False]
        pick = self.random.random()
        if not topics or (pick < 0.06 and len(topics) < len(NAMES)):
            await self.make(play)
            return
        topic = self.random.choice(topics)
        if pick < 0.5:
            await self.add(play, topic)
        elif pick < 0.62:
            await self.delete(play, topic)
        elif pick < 0.68:
            await self.update(play, topic)
        elif pick < 0.7:
            await play.drop(topic)
        elif pick < 0.8:
            await play.upkeep_or_trouble()
        elif pick < 0.85:
            with suppress(OSError):  # the disk errs: it is not taken
                await play.checkpoint()
        else:
            await self.wait(play)

    async def make(self, play: Play) -> None:
        """A topic of any kind, class and settings."""
        pick = self.random.choice
        taken = {topic.name for topic in play.history.current()}
        name = pick([name for name in NAMES if name not in taken] or ["z"])
        if name == "z":
            return
        kind = pick((Kind.LOG, Kind.LOG, Kind.KV))
        durability = pick(tuple(Durability) if kind is Kind.LOG else (Durability.DISK, Durability.FSYNC))
        discard = pick((Discard.OLD, Discard.OLD, Discard.REJECT))
        caps = TopicConfig(
            ttl_ms=pick((0, 0, 3_000, 20_000)), cap_records=pick((0, 0, 3, 9)), cap_bytes=pick((0, 0, 150, 400))
        )
        if discard is Discard.REJECT and (caps.cap_records or caps.cap_bytes):
            caps = TopicConfig(
                ttl_ms=caps.ttl_ms, cap_records=caps.cap_records, cap_bytes=caps.cap_bytes, discard=discard
            )
        await play.make(name, kind, durability, caps)

    async def add(self, play: Play, topic: TopicHistory) -> None:
        """Some appends in one group."""
        await play.add(topic, *(self.rows(topic.kind) for _ in range(self.random.choice((1, 1, 2, 3)))))

    def rows(self, kind: Kind) -> Rows:
        """Records of one append."""
        values = list[str]()
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.number += 1
            filler = "x" * self.random.choice((0, 0, 0, 60, 3_000))
            values.append(f"{self.random.choice('rst')}{self.random.choice('uvw')}{self.number}{filler}")
        if kind is Kind.LOG:
            return log_rows(*values)
        return kv_rows(
            *((f"k{value[1]}", value) if self.random.random() < 0.7 else (f"k{value[1]}",) for value in values)
        )

    async def delete(self, play: Play, topic: TopicHistory) -> None:
        """By seq, by key, by tag, or by two of them."""
        head_seq, match = topic.model.kept.head_seq, None
        before_seq = max(1, head_seq + 2 - self.random.randrange(12))
        if self.random.random() < 0.7:
            before_seq *= self.random.random() < 0.4
            by_key = topic.kind is Kind.KV or self.random.random() < 0.5
            value = self.random.choice(("ku", "kv", "k") if topic.kind is Kind.KV else ("u", "r", "v", "s", ""))
            field = MatchField.KEY if by_key else MatchField.TAG
            match = Match(field, self.random.choice(tuple(MatchKind)), value.encode())
        await play.delete(topic, before_seq=before_seq, match=match)

    async def update(self, play: Play, topic: TopicHistory) -> None:
        """Other caps or another TTL; what contradicts the rest is refused."""
        pick = self.random.choice
        change = ConfigChange(
            ttl_ms=pick((None, 0, 2_000)), cap_records=pick((None, 0, 5)), cap_bytes=pick((None, 0, 300))
        )
        try:
            await play.update(topic, change)
        except PASSING:
            raise
        except DataCorrupt:
            raise
        except EddylineError as error:
            assert error.reason == "INVALID_CONFIG", error

    async def wait(self, play: Play) -> None:
        """Time passes, or the wall clock is set."""
        if self.random.random() < 0.85:
            await play.clock.pass_time(self.random.choice((0.1, 0.5, 1.5, 6)))
        elif all(topic.config.durability is not Durability.EPHEMERAL for topic in play.history.topics):
            # a kill takes the last commit time of records in memory with them: after a jump back nobody knows it
            await play.set_wall_ms(play.clock.now_ms() + self.random.choice((-30_000, -1_000, 40_000, 400_000)))
