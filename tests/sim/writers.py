"""Writers of a simulation, each with its own way of retrying and its own guarantees.

`Plain` never retries. `Keyed` retries under its idempotency key until it is answered. `Mover` retries by its position, and
goes back to the stored one after a power failure. `Compare` writes with the version or head it has read as a condition.
`SourceWriter` continues at the position of its lease. `TopicChurner` creates and deletes a topic under one name.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from eddyline.core.errors import (
    ApplyLag,
    CommitUnknown,
    EddylineError,
    EpochMismatch,
    HeadMismatch,
    NotReady,
    ReadOnly,
    SourceNotFound,
    StaleFence,
    StalePosition,
    Throttled,
    TopicExists,
    TopicNotFound,
    VersionMismatch,
)
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record, effective_version
from eddyline.core.runtime.clock import sleep
from eddyline.store.log.append import AppendRequest, WriterPosition
from tests.sim.book import TopicBook, TrackedAppend, number_of, position_of

if TYPE_CHECKING:
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.shard.shard import Shard
    from tests.sim.world import World

KEYS = tuple(f"k{i}".encode() for i in range(5))
WINDOW_MS = 86_400_000
_PASSING = (ReadOnly, NotReady, CommitUnknown, Throttled, ApplyLag)


class Writer:
    """Common part of all writers: a name, a topic, appends and their answers."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        self.world, self.name, self.topic = world, name, topic
        self.random = world.random
        self._made = 0

    @property
    def content(self) -> bool:
        return True

    async def run(self, link: Shard) -> None:
        """Write with pauses until cancelled; transient errors (a read-only shard, an unknown outcome) are waited out."""
        while not (self.world.resting and self.content):
            with suppress(*_PASSING):
                await self.write(link, self.book())
            await sleep(self.world.clock, self.random.uniform(0, 0.1))

    async def write(self, link: Shard, book: TopicBook) -> None:
        raise NotImplementedError

    def book(self) -> TopicBook:
        found = self.world.book.current(self.topic)
        assert found is not None
        return found

    def ask(self, book: TopicBook) -> TrackedAppend:
        """Make a new append of some records."""
        count = self.random.choice((1, 1, 2, 5))
        self._made += 1
        ids = tuple(f"{self.name}/{self._made}/{i}" for i in range(count))
        if book.kind is Kind.LOG:
            ask = TrackedAppend(ids, (Op.APPEND,) * count, (None,) * count)
        else:
            ops = tuple(self.random.choice((Op.PUT, Op.PUT, Op.DELETE)) for _ in ids)
            ask = TrackedAppend(ids, ops, tuple(self.random.choice(KEYS) for _ in ids))
        book.asks.append(ask)
        return ask

    def batch(self, ask: TrackedAppend) -> Batch:
        """Return the append's records, the same at each try; some are large, so that files rotate."""
        size = 3_000 if hash_of(ask.ids[0]) % 8 == 0 else 20
        return Batch.from_rows(
            [
                Record(op=op, key=key, data=bytes(size) if op != Op.DELETE else None, tag=record_id)
                for record_id, op, key in zip(ask.ids, ask.ops, ask.keys, strict=True)
            ]
        )

    async def submit(self, link: Shard, book: TopicBook, ask: TrackedAppend, **conditions: object) -> AppendResult:
        """Try the append once; the book gets its outcome, even if the writer was cancelled meanwhile."""
        if ask.lost:  # it was never acknowledged and a power failure lost it: it may be made again
            ask.lost, ask.first_seq, ask.state = False, 0, "refused"
        before, ask.state = ask.state, "unknown"
        request = AppendRequest(
            topic=book.name,
            batch=self.batch(ask),
            epoch=book.epoch,
            **conditions,  # type: ignore[arg-type]
        )
        try:
            ack = await link.stage(request)
        except CommitUnknown:
            raise
        except EddylineError:
            ask.state = before
            raise
        self.world.acks.append(ack)
        ack.add_done_callback(lambda done: self._answered(book, ask, done, before))
        result = await asyncio.shield(ack)
        if self.random.random() < 0.3 and result.first_seq:
            await self.look(link, book, ask, result)
        return result

    def _answered(self, book: TopicBook, ask: TrackedAppend, done: asyncio.Future[AppendResult], before: str) -> None:
        error = done.exception()
        if error is None:
            try:
                acknowledged(book, ask, done.result())
            except AssertionError as failure:  # the loop would only log it
                self.world.failures.append(failure)
        elif not isinstance(error, CommitUnknown):
            ask.state = "unknown" if before == "unknown" else "refused"

    async def look(self, link: Shard, book: TopicBook, ask: TrackedAppend, result: AppendResult) -> None:
        """Check that an acknowledged append is visible, in the log and in the fold."""
        read = await link.read_records(book.name, after_seq=result.first_seq - 1, limit=len(ask.ids), epoch=book.epoch)
        found = [row.tag for item in read.items if isinstance(item, Batch) for row in item.to_rows()]
        assert found == list(ask.ids), f"{ask.ids} is acknowledged and not visible"
        if book.kind is Kind.KV:
            page = await link.batch_get_entries(book.name, list(KEYS))
            assert page.state.fold_seq >= result.last_seq


class Plain(Writer):
    """Writes without retries."""

    async def write(self, link: Shard, book: TopicBook) -> None:
        await self.submit(link, book, self.ask(book))


class Keyed(Writer):
    """Repeats each append under one idempotency key until it is answered."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name, topic)
        self._open: TrackedAppend | None = None

    @property
    def content(self) -> bool:
        return self._open is None

    async def write(self, link: Shard, book: TopicBook) -> None:
        if self._open is None:
            self._open = self.ask(book)
        await self.submit(link, book, self._open, idempotency_key=self._open.ids[0])
        if self.random.random() < 0.1:
            again = await self.submit(link, book, self._open, idempotency_key=self._open.ids[0])
            assert again.deduplicated
        self._open = None


class Mover(Writer):
    """Writes with writer positions."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name, topic)
        self._number = 0
        self._fence = 1
        self._open: TrackedAppend | None = None

    @property
    def content(self) -> bool:
        return self._open is None

    async def write(self, link: Shard, book: TopicBook) -> None:
        number = self._number + 1
        if self._open is None:
            self._open = self.ask(book)
            self._open.writer, self._open.number = self.name, number
            self._fence += self.random.random() < 0.1
        move = WriterPosition(self.name, self._fence, position_of(self._number), position_of(number))
        try:
            await self.submit(link, book, self._open, writer=move)
        except StalePosition as error:
            stored = number_of(error.position)
            assert stored < self._number, f"{self.name} is at {self._number} and the store says {stored}"
            assert book.durability is Durability.DISK
            self._number, self._open = stored, None
            return
        self._number, self._open = number, None
        book.positions[self.name] = number
        if self.random.random() < 0.1:
            await self._come_late(link, book)

    async def _come_late(self, link: Shard, book: TopicBook) -> None:
        """Append as a process that was believed dead: its fence is old."""
        ask = self.ask(book)
        old = WriterPosition(self.name, self._fence - 1, position_of(self._number), position_of(self._number + 1))
        with suppress(StaleFence):
            await self.submit(link, book, ask, writer=old)
            raise AssertionError("an old fence was taken")


class Compare(Writer):
    """Writes with the version or head that it has read as a condition."""

    async def write(self, link: Shard, book: TopicBook) -> None:
        ask = self.ask(book)
        if book.kind is Kind.LOG:
            ask.expected_head = (await link.get_topic(book.name)).head_seq
            await sleep(self.world.clock, self.random.choice((0, 0, 0.02)))
            with suppress(HeadMismatch):
                await self.submit(link, book, ask, expected_head_seq=ask.expected_head)
            return
        key = ask.keys[0]
        assert key is not None
        entry = (await link.batch_get_entries(book.name, [key])).entries[0]
        version = effective_version(entry.version, entry.seq) if entry is not None else b""
        ask.expected_version = (key, version)
        await sleep(self.world.clock, self.random.choice((0, 0, 0.02)))
        with suppress(VersionMismatch):
            await self.submit(link, book, ask, expected_versions=(ask.expected_version,))


class SourceWriter(Writer):
    """Writes as a source: holds a lease, and continues at the lease's position."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        super().__init__(world, name, topic)
        self._fence = 0
        self._number = 0

    async def run(self, link: Shard) -> None:
        self._fence = 0
        await super().run(link)

    async def write(self, link: Shard, book: TopicBook) -> None:
        if not self._fence or self.random.random() < 0.1:
            before, self._fence = self._fence, 0  # from the request on the old fence is refused
            lease = await link.acquire_lease(self.name, holder="h", lease_ms=0)
            assert lease.fence > before
            self._fence, self._number = lease.fence, number_of(lease.source.position)
        await self._told(link, book)
        number = self._number + 1
        batch: Batch | None = None
        if number % 4:  # every fourth move is of the position alone
            ask = self.ask(book)
            ask.writer, ask.number, ask.state = self.name, number, "unknown"
            batch = self.batch(ask)
        try:
            result = await link.apply_batch(
                self.name,
                fence=self._fence,
                previous=position_of(self._number),
                new=position_of(number),
                batch=batch,
            )
        except EddylineError:
            self._fence = 0
            raise
        self._number = book.positions[self.name] = number
        assert not result.deduplicated
        if batch is not None:
            acknowledged(book, ask, result)

    async def _told(self, link: Shard, book: TopicBook) -> None:
        """Check that all records up to the lease's position can be read."""
        if self.random.random() > 0.2:
            return
        with suppress(SourceNotFound):
            info = await link.get_source(self.name)
            head_seq = (await link.get_topic(book.name)).head_seq
            newest = [a for a in book.asks if a.number and a.number <= number_of(info.position) and a.first_seq]
            assert all(ask.first_seq <= head_seq for ask in newest)


class TopicChurner(Writer):
    """Creates a topic, writes to it and deletes it, repeatedly."""

    async def run(self, link: Shard) -> None:
        while not self.world.resting:
            with suppress(*_PASSING, TopicNotFound, EpochMismatch, TopicExists):
                await self._round(link)
            await sleep(self.world.clock, self.random.uniform(0, 0.3))

    async def _round(self, link: Shard) -> None:
        books, book = self.world.book, self.world.book.current(self.topic)
        if book is None:
            kind, durability = books.names[self.topic]
            info = await link.create_topic(self.topic, kind, TopicConfig(durability, WINDOW_MS))
            book = books.made(self.topic, info.epoch)
        for _ in range(self.random.randrange(4)):
            await self.submit(link, book, self.ask(book))
            await sleep(self.world.clock, self.random.uniform(0, 0.1))
        if self.random.random() < 0.5:
            before, book.gone = book.gone, None
            try:
                await link.delete_topic(self.topic, if_epoch=book.epoch)
            except (ReadOnly, NotReady):
                book.gone = before
                raise
            book.gone = True


def hash_of(text: str) -> int:
    """Return the same number in every process."""
    return sum(text.encode())


def acknowledged(book: TopicBook, ask: TrackedAppend, result: AppendResult) -> None:
    """Note in the book that an append was acknowledged."""
    ask.state = "acked"
    if result.first_seq:
        assert ask.first_seq in (0, result.first_seq)
        assert result.last_seq == result.first_seq + len(ask.ids) - 1
        ask.first_seq = result.first_seq
        for i, record_id in enumerate(ask.ids):
            book.see(result.first_seq + i, record_id)
