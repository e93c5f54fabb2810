"""A store whose logs lie where a test wants them: in WAL frames, in segments, or wherever a restart finds them."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING

from eddyline.core.records.batch import Batch
from eddyline.store.fold.dump import dump_batches
from tests.support.manual_clock import ManualClock
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.records.record import Gap, Record
    from eddyline.store.log.topic import Topic
    from eddyline.store.shard.shard import Shard


class Place(Enum):
    """The history of a log before it is read."""

    FRAMES = "frames"
    SEGMENTS = "segments"
    KILLED = "killed"
    STOPPED = "stopped"


PLACES = tuple(Place)


class PlacedStore:
    """One store over its starts. `link` is the running one's."""

    def __init__(self, place: Place, seed: int = 0, **changes: int | str) -> None:
        self.place = place
        self.fs, self.fold, self.clock = SimFs(seed), SimFold(seed), ManualClock()
        self._changes = changes
        self._running = AsyncExitStack()
        self.link: Shard

    async def start(self) -> None:
        """Open it."""
        self.link = await self._running.enter_async_context(
            sim_store(self.fs, self.fold, self.clock, **self._changes)  # type: ignore[arg-type]
        )

    async def stop(self, *, kill: bool = False) -> None:
        """End it: a clean stop, or SIGKILL."""
        self.fs.crashed = kill
        try:
            await self._running.aclose()
        except* Crashed:
            assert kill
        self.fs, self.fold = self.fs.reboot("kill"), self.fold.kill()

    def topic(self, name: str) -> Topic:
        """A topic's state."""
        return self.link._table.get(name)

    async def seal(self) -> None:
        """Move all that is in frames into segments: one a topic."""
        for topic in self.link._table.with_frames():
            await self.link._parts.maintenance._sealer.seal(topic, topic.head_seq)

    async def make_base(self, name: str) -> None:
        """Make a base of a topic's fold as it is now."""
        topic, engine = self.topic(name), self.link._engine
        if not engine.fold.applied(topic.id):
            return
        view = engine.fold.view(topic.id)
        try:
            swap = self.link._parts.maintenance._sealer._swap
            await swap.write_base(topic, engine.fold.applied(topic.id), lambda: dump_batches(view))
        finally:
            view.close()

    async def put(self) -> None:
        """Bring what was appended since to its place."""
        if self.place is Place.SEGMENTS:
            await self.seal()
        elif self.place is not Place.FRAMES:
            await self.stop(kill=self.place is Place.KILLED)
            await self.start()


@asynccontextmanager
async def placed_store(place: Place, **changes: int | str) -> AsyncIterator[PlacedStore]:
    """A new store, running."""
    store = PlacedStore(place, **changes)  # type: ignore[arg-type]
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def items_after(link: Shard, topic: str, after_seq: int = 0, *, epoch: int = 0) -> list[Record | Gap]:
    """All items of a reader, read by read."""
    found: list[Record | Gap] = []
    while True:
        result = await link.read_records(topic, after_seq=after_seq, epoch=epoch, limit=10_000)
        for item in result.items:
            found += item.to_rows() if isinstance(item, Batch) else [item]
        after_seq, epoch = result.next_after_seq, result.epoch
        if result.caught_up:
            return found
