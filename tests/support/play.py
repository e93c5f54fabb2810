"""Using a store and writing down what was asked of it and what it told: the one way in which tests make histories.

Every value is unique in its history, so that each record found is traced to its append.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.batch import Batch
from eddyline.core.errors import CommitUnknown, EddylineError, TopicFull
from eddyline.core.record import Op, Record
from eddyline.core.topic import ConfigChange, Durability, Kind, TopicConfig
from eddyline.store.append import AppendRequest
from tests.support.retained import Full
from tests.support.topic_model import TopicModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.match import Match
    from eddyline.store.link import LocalLink
    from tests.support.history import History, TopicHistory
    from tests.support.manual_clock import ManualClock

    Rows = tuple[Record, ...]


class Play:
    """One life of a store, and the history that goes on in it."""

    def __init__(self, link: LocalLink, history: History, clock: ManualClock) -> None:
        self.link, self.history, self.clock = link, history, clock

    async def make(
        self,
        name: str,
        kind: Kind = Kind.LOG,
        durability: Durability = Durability.DISK,
        config: TopicConfig | None = None,
    ) -> TopicHistory:
        """Create a topic."""
        chosen = replace(config or TopicConfig(), durability=durability)
        topic = self.history.asks(name, kind, chosen)
        topic.epoch = (await self.link.create_topic(name, kind, chosen)).epoch
        topic.made = True
        return topic

    async def drop(self, topic: TopicHistory) -> None:
        """Delete a topic."""
        topic.gone = None
        await self.link.delete_topic(topic.name)
        topic.gone = True

    async def add(self, topic: TopicHistory, *appends: Rows) -> None:
        """Append in one group; an append over a cap that refuses must be refused, every other one taken."""
        acks = []
        for rows in appends:
            now_ms = self.clock.now_ms()
            before, lasting = topic.model, topic.settled.kept.config.durability is Durability.FSYNC
            event = topic.asks(partial(_append, rows, now_ms), lasts=lasting)
            refused = not _append(rows, now_ms, before)
            try:
                ack = await self.link.stage(AppendRequest(topic=topic.name, batch=Batch.from_rows(rows)))
            except TopicFull:
                topic.refused(event)
                assert refused, "an append that fits was refused"
                continue
            except CommitUnknown:
                raise
            except EddylineError:
                topic.refused(event)
                raise
            assert not refused, "an append over the cap was taken"
            acks.append((event, before.kept.head_seq, ack))
        for event, head_seq, ack in acks:
            answer = await ack
            event.told = True
            assert answer.last_seq == head_seq, f"appended up to {answer.last_seq}, not {head_seq}"

    async def update(self, topic: TopicHistory, change: ConfigChange) -> None:
        """Change settings."""
        asked = {
            field: getattr(change, field) for field in ("durability", "ttl_ms", "cap_records", "cap_bytes", "discard")
        }
        given = {field: value for field, value in asked.items() if value is not None}
        event = topic.asks(partial(_update, given, self.clock.now_ms()), lasts=True)
        try:
            await self.link.update_topic(topic.name, change)
        except CommitUnknown:
            raise
        except EddylineError:
            topic.refused(event)
            raise
        event.told = True

    async def delete(self, topic: TopicHistory, *, before_seq: int = 0, match: Match | None = None) -> None:
        """Delete records; the answer must be exact."""
        now_ms, model = self.clock.now_ms(), topic.model
        event = topic.asks(partial(_delete, before_seq, match, now_ms), lasts=True)
        due = model.delete(now_ms, before_seq=before_seq, match=match)
        try:
            answer = await self.link.delete_records(topic.name, before_seq=before_seq, match=match)
        except CommitUnknown:
            raise
        except EddylineError:
            topic.refused(event)
            raise
        event.told = True
        assert answer.deleted_count == due.record_count, f"deleted {answer.deleted_count}, not {due.record_count}"
        assert answer.earliest_seq == model.kept.earliest_seq

    async def upkeep(self) -> None:
        """Whatever of the store's own jobs is due."""
        assert await self.link._parts.maintenance.round(), "a job failed"

    async def checkpoint(self) -> None:
        """Take one now."""
        await self.link._parts.checkpointer.run()

    async def check(self) -> None:
        """Hold the live store against the history."""
        await self.history.check(self.link, self.clock.now_ms())


def log_rows(*values: str) -> Rows:
    """Records of a LOG topic; a value's first letter is its tag, its second its key."""
    return tuple(Record(data=value.encode(), tag=value[:1], key=value[1:2].encode()) for value in values)


def kv_rows(*pairs: Sequence[str]) -> Rows:
    """Records of a KV topic: (key, value) is a PUT, (key,) a DELETE."""
    return tuple(
        Record(op=Op.PUT, key=pair[0].encode(), data=pair[1].encode())
        if len(pair) > 1
        else Record(op=Op.DELETE, key=pair[0].encode())
        for pair in pairs
    )


def _append(rows: Rows, now_ms: int, model: TopicModel) -> bool:
    """True = it was taken."""
    try:
        model.append(rows, now_ms)
    except Full:
        return False
    return True


def _update(given: dict[str, object], now_ms: int, model: TopicModel) -> None:
    model.update(now_ms, replace(model.kept.config, **given))  # type: ignore[arg-type]


def _delete(before_seq: int, match: Match | None, now_ms: int, model: TopicModel) -> None:
    model.delete(now_ms, before_seq=before_seq, match=match)
