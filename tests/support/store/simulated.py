"""A store on a simulated disk with a simulated fold and a manual clock, on one loop, without threads."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.store.config import StoreSettings
from eddyline.store.env import Env, new_workers
from eddyline.store.fold.dump import dump_batches
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.log.append import AppendRequest
from eddyline.store.shard.lifecycle import open_store
from tests.support.manual_clock import ManualClock
from tests.support.sim.catalog import SimCatalog
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.sim.worker import InlineWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from eddyline.core.runtime.fs import Fs
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.topic import Topic
    from eddyline.store.shard.shard import Shard
    from eddyline.store.storage.wal.written_mark import WrittenEnd

WAL_FILE_BYTES = 64 << 10
LASTING = (Durability.DISK, Durability.FSYNC)
"""The classes whose records outlive the process."""
CATALOG = Path("/data/catalog")


class SimScratch:
    """A place for a second fold, in memory."""

    def open(self) -> Fold:
        return SimFold(0)

    def close(self) -> None:
        pass


class SimHost:
    """A host whose boot id is the simulated disk's."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id

    def boot_id(self) -> str:
        return self._boot_id

    def name(self) -> str:
        return "simulated"

    def pid(self) -> int:
        return 1


class SimMark:
    """A written mark in the memory of a simulated machine."""

    def __init__(self, fs: SimFs) -> None:
        self._fs = fs
        self._is_kept = False

    def read(self, run: str, shards: int) -> list[WrittenEnd] | None:
        name, left = self._fs.written_mark or ("", [])
        return left[:shards] if name == run and len(left) >= shards else None

    def begin(self, run: str, written: Sequence[WrittenEnd]) -> None:
        self._fs.written_mark = (run, list(written))
        self._is_kept = True

    def put(self, shard: int, written: WrittenEnd) -> None:
        assert self._fs.written_mark is not None
        if self._is_kept and not self._fs.crashed:
            self._fs.written_mark[1][shard] = written

    def close(self) -> None:
        self._is_kept = False

    def remove(self) -> None:
        self.close()
        self._fs.written_mark = None


def settings(**changes: int | str) -> StoreSettings:
    """Settings for a simulated disk, which has one directory: `/data`."""
    chosen: dict[str, int | str] = {"data_dir": "/data", "wal_file_bytes": WAL_FILE_BYTES, **changes}
    return StoreSettings(**chosen)  # type: ignore[arg-type]


@asynccontextmanager
async def sim_store(
    fs: Fs | None = None,
    fold: Fold | None = None,
    clock: ManualClock | None = None,
    *,
    boot_id: str = "",
    cache_bytes: int = 64 << 20,
    cluster_id: str = "test",
    shard_count: int = 1,
    open_fold: Callable[[], Fold] | None = None,
    volume: str = "",
    marked: bool = True,
    tracer: Tracer = NOOP_TRACER,
    writes_here: bool = False,
    **changes: int | str,
) -> AsyncIterator[Shard]:
    """A recovered store; what is not given is new and empty. `open_fold` opens the fold, once or more often. `writes_here` =
    small groups are written at once, on the loop."""
    fs = fs if fs is not None else SimFs()
    if not boot_id:
        boot_id = fs.boot_id if isinstance(fs, SimFs) else "boot"
    made = fold if fold is not None else SimFold(0)
    chosen = settings(**changes)
    machine = Env(
        fs=fs,
        open_fold=open_fold or (lambda: made),
        open_catalog=lambda must_exist: SimCatalog(sim_disk(fs), CATALOG, must_exist=must_exist),
        clock=clock or ManualClock(),
        host=SimHost(boot_id),
        workers=new_workers(lambda name, threads: InlineWorker(is_idle=writes_here), wal_shards=chosen.wal_shards),
        plan=memory_plan(chosen.memory_bytes)._replace(cache_bytes=cache_bytes),
        volume=lambda _directory: volume,
        scratch=SimScratch(),
        written_mark=SimMark(sim_disk(fs)) if marked else None,
        tracer=tracer,
    )
    async with open_store(machine, chosen, cluster_id=cluster_id, shard_count=shard_count) as link:
        yield link


def sim_disk(fs: Fs) -> SimFs:
    """The simulated disk below a file system that may err."""
    while isinstance(fs, FaultyFs):
        fs = fs.inner
    assert isinstance(fs, SimFs)
    return fs


class LogPlace(Enum):
    """The place of a log when a test reads it: WAL frames, segments, or wherever a start after a kill or a stop finds it."""

    FRAMES = "frames"
    SEGMENTS = "segments"
    KILLED = "killed"
    STOPPED = "stopped"


LOG_PLACES = tuple(LogPlace)


class PlacedStore:
    """One store over its starts, whose logs lie where a test needs them. `link` is the running one's."""

    def __init__(self, place: LogPlace, seed: int = 0, **changes: int | str) -> None:
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
        if self.place is LogPlace.SEGMENTS:
            await self.seal()
        elif self.place is not LogPlace.FRAMES:
            await self.stop(kill=self.place is LogPlace.KILLED)
            await self.start()


@asynccontextmanager
async def placed_store(place: LogPlace, **changes: int | str) -> AsyncIterator[PlacedStore]:
    """A new store, running."""
    store = PlacedStore(place, **changes)  # type: ignore[arg-type]
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


def puts(*pairs: tuple[str, str | None]) -> Batch:
    """KV records: a PUT each, or a DELETE where the value is None."""
    return Batch.from_rows(
        [
            Record(op=Op.DELETE, key=key.encode())
            if value is None
            else Record(op=Op.PUT, key=key.encode(), data=value.encode())
            for key, value in pairs
        ]
    )


def rows(*values: str) -> Batch:
    """LOG records."""
    return Batch.from_rows([Record(data=value.encode()) for value in values])


async def append(link: Shard, topic: str, batch: Batch, **conditions: object) -> AppendResult:
    """Stage an append and wait for its acknowledgement."""
    return await (await link.stage(AppendRequest(topic=topic, batch=batch, **conditions)))  # type: ignore[arg-type]


async def log_topic(link: Shard, name: str = "log", durability: Durability = Durability.DISK) -> int:
    """Make a LOG topic; its epoch."""
    return (await link.create_topic(name, Kind.LOG, TopicConfig(durability=durability))).epoch


async def kv_topic(link: Shard, name: str = "kv", durability: Durability = Durability.DISK) -> int:
    """Make a KV topic; its epoch."""
    return (await link.create_topic(name, Kind.KV, TopicConfig(durability=durability))).epoch


async def all_rows(link: Shard, topic: str, after_seq: int = 0) -> list[Record]:
    """Every record above `after_seq`; a gap is an error."""
    found: list[Record] = []
    while True:
        result = await link.read_records(topic, after_seq=after_seq, limit=10_000)
        for item in result.items:
            assert isinstance(item, Batch), item
            found.extend(item.to_rows())
        after_seq = result.next_after_seq
        if result.caught_up:
            return found


def values(records: Sequence[Record]) -> list[bytes | None]:
    """Payloads alone."""
    return [record.data for record in records]
