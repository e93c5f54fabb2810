"""Calls to a store with requests and answers recorded: the one way in which tests make histories.

Every value is unique in its history, so that each record found is traced to its append.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import CommitUnknown, EddylineError
from eddyline.core.model.topic import ConfigChange, Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.store.log.append import AppendRequest
from tests.support.models.topic_model import Moment, TopicModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from eddyline.core.records.match import Match
    from eddyline.store.log.append import Ack
    from eddyline.store.shard.shard import Shard
    from tests.support.manual_clock import ManualClock
    from tests.support.models.history import Event, History, TopicHistory
    from tests.support.models.topic_model import DueAnswer

    Rows = tuple[Record, ...]

ERASE_ROUNDS_MAX: Final = 300
"""Half a minute of the test's clock for one erasure."""


class StagedAppend(NamedTuple):
    """An append in flight: its event in the topic's history, the answer due, and its acknowledgement."""

    event: Event
    due: DueAnswer
    ack: Ack


class Play:
    """One life of a store, and the history that goes on in it."""

    def __init__(self, link: Shard, history: History, clock: ManualClock) -> None:
        self.link, self.history, self.clock = link, history, clock
        self._start_ms, self._start_s = clock.now_ms(), clock.monotonic_s()

    @property
    def now(self) -> Moment:
        """This moment; ages never pass faster than time since the store began."""
        wall_ms, passed_ms = self.clock.now_ms(), int((self.clock.monotonic_s() - self._start_s) * 1000)
        return Moment(wall_ms, min(wall_ms, self._start_ms + passed_ms))

    async def make(
        self,
        name: str,
        kind: Kind = Kind.LOG,
        durability: Durability = Durability.DISK,
        config: TopicConfig | None = None,
    ) -> TopicHistory:
        """Create a topic."""
        chosen = replace(config or TopicConfig(), durability=durability)
        topic = self.history.begin(name, kind, chosen)
        topic.settled.last_ts_ms = self.now.wall_ms
        self.history.created(topic, (await self.link.create_topic(name, kind, chosen)).epoch)
        return topic

    async def drop(self, topic: TopicHistory, *, if_epoch: int = 0, if_empty: bool = False) -> None:
        """Delete a topic; the store must refuse it if a condition does not hold."""
        deletion = self.link.delete_topic(topic.name, if_epoch=if_epoch, if_empty=if_empty)
        try:
            topic.check_deletion(self.now, if_epoch=if_epoch, if_empty=if_empty)
        except EddylineError as refusal:
            await check_refused(deletion, refusal)
            return
        topic.gone = None
        await deletion
        topic.gone = True

    async def add(self, topic: TopicHistory, *appends: Rows) -> None:
        """Append in one group."""
        staged = [await self.stage(topic, AppendRequest(topic.name, Batch.from_rows(rows))) for rows in appends]
        await self.acknowledge(staged)

    async def stage(self, topic: TopicHistory, request: AppendRequest) -> StagedAppend | None:
        """Stage an append; the store must refuse it if and only if the model does. None = it was refused."""
        now = self.now
        try:
            topic.check_epoch(request.epoch)
            due = topic.model.take(request, now)
        except EddylineError as refusal:
            await check_refused(self.link.stage(request), refusal)
            return None
        lasting = topic.settled.kept.config.durability is Durability.FSYNC
        event = topic.begin(partial(TopicModel.take, request=request, now=now), lasts=lasting)
        try:
            return StagedAppend(event, due, await self.link.stage(request))
        except CommitUnknown:
            raise
        except EddylineError:
            topic.refused(event)
            raise

    async def acknowledge(self, appends: Sequence[StagedAppend | None]) -> None:
        """Await the acknowledgements of staged appends, and check them."""
        for append in appends:
            if append is not None:
                answer = await append.ack
                append.event.is_acknowledged = True
                append.due.check(answer)

    async def update(self, topic: TopicHistory, change: ConfigChange) -> None:
        """Change settings."""
        asked = {
            field: getattr(change, field) for field in ("durability", "ttl_ms", "cap_records", "cap_bytes", "discard")
        }
        given = {field: value for field, value in asked.items() if value is not None}
        config = topic.model.kept.config
        event = topic.begin(partial(_update, given, self.now), lasts=replace(config, **given) != config)
        try:
            await self.link.update_topic(topic.name, change)
        except CommitUnknown:
            raise
        except EddylineError:
            topic.refused(event)
            raise
        event.is_acknowledged = True

    async def delete(self, topic: TopicHistory, *, before_seq: int = 0, match: Match | None = None) -> None:
        """Delete records; the answer must be exact. One that removes nothing need not be logged: nothing lasts by it."""
        now, before, model = self.now, topic.model, topic.model
        before.kept.settle(now.age_ms)
        due = model.delete(now, before_seq=before_seq, match=match)
        removes = (model.kept.rows, model.fold) != (before.kept.rows, before.fold)
        event = topic.begin(partial(_delete, before_seq, match, now), lasts=removes)
        try:
            answer = await self.link.delete_records(topic.name, before_seq=before_seq, match=match)
        except CommitUnknown:
            raise
        except EddylineError:
            topic.refused(event)
            raise
        event.is_acknowledged = True
        topic.removed |= {row.seq for row in before.kept.rows} - {row.seq for row in model.kept.rows}
        assert answer.deleted_count == due.record_count, f"deleted {answer.deleted_count}, not {due.record_count}"
        assert answer.earliest_seq == model.kept.earliest_seq

    async def erase(self, topic: TopicHistory, *values: bytes) -> None:
        """Have what was deleted erased at once; of these values nothing may be left on the disk."""
        async with asyncio.TaskGroup() as tasks:
            erasing = tasks.create_task(self._erase(topic.name))
            for _ in range(ERASE_ROUNDS_MAX):
                await self.clock.pass_time(0.1)
                if erasing.done():
                    break
            else:
                raise AssertionError("an erasure did not end")
        self.history.erased += values

    async def _erase(self, name: str) -> None:
        erased = False
        async for progress in self.link.erase_topic(name):
            erased = progress.erased
        assert erased

    async def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, with nothing too old left above the floors: a topic's age goes on from its floors.

        Commit times go on from the store's own: whether a delete that removes nothing is logged, and so dated, the semantics
        leave open.
        """
        for topic in self.history.current():
            if topic.made and topic.gone is False:
                await self.link.read_records(topic.name, after_seq=0, limit=1)
                if self.link.status().read_only_reason:
                    return  # the disk erred under the floor that this would have moved
                model, last_ts_ms = topic.model, self.link._table.get(topic.name).last_ts_ms
                assert max((row.ts_ms for row in model.kept.rows), default=0) <= last_ts_ms <= model.last_ts_ms
                topic.begin(partial(_settle, last_ts_ms, self.now), lasts=False).is_acknowledged = True
        self.clock.set_wall_ms(wall_ms)

    async def upkeep(self) -> None:
        """Run the store's own jobs that are due."""
        assert await self.link._parts.maintenance.round(), "a job failed"

    async def upkeep_or_trouble(self) -> None:
        """As `upkeep`, where the disk may err: a job that fails is tried again."""
        await self.link._parts.maintenance.round()

    async def checkpoint(self) -> None:
        """Take one now."""
        async with self.link._parts.maintenance.between_rounds:
            await self.link._parts.checkpointer.run()

    async def check(self) -> None:
        """Hold the live store against the history."""
        await self.history.check(self.link, self.now)


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


async def check_refused(call: Awaitable[object], due: EddylineError) -> None:
    """Expect the store to refuse a call with this error, with the same metadata at least. Raises AssertionError."""
    try:
        await call
    except type(due) as error:
        assert error.metadata.items() >= due.metadata.items(), f"{error.metadata}, not {due.metadata}"
    else:
        raise AssertionError(f"taken; due: {due.reason}")


def _update(given: dict[str, object], now: Moment, model: TopicModel) -> None:
    model.update(now, replace(model.kept.config, **given))  # type: ignore[arg-type]


def _settle(last_ts_ms: int, now: Moment, model: TopicModel) -> None:
    model.kept.settle(now.age_ms)
    model.last_ts_ms = last_ts_ms


def _delete(before_seq: int, match: Match | None, now: Moment, model: TopicModel) -> None:
    model.delete(now, before_seq=before_seq, match=match)
