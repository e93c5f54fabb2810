"""A store's lives one after the other, whose folds go missing or are damaged between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.storage.layout import Layout
from tests.support.manual_clock import ManualClock
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import append, kv_topic, puts, settings, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from eddyline.core.records.record import Record
    from eddyline.store.shard.shard import Shard

LAYOUT = Layout(settings().directory)


class Lives:
    """A store's disk and clock from start to start, and the fold that the next start opens."""

    def __init__(self) -> None:
        self.fs, self.clock, self.fold = SimFs(), ManualClock(), SimFold(0)
        self.opened: list[SimFold] = []

    async def run(self, work: Callable[[Shard], Awaitable[None]], *, kill: bool = False) -> None:
        """One life, of which each new fold is an empty one; it ends in order, or is killed."""
        folds: list[SimFold | None] = [self.fold]

        def open_fold() -> SimFold:
            self.fold = folds.pop() if folds else SimFold(0)  # type: ignore[assignment]  # never None
            self.opened.append(self.fold)
            return self.fold

        try:
            async with sim_store(self.fs, clock=self.clock, open_fold=open_fold) as link:
                await work(link)
                self.fs.crashed = kill
        except* Crashed:
            assert kill
        self.fs = self.fs.reboot("kill")
        self.fold = self.fold.kill()


async def entries(link: Shard, topic: str = "kv") -> list[Record]:
    found: list[Record] = []
    async for page in link.range_entries(topic):
        if page.batch is not None:
            found += page.batch.to_rows()
    return found


async def nothing(link: Shard) -> None:
    """Only start."""


async def fill(link: Shard, count: int = 20) -> None:
    """Records of a few keys, sealed in part, in several frames; some keys are gone."""
    await kv_topic(link)
    for number in range(count):
        await append(link, "kv", puts((f"k{number % 7}", f"v{number}"), (f"g{number}", "x")))
        if number % 3:
            await append(link, "kv", puts((f"g{number}", None)))
        if number == count // 2:
            await seal(link)


async def seal(link: Shard, topic: str = "kv") -> None:
    found = link._table.get(topic)
    await link._parts.checkpointer._sealer.seal(found, found.head_seq)


def kept(found: list[Record]) -> Callable[[Shard], Awaitable[None]]:
    """Note what the fold has."""

    async def look(link: Shard) -> None:
        found[:] = await entries(link)

    return look


async def entries_of(lives: Lives) -> list[Record]:
    found: list[Record] = []
    await lives.run(kept(found))
    return found


def flip(lives: Lives, path: Path) -> int:
    """Damage the middle of a file; where."""
    file = lives.fs.open(path)
    offset = file.size() // 2
    byte = file.pread(1, offset)
    file.pwritev([bytes((byte[0] ^ 0xFF,))], offset)
    file.fsync()
    file.close()
    return offset


def first_segment(lives: Lives) -> Path:
    """The file of the first segment of the first topic."""
    directory = LAYOUT.topic_dir(1)
    return directory / min(name for name in lives.fs.listdir(directory) if name.startswith("seg"))
