"""Random histories of a whole store on a simulated disk, crashes included, compared with the model of its contract.

Appends carry epochs, idempotency keys, writers' positions, expected heads and expected versions, and some of them are wrong;
earlier appends are repeated. `tests/sim/test_walk.py` walks through retention, deletes and the store's own jobs instead.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown, NotReady, ReadOnly, TopicNotFound
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record, effective_version
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.storage.layout import Layout
from tests.crash.disk import check_files
from tests.support.manual_clock import ManualClock
from tests.support.models.history import End, History, TopicHistory, read_items
from tests.support.models.recorded_store import Play, check_refused
from tests.support.models.topic_model import NO_WRITER, Moment, TopicModel
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.sim.worker import SimulatedStop
from tests.support.store.simulated import settings, sim_store

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

QUICK_SEEDS = 30
LIVES = 4
STEPS = 15
NAMES = ("a", "b", "c", "d")
STOPPED = (CommitUnknown, ReadOnly, NotReady)
RETRIES_FROM = 20
"""The latest requests of a topic, from which retries are drawn."""


class Machine:
    """One seeded history: the lives of a store on one disk."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = History()
        self.clock = ManualClock()
        self.fs = SimFs(seed, crash_at=self._crash_at())
        self.fold = SimFold(seed)
        self.requests: dict[int, list[AppendRequest]] = defaultdict(list)
        """By the topic's epoch."""
        # One FSYNC topic's appends sync the whole log: only a run without any loses much.
        self.classes = self.random.choice(((Durability.DISK,), (Durability.DISK, Durability.FSYNC)))
        self.end: End = "kill"
        self.crashes = 0
        self.writes_here = seed % 2 == 1

    async def run(self) -> None:
        """Run all lives, and a last start after which the directory is checked."""
        for _ in range(LIVES):
            await self.live()
        self.fs.crash_at = None
        async with sim_store(self.fs, self.fold, self.clock, writes_here=self.writes_here) as link:
            await (await self._recovered(link)).upkeep()
            check_files(link, self.fs, Layout(settings().directory))

    async def live(self) -> None:
        """Start, compare, go on until the machine stops or all steps are done; then crash."""
        crash: CrashKind = self.random.choice(("kill", "power", "detach"))
        try:
            async with sim_store(self.fs, self.fold, self.clock, writes_here=self.writes_here) as link:
                play = await self._recovered(link)
                for _ in range(STEPS):
                    await self._step(play)
                if self.random.random() < 0.7:
                    # The machine stops at its next call, with the latest appends in the kernel's hands.
                    for _ in range(self.random.randint(0, 4)):
                        await self._append(play, 2)
                    self.fs.crash_at = self.fs.calls + 1
        except* SimulatedStop:
            pass
        except* STOPPED:
            assert self.fs.crashed
        self.crashes += self.fs.crashed
        if crash != "kill" and self.fs.crashed:
            self.end = "power"  # until a recovery is compared: one that stopped half-way adds to the loss
        self.fs = self.fs.reboot(crash, seed=self.random.randrange(1 << 30), crash_at=self._crash_at())
        self.fold = self.fold.kill() if crash == "kill" else self.fold.power()

    def _crash_at(self) -> int | None:
        return self.random.choice((None, self.random.randrange(1, 40), self.random.randrange(1, 300)))

    async def _recovered(self, link: Shard) -> Play:
        """Compare a recovered store with the history."""
        await self.history.judge(link, self.end, Moment(self.clock.now_ms(), self.clock.now_ms()))
        self.end = "kill"
        play = Play(link, self.history, self.clock)
        await self._read_in_pages(play)
        return play

    async def _read_in_pages(self, play: Play) -> None:
        if topics := self.history.current():
            topic, limit = self.random.choice(topics), self.random.choice((1, 7))
            assert await read_items(play.link, topic.name, limit=limit) == topic.model.kept.read(0)

    async def _step(self, play: Play) -> None:
        choice = self.random.random()
        missing = [name for name in NAMES if name not in self._topics()]
        if missing and choice < 0.3:
            config = TopicConfig(idempotency_window_ms=10_000)
            kind, durability = self.random.choice((Kind.LOG, Kind.KV)), self.random.choice(self.classes)
            await play.make(self.random.choice(missing), kind, durability, config)
        elif choice < 0.35:
            await self._drop(play, self.random.choice(NAMES))
        elif choice < 0.45:
            await self.clock.pass_time(self.random.choice((0.01, 1.5, 15.0)))
        elif choice < 0.9:
            await self._append(play, self.random.randint(1, 6))
        else:
            await play.check()
            await self._read_in_pages(play)

    def _topics(self) -> dict[str, TopicHistory]:
        return {topic.name: topic for topic in self.history.current()}

    async def _drop(self, play: Play, name: str) -> None:
        topic = self._topics().get(name)
        if topic is None:
            await check_refused(play.link.delete_topic(name), TopicNotFound("no such topic"))
        else:
            if_empty = self.random.random() < 0.3
            await play.drop(topic, if_epoch=self.random.choice((0, 0, 1)), if_empty=if_empty)

    async def _append(self, play: Play, count: int) -> None:
        """Stage some appends in one go, then wait for all of them."""
        staged = []
        for _ in range(count):
            topic = self._topics().get(self.random.choice(NAMES))
            if topic is None:
                request = AppendRequest(topic="missing", batch=Batch.from_rows([Record(data=b"x")]))
                await check_refused(play.link.stage(request), TopicNotFound("no such topic"))
            else:
                staged.append(await play.stage(topic, self._request(topic)))
        await play.acknowledge(staged)

    def _request(self, topic: TopicHistory) -> AppendRequest:
        sent, chance = self.requests[topic.epoch], self.random.random
        if sent and chance() < 0.15:
            return self.random.choice(sent[-RETRIES_FROM:])
        model = topic.model
        kind = topic.kind if chance() < 0.97 else Kind.LOG
        rows = [self._row(kind) for _ in range(self.random.randint(1, 3))]
        head_seq = model.kept.head_seq
        request = AppendRequest(
            topic=topic.name,
            batch=Batch.from_rows(rows),
            epoch=self.random.choice((0, 0, topic.epoch, topic.epoch + 1 if chance() < 0.1 else 0)),
            idempotency_key=f"key {self.random.randrange(20)}" if chance() < 0.4 else "",
            expected_head_seq=self.random.choice((head_seq, head_seq, head_seq + 1)) if chance() < 0.2 else None,
            expected_versions=self._expected(model) if chance() < 0.3 else (),
            writer=self._move(model) if chance() < 0.4 else None,
        )
        sent.append(request)
        return request

    def _row(self, kind: Kind) -> Record:
        data, tag = self.random.randbytes(self.random.choice((0, 3, 2_000))), self.random.choice((None, "", "tag"))
        if kind is Kind.LOG:
            return Record(data=data, tag=tag)
        op = self.random.choice((Op.PUT, Op.PUT, Op.PUT, Op.DELETE, Op.PURGE))
        version = self.random.choice((b"", b"", b"\x01"))
        return Record(op=op, key=b"k%d" % self.random.randrange(6), data=data, tag=tag, version=version)

    def _expected(self, model: TopicModel) -> tuple[tuple[bytes, bytes], ...]:
        keys = {b"k%d" % self.random.randrange(6) for _ in range(2)}
        entries = [(key, model.fold.get(key)) for key in sorted(keys)]
        versions = [(key, effective_version(row.version, row.seq) if row is not None else b"") for key, row in entries]
        return tuple((key, b"\xff" if self.random.random() < 0.2 else version) for key, version in versions)

    def _move(self, model: TopicModel) -> WriterPosition:
        writer = self.random.choice(("w1", "w2"))
        fence, position = model.writers.get(writer, NO_WRITER)
        fence += self.random.choice((0, 0, 0, 1, -1 if fence else 0))
        previous = position if self.random.random() < 0.9 else b"another"
        return WriterPosition(writer, fence, previous, self.random.randbytes(4))


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
async def test_store_agrees_with_the_model_of_its_contract(seed: int) -> None:
    await Machine(seed).run()


@pytest.mark.sim
@pytest.mark.timeout(1800)
async def test_store_agrees_with_the_model_of_its_contract_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    crashes = 0
    for seed in range(1_000, 1_500):
        machine = Machine(seed)
        try:
            await machine.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        crashes += machine.crashes
    with capsys.disabled():
        print(f"\nrandom histories: 500, {crashes} crashes")  # noqa: T201
