"""A store's life: lock, identity, recover, serve, drain, close. The only place where its parts are put together.

I1: the directory is ours (LOCK) before anything in it is read. I2: losses are logged and synced before the identity says
this boot's id, so a crash in between decides them again alike. I3: a clean stop says so only after the last fdatasync.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import fields
from eddyline.store.commit import STOPPED
from eddyline.store.engine import Engine
from eddyline.store.entries import Entries
from eddyline.store.fold.fold import FoldFailed
from eddyline.store.link import LocalLink
from eddyline.store.log.cache import FrameCache
from eddyline.store.log.table import TopicTable
from eddyline.store.reader import LogReader
from eddyline.store.recovery import Replay, settle_losses
from eddyline.store.sources import Sources
from eddyline.store.storage.identity import Identity, read_identity, write_identity
from eddyline.store.storage.layout import Layout
from eddyline.store.storage.wal import Wal, WalEnd
from eddyline.store.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from eddyline.core.clock import Clock, Host
    from eddyline.store.config import StoreSettings
    from eddyline.store.fold.fold import Fold
    from eddyline.store.storage.fs import Fs
    from eddyline.store.workers import Worker

logger = logging.getLogger(__name__)

SHARD_INDEX: Final = 0
SHARD_COUNT: Final = 1
"""One store shard for now; the identity records both, so that a directory is never served as another's."""
READER_THREADS: Final = 4
"""Disk reads at once: enough to keep a disk busy, and each at most one frame of memory."""


class IdentityMismatch(Exception):
    """The data directory belongs to another cluster or shard.

    Operator action: configure this store as the directory says, or give it a directory of its own.
    """


@dataclass(frozen=True, slots=True)
class Workers:
    """Where a store's blocking calls run: one thread for the WAL, one for the fold, a few for reads, one for spare files."""

    wal: Worker
    fold: Worker
    reader: Worker
    background: Worker

    def close(self) -> None:
        """End all, each after its jobs."""
        for worker in (self.background, self.reader, self.wal, self.fold):
            worker.close()


def new_workers(make: Callable[[str, int], Worker]) -> Workers:
    """A store's workers by their names and thread counts."""
    return Workers(
        wal=make("wal-0", 1),
        fold=make("fold", 1),
        reader=make("reader", READER_THREADS),
        background=make("background", 1),
    )


@asynccontextmanager
async def open_store(
    *,
    fs: Fs,
    open_fold: Callable[[], Fold],
    clock: Clock,
    host: Host,
    settings: StoreSettings,
    cluster_id: str,
    workers: Workers,
) -> AsyncIterator[LocalLink]:
    """Recover a data directory and serve it; on leaving drain, sync, and say that the stop was clean.

    Raises:
        Locked: another process has the directory. IdentityMismatch: it belongs to another cluster or shard.
        DataCorrupt: a checksum is wrong below the synced point; nothing was changed.
    """
    layout = Layout(settings.directory)
    layout.make_directories(fs, shard=SHARD_INDEX)
    holder = f"pid {host.pid()} on {host.name()}, listening at {settings.listen}"
    lock = fs.lock(layout.lock, holder.encode())
    try:
        async with _recovered(
            fs=fs,
            layout=layout,
            open_fold=open_fold,
            clock=clock,
            host=host,
            settings=settings,
            cluster_id=cluster_id,
            workers=workers,
        ) as link:
            yield link
    finally:
        workers.close()
        lock.release()


@asynccontextmanager
async def _recovered(
    *,
    fs: Fs,
    layout: Layout,
    open_fold: Callable[[], Fold],
    clock: Clock,
    host: Host,
    settings: StoreSettings,
    cluster_id: str,
    workers: Workers,
) -> AsyncIterator[LocalLink]:
    before = read_identity(fs, layout)
    check_identity(before, cluster_id)
    boot_id = host.boot_id()
    with ExitStack() as opened:
        fold = open_fold()
        opened.callback(fold.close)
        table, sources = TopicTable(SHARD_INDEX), Sources(clock)
        replay = Replay(table=table, sources=sources, fold=fold)
        wal_directory, file_bytes = layout.wal_shard(SHARD_INDEX), settings.wal_file_bytes
        left = WalEnd(before.wal_number, before.wal_bytes) if before is not None else None
        recover = partial(Wal.recover, fs, wal_directory, SHARD_INDEX, file_bytes, replay.frame, expected=left)
        wal = await workers.wal.submit(recover)
        opened.callback(wal.close)
        await workers.fold.submit(replay.finish)
        bytes_lost = lost_bytes(before, boot_id, replay)
        settle_losses(table=table, fold=fold, wal=wal, bytes_lost=bytes_lost, now_ms=clock.now_ms())
        identity = Identity(
            cluster_id=cluster_id,
            shard_index=SHARD_INDEX,
            shard_count=SHARD_COUNT,
            instance=before.instance + 1 if before is not None else 1,
            boot_id=boot_id,
            clean=False,
            wal_number=wal.end.file_number,
        )
        write_identity(fs, layout, identity)
        cache = FrameCache(settings.cache_bytes)
        engine = Engine(
            table=table,
            wal=wal,
            fold=fold,
            clock=clock,
            cache=cache,
            wal_worker=workers.wal,
            fold_worker=workers.fold,
            topics_max=settings.topics_max,
        )
        link = LocalLink(
            engine=engine,
            reader=LogReader(wal=wal, cache=cache, worker=workers.reader, clock=clock),
            entries=Entries(
                fold=fold, fold_worker=workers.fold, reader_worker=workers.reader, clock=clock, sources=sources
            ),
            sources=sources,
            instance=identity.instance,
            wal_bytes=lambda: wal.bytes_total,
        )
        async with _serving(engine, link, wal, workers, sync_interval_ms=settings.sync_interval_ms):
            yield link
        with suppress(FoldFailed):  # a broken fold is brought up from the log again
            await workers.fold.submit(fold.flush)
        if engine.read_only_reason in ("", STOPPED):
            end = wal.end
            clean = replace(identity, clean=True, wal_number=end.file_number, wal_bytes=end.file_bytes)
            write_identity(fs, layout, clean)


@asynccontextmanager
async def _serving(
    engine: Engine, link: LocalLink, wal: Wal, workers: Workers, *, sync_interval_ms: int
) -> AsyncIterator[None]:
    """Run the shard's tasks; on leaving drain and sync."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(engine.committer.run()),
            tasks.create_task(engine.applier.run()),
            tasks.create_task(Upkeep(engine, sync_interval_ms=sync_interval_ms).run()),
            tasks.create_task(spare_files(wal, engine.committer.spare_wanted, workers.background)),
        ]
        try:
            yield
            link.stop_writes()
            await engine.drain()
            await engine.committer.sync()
        except Exception as error:
            failure = error  # the user's own: raised as it is once our tasks have ended, not wrapped in their group
        finally:
            for task in running:
                task.cancel()
    if failure is not None:
        raise failure


def check_identity(identity: Identity | None, cluster_id: str) -> None:
    """Raises IdentityMismatch where a directory is another cluster's or shard's."""
    if identity is None:
        return
    ours = (cluster_id, SHARD_INDEX, SHARD_COUNT)
    theirs = (identity.cluster_id, identity.shard_index, identity.shard_count)
    if ours != theirs:
        raise IdentityMismatch(
            f"the data directory is shard {theirs[1]} of {theirs[2]} of cluster {theirs[0]!r}, "
            f"the configuration says shard {ours[1]} of {ours[2]} of cluster {ours[0]!r}"
        )


def lost_bytes(before: Identity | None, boot_id: str, replay: Replay) -> bool:
    """Whether bytes handed to the kernel may be gone: after a power-up, where nobody knows, or where the fold proves it."""
    if before is None:
        return replay.frame_count > 0
    return (not before.clean and before.boot_id != boot_id) or replay.fold_is_ahead


async def spare_files(wal: Wal, wanted: asyncio.Event, worker: Worker) -> None:
    """Keep the next WAL file ready, zero-filled in the background: for ever, one at a time."""
    while True:
        try:
            await worker.submit(wal.prepare_spare)
        except OSError as error:
            logger.warning("wal_spare_failed", extra=fields(error=str(error)))  # the rotation fills one itself
        await wanted.wait()
        wanted.clear()
