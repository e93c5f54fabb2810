"""Readers of a simulation, which keep their cursor and all records read, over every crash.

Each checks the guarantees of a reader at every step: no record skipped, none twice, a gap for each missing range.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from eddyline.core.errors import TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op
from eddyline.core.records.size import item_bytes
from eddyline.core.runtime.clock import sleep
from eddyline.core.store_link.protocol import FollowEnded, FollowItem, FollowStarted
from tests.sim.writers import KEYS
from tests.support.models.history import read_all

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from tests.sim.world import World


class Reader:
    """A cursor on one topic's name, and the items read with it."""

    def __init__(self, world: World, topic: str) -> None:
        self.world, self.topic = world, topic
        self.random = world.random
        self.epoch = self.seq = 0
        self.tags: dict[int, dict[int, str]] = {}
        self.gaps: dict[int, set[int]] = {}

    @property
    def content(self) -> bool:
        book = self.world.book.current(self.topic)
        return book is None or (self.epoch == book.epoch and self.seq >= book.last_seq)

    def take(self, item: Batch | Gap, next_after_seq: int) -> None:
        """Check and keep the topic's next item."""
        if isinstance(item, Gap):
            if item.reason == GapReason.RECREATED:
                assert (item.old_epoch, self.epoch != item.new_epoch) == (self.epoch, True)
                self.epoch, self.seq = item.new_epoch, 0
                return
            assert item.first_seq <= self.seq + 1 <= item.seq
            assert next_after_seq == item.seq
            self.gaps.setdefault(self.epoch, set()).add(item.seq)
        else:
            tags, book = self.tags.setdefault(self.epoch, {}), self.world.book.topics.get(self.epoch)
            for seq, row in enumerate(item.to_rows(), self.seq + 1):
                assert row.seq == seq, f"{self.topic}: {seq} was to come, and {row.seq} came"
                assert row.tag is not None
                tags[seq] = row.tag
                if book is not None:
                    book.see(seq, row.tag)
            assert next_after_seq == item.last_seq
        self.seq = next_after_seq

    def check(self) -> None:
        """Check at the end that every surviving record was read at its seq, and that gaps cover every loss."""
        book = self.world.book.current(self.topic)
        if book is None:
            return
        tags = self.tags.get(book.epoch, {})
        there = {record.seq: record.tag for record in book.records}
        missed = [seq for seq in there if tags.get(seq) != there[seq]]
        assert not missed, f"{self.topic}: seqs {missed[:5]} were not shown"
        told = self.gaps.get(book.epoch, set())
        gaps = {gap.seq for gap in book.gaps}
        assert told == gaps, f"{self.topic}: gaps at {sorted(gaps)}, told {sorted(told)}"
        assert all(seq in there or book.in_gap(seq, seq) for seq in tags), f"{self.topic}: shown, gone, and no gap"


class Follower(Reader):
    """Follows a topic with little credit; each life of the store is a new stream."""

    async def run(self, link: Shard) -> None:
        while True:
            await self._stream(link)
            await sleep(self.world.clock, self.random.uniform(0, 0.3))

    async def _stream(self, link: Shard) -> None:
        async with link.follow() as follow:
            await follow.add(1, self.topic, epoch=self.epoch, after_seq=self.seq)
            await follow.grant(self.random.choice((1, 500, 100_000)))
            async for event in follow:
                if isinstance(event, FollowStarted):
                    self.epoch = self.epoch or event.topic.epoch
                elif isinstance(event, FollowItem):
                    self.take(event.item, event.next_after_seq)
                    await follow.grant(item_bytes(event.item))
                    if self.random.random() < 0.02:
                        return
                elif isinstance(event, FollowEnded):
                    assert event.reason == "TOPIC_NOT_FOUND", event
                    return


class Poller(Reader):
    """Reads with changing bounds, and waits at the head."""

    async def run(self, link: Shard) -> None:
        while True:
            with suppress(TopicNotFound):
                await self._read(link)
            await sleep(self.world.clock, self.random.uniform(0, 0.2))

    async def _read(self, link: Shard) -> None:
        self.epoch = self.epoch or (await link.get_topic(self.topic)).epoch
        read = await link.read_records(
            self.topic,
            after_seq=self.seq,
            epoch=self.epoch,
            limit=self.random.choice((0, 1, 3, 10_000)),
            max_bytes=self.random.choice((0, 1, 4_000)),
            wait_ms=self.random.choice((0, 100)),
        )
        for item in read.items:
            self.take(item, max(item.seq, item.last_seq) if isinstance(item, Gap) else item.last_seq)
        if (
            self.seq != read.next_after_seq
        ):  # a bound cut the read before a gap's record: the cursor is past its seqs already
            book = self.world.book.topics[self.epoch]
            assert book.in_gap(self.seq + 1, read.next_after_seq)
            self.seq = read.next_after_seq


class Auditor:
    """Compares fold and log while both change: a fold at a seq equals the log up to it."""

    def __init__(self, world: World, topic: str) -> None:
        self.world, self.topic = world, topic
        self.random = world.random

    @property
    def content(self) -> bool:
        return True

    async def run(self, link: Shard) -> None:
        while True:
            book = self.world.book.current(self.topic)
            if book is not None and book.kind is Kind.KV and not book.ahead:
                with suppress(TopicNotFound):
                    await self._compare(link)
            await sleep(self.world.clock, self.random.uniform(0.1, 0.5))

    async def _compare(self, link: Shard) -> None:
        page = await link.batch_get_entries(self.topic, list(KEYS))
        records, _ = await read_all(link, self.topic)
        expected = dict.fromkeys(KEYS, 0)
        for record in records:
            if record.seq <= page.state.fold_seq:
                assert record.key is not None
                expected[record.key] = record.seq if record.op == Op.PUT else 0
        entries = {key: entry.seq if entry else 0 for key, entry in zip(KEYS, page.entries, strict=True)}
        assert entries == expected, f"{self.topic}: fold and log differ at {page.state.fold_seq}"
