"""Random histories of the whole store on a simulated disk, crashes included, step by step against the oracle."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Literal

import pytest

from eddyline.core.errors import CommitUnknown, EddylineError, NotReady, ReadOnly, TopicNotFound
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, Op, Record, effective_version
from eddyline.store.log.append import AppendRequest, WriterPosition
from tests.support.manual_clock import ManualClock
from tests.support.models.oracle import Oracle, Seen, Staged, Topic
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.sim.worker import SimulatedStop
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    import asyncio

    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

QUICK_SEEDS = 30
LIVES = 5
STEPS = 12
NAMES = ("a", "b", "c", "d")
STOPPED = (CommitUnknown, ReadOnly, NotReady)


class Run:
    """One seeded history: the store's lives, and the oracle that outlives them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.oracle = Oracle()
        self.clock = ManualClock()
        self.fs = SimFs(seed, crash_at=self._crash_at())
        self.fold = SimFold(seed)
        # One FSYNC topic's appends sync the whole log: only a run without any loses much.
        self.classes = self.random.choice(((Durability.DISK,), (Durability.DISK, Durability.FSYNC)))
        self.crash: Literal["kill", "power"] = "kill"
        self.crashes = 0

    async def live(self) -> None:
        """Recover, judge, go on until the machine stops or all steps are done; then crash."""
        crash: CrashKind = self.random.choice(("kill", "power", "detach"))
        try:
            async with sim_store(self.fs, self.fold, self.clock) as link:
                await self._judge(link)
                for _ in range(STEPS):
                    await self._step(link)
                if self.random.random() < 0.7:
                    # The machine stops at its next call, with fresh appends in the kernel's hands.
                    for _ in range(self.random.randint(0, 4)):
                        await self._append(link, 2)
                    self.fs.crash_at = self.fs.calls + 1
        except* SimulatedStop:
            pass
        except* STOPPED:
            assert self.fs.crashed
        self.crashes += self.fs.crashed
        if crash != "kill" and self.fs.crashed:
            self.crash = "power"  # until a recovery has been judged: one that stopped half-way adds to what is lost
        self.fs = self.fs.reboot(crash, seed=self.random.randrange(1 << 30), crash_at=self._crash_at())
        self.fold = self.fold.kill() if crash == "kill" else self.fold.power()

    def _crash_at(self) -> int | None:
        return self.random.choice((None, self.random.randrange(1, 40), self.random.randrange(1, 300)))

    async def _judge(self, link: Shard) -> None:
        for name in list(self.oracle.topics):
            self.oracle.recovered(name, await self._seen(link, name), self.crash)
        self.crash = "kill"

    async def _seen(self, link: Shard, name: str) -> Seen | None:
        try:
            info = await link.get_topic(name)
        except TopicNotFound:
            return None
        items, after_seq, caught_up = list[Record | Gap](), 0, False
        while not caught_up:
            result = await link.read_records(name, after_seq=after_seq, limit=self.random.choice((1, 7, 10_000)))
            for item in result.items:
                items.extend([item] if isinstance(item, Gap) else item.to_rows())
            assert result.next_after_seq > after_seq or result.caught_up, "a read stands still"
            after_seq, caught_up = result.next_after_seq, result.caught_up
        if info.kind is Kind.LOG:
            return Seen(info.epoch, info.head_seq, tuple(items))
        pages = [page.batch async for page in link.range_entries(name)]
        rows = [row for batch in pages if batch is not None for row in batch.to_rows()]
        entries = {row.key: row for row in rows if row.key is not None}
        return Seen(info.epoch, info.head_seq, tuple(items), entries, self.fold.writers(info.epoch))

    async def _step(self, link: Shard) -> None:
        choice = self.random.random()
        missing = [name for name in NAMES if name not in self.oracle.topics]
        if missing and choice < 0.3:
            await self._create(link, self.random.choice(missing))
        elif choice < 0.35:
            await self._delete(link, self.random.choice(NAMES))
        elif choice < 0.45:
            await self.clock.pass_time(self.random.choice((0.01, 1.5, 15.0)))
        elif choice < 0.9:
            await self._append(link, self.random.randint(1, 6))
        else:
            for name in self.oracle.topics:
                seen = await self._seen(link, name)
                assert seen is not None
                self.oracle.check_live(name, seen)

    async def _create(self, link: Shard, name: str) -> None:
        config = TopicConfig(durability=self.random.choice(self.classes), idempotency_window_ms=10_000)
        kind = self.random.choice((Kind.LOG, Kind.KV))
        topic = self.oracle.create_topic(name, kind, config)
        self.oracle.made(topic, (await link.create_topic(name, kind, config)).epoch)

    async def _delete(self, link: Shard, name: str) -> None:
        epoch, empty = self.random.choice((0, 0, 1)), self.random.random() < 0.3
        try:
            topic = self.oracle.delete_topic(name, if_epoch=epoch, if_empty=empty)
        except EddylineError as refusal:
            with pytest.raises(type(refusal)):
                await link.delete_topic(name, if_epoch=epoch, if_empty=empty)
            return
        await link.delete_topic(name, if_epoch=epoch, if_empty=empty)
        self.oracle.gone(topic)

    async def _append(self, link: Shard, count: int) -> None:
        """Stage some appends in one go, then wait for all of them."""
        acks: list[tuple[Staged, asyncio.Future[AppendResult]]] = []
        for _ in range(count):
            request = self._request()
            try:
                staged = self.oracle.stage(request, self.clock.now_ms())
            except EddylineError as refusal:
                with pytest.raises(type(refusal)) as told:
                    await link.stage(request)
                assert told.value.metadata.items() >= refusal.metadata.items()
                continue
            acks.append((staged, await link.stage(request)))
        for staged, ack in acks:
            staged.check(await ack)

    def _request(self) -> AppendRequest:
        topic = self.oracle.topics.get(self.random.choice(NAMES))
        if topic is None:
            return AppendRequest(topic="missing", batch=Batch.from_rows([Record(data=b"x")]))
        done = [attempt.request for attempt in topic.attempts]
        if done and self.random.random() < 0.15:
            return self.random.choice(done)
        kind = topic.kind if self.random.random() < 0.97 else Kind.LOG
        rows = [self._row(kind) for _ in range(self.random.randint(1, 3))]
        chance = self.random.random
        head_seq = topic.staged.head_seq
        return AppendRequest(
            topic=topic.name,
            batch=Batch.from_rows(rows),
            epoch=self.random.choice((0, 0, topic.epoch, topic.epoch + 1 if chance() < 0.1 else 0)),
            idempotency_key=f"key {self.random.randrange(20)}" if chance() < 0.4 else "",
            expected_head_seq=self.random.choice((head_seq, head_seq, head_seq + 1)) if chance() < 0.2 else None,
            expected_versions=self._expected(topic) if chance() < 0.3 else (),
            writer=self._move(topic) if chance() < 0.4 else None,
        )

    def _row(self, kind: Kind) -> Record:
        data, tag = self.random.randbytes(self.random.choice((0, 3, 2_000))), self.random.choice((None, "", "tag"))
        if kind is Kind.LOG:
            return Record(data=data, tag=tag)
        op = self.random.choice((Op.PUT, Op.PUT, Op.PUT, Op.DELETE, Op.PURGE))
        version = self.random.choice((b"", b"", b"\x01"))
        return Record(op=op, key=b"k%d" % self.random.randrange(6), data=data, tag=tag, version=version)

    def _expected(self, topic: Topic) -> tuple[tuple[bytes, bytes], ...]:
        keys = {b"k%d" % self.random.randrange(6) for _ in range(2)}
        live = topic.staged.fold
        versions = [(key, effective_version(live[key].version, live[key].seq) if key in live else b"") for key in keys]
        return tuple((key, b"\xff" if self.random.random() < 0.2 else version) for key, version in versions)

    def _move(self, topic: Topic) -> WriterPosition:
        writer = self.random.choice(("w1", "w2"))
        known = topic.staged.writers.get(writer)
        fence, position = known or (0, b"")
        fence += self.random.choice((0, 0, 0, 1, -1 if fence else 0))
        previous = position if self.random.random() < 0.9 else b"elsewhere"
        return WriterPosition(writer, fence, previous, self.random.randbytes(4))


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
async def test_store_does_what_the_oracle_says(seed: int) -> None:
    run = Run(seed)
    for _ in range(LIVES):
        await run.live()


@pytest.mark.sim
@pytest.mark.timeout(1800)
async def test_store_does_what_the_oracle_says_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    crashes = 0
    for seed in range(1_000, 1_500):
        run = Run(seed)
        try:
            for _ in range(LIVES):
                await run.live()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        crashes += run.crashes
    with capsys.disabled():
        print(f"\noracle: 500 histories, {crashes} crashes")  # noqa: T201
