"""Life of a store: lock, identity, recover, serve, drain, checkpoint, close.

I1: the directory is locked before anything in it is read. I2: losses are logged and synced before the identity has this
boot's id, so a start after a crash in between decides them alike. I3: a clean stop is recorded only after the last
fdatasync. I4: a store that begins to serve with topics has imported pyarrow; an empty one imports it after its first topic.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.errors import DataCorrupt, EddylineError
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.tasks import task_group
from eddyline.store.artifacts.artifacts import clean as clean_artifacts
from eddyline.store.background.periodic_sync import PeriodicSync
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.fold.fold import FoldFailed, FoldStalled
from eddyline.store.recovery.losses import find_losses, log_losses
from eddyline.store.recovery.open import recover
from eddyline.store.recovery.open_fold import FoldOpener
from eddyline.store.recovery.orphans import check_top
from eddyline.store.recovery.reshard import reshard
from eddyline.store.shard.arrow_import import import_arrow
from eddyline.store.shard.assembly import build_parts
from eddyline.store.shard.instance_fence import InstanceFence, Superseded
from eddyline.store.shard.shard import Shard
from eddyline.store.storage.identity import Identity, next_start, read_identity, write_identity
from eddyline.store.storage.layout import Layout
from eddyline.store.storage.volume import unsuitable_volume
from eddyline.store.storage.wal.written_mark import run_name
from eddyline.store.write.staged import STOPPED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.background.checkpoint import Checkpointer
    from eddyline.store.catalog.catalog import Catalog
    from eddyline.store.config import StoreSettings
    from eddyline.store.env import Env, Workers
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.shard.parts import ShardParts
    from eddyline.store.storage.wal.wal import Wal
    from eddyline.store.storage.wal.written_mark import WrittenMark
    from eddyline.store.write.engine import Engine

logger = logging.getLogger(__name__)


class ShardOf(NamedTuple):
    """Which shard of which cluster a store is. The shard of a topic depends on the count, so the count is fixed for the
    cluster's life."""

    cluster_id: str
    shard_index: int
    shard_count: int

    def __str__(self) -> str:
        return f"shard {self.shard_index} of {self.shard_count} of cluster {self.cluster_id!r}"


class IdentityMismatch(Exception):
    """The data directory belongs to another cluster or shard.

    Operator action: configure this store for the directory's cluster and shard, or give it a directory of its own."""


@asynccontextmanager
async def open_store(
    env: Env, settings: StoreSettings, *, cluster_id: str, shard_count: int = 1
) -> AsyncIterator[Shard]:
    """Recover a data directory and serve it as the shard `settings.shard` of `shard_count`; on exit drain, sync,
    checkpoint, and record the clean stop.

    Raises:
        Locked: another process has the directory. IdentityMismatch: it belongs to another cluster or shard.
        ForeignFile: a file that no store writes lies in it.
        DataCorrupt: a checksum is wrong below the synced point. CatalogLost: the catalog is missing or too old. Nothing
            was changed.
    """
    layout = Layout(settings.directory)
    if trouble := unsuitable_volume(env.volume(settings.directory)):
        logger.warning("a bad place for data", extra=fields(directory=str(settings.directory), trouble=trouble))
    check_top(env.fs, layout)
    layout.make_directories(env.fs)
    holder = f"pid {env.host.pid()} on {env.host.name()}, listening at {settings.listen}"
    lock = env.fs.lock(layout.lock, holder.encode())
    try:
        ours = ShardOf(cluster_id, settings.shard, shard_count)
        async with _recovered(env, settings, layout, ours) as shard:
            yield shard
    finally:
        env.workers.close()
        lock.release()


@asynccontextmanager
async def _recovered(env: Env, settings: StoreSettings, layout: Layout, ours: ShardOf) -> AsyncIterator[Shard]:
    fs, clock, workers = env.fs, env.clock, env.workers
    before = read_identity(fs, layout)
    check_identity(before, ours)
    boot_id = env.host.boot_id()
    if env.scratch is not None:
        await workers.reader.submit(env.scratch.close)  # left by a process that died while it verified a fold
    if env.artifacts is not None:
        await workers.reader.submit(partial(clean_artifacts, env.artifacts))  # left by one that died in an import
    with ExitStack() as opened:
        catalog = env.open_catalog(before is not None and before.catalog)
        opened.callback(partial(close_quietly, catalog))
        folds = FoldOpener(env, layout)
        opened.callback(folds.close)
        opened.callback(workers.close)  # closes first: jobs of cancelled callers read fold and catalog
        recovered = await recover(env, settings, layout, catalog=catalog, folds=folds, previous=before)
        if before is None and len(recovered.table):
            raise DataCorrupt(
                f"{layout.identity} is missing, and this directory has topics: put it back, or restore the directory from "
                "a copy",
                file=str(layout.identity),
                offset=0,
            )
        fold = recovered.fold
        if env.written_mark is not None:
            opened.callback(env.written_mark.close)
        opened.callback(lambda: close_all(recovered.wals))
        opened.callback(partial(end_all, workers.wals))  # closes first: its jobs use the WAL's files
        lost = find_losses(before, boot_id, replay=recovered.replay, wals=recovered.wals, mark=env.written_mark)
        log_losses(table=recovered.table, fold=fold, wals=recovered.wals, lost=lost, now_ms=clock.now_ms())
        if len(recovered.wals) != settings.wal_shards:
            change = partial(
                reshard,
                fs,
                layout,
                recovered,
                catalog=catalog,
                fold=fold,
                wal_shards=settings.wal_shards,
                file_bytes=settings.wal_file_bytes,
            )
            recovered = await workers.wals[0].submit(change)
        if len(recovered.table):
            await import_arrow(workers.background)
        parts = build_parts(env, settings, layout, recovered, catalog=catalog, fold=fold)
        await parts.disk_guard.poll()
        await parts.checkpointer.run(light=True)
        instance = next_start(before)
        identity = Identity(
            **ours._asdict(),
            instance=instance,
            boot_id=boot_id,
            clean=False,
            wal_number=recovered.wals[0].end.file_number,
            catalog=True,
            marked=keep_mark(env.written_mark, run_name(boot_id, instance), recovered.wals),
        )
        write_identity(fs, layout, identity)
        fence = InstanceFence(fs, layout, clock, identity.instance)
        for wal in recovered.wals:
            wal.guard = fence.check
        shard = Shard(parts, instance=identity.instance)
        async with _serving(parts, shard, workers, settings):
            yield shard
        with suppress(FoldFailed):  # a broken fold catches up from the log at the next start
            await workers.fold.submit(fold.flush)
        if parts.engine.read_only_reason in ("", STOPPED) and all(wal.all_synced for wal in recovered.wals):
            end = recovered.wals[0].end
            clean = replace(identity, clean=True, wal_number=end.file_number, wal_bytes=end.file_bytes)
            _tell_clean_stop(fs, layout, clean, fence, env.written_mark)


def _tell_clean_stop(fs: Fs, layout: Layout, clean: Identity, fence: InstanceFence, mark: WrittenMark | None) -> None:
    try:
        fence.check_now()
        write_identity(fs, layout, clean)
        if mark is not None:
            mark.remove()
    except (OSError, Superseded) as error:  # the next start recovers as after a kill: the log is complete
        logger.warning("clean_stop_not_told", extra=fields(error=str(error)))


@asynccontextmanager
async def _serving(parts: ShardParts, shard: Shard, workers: Workers, settings: StoreSettings) -> AsyncIterator[None]:
    """Run the shard's tasks; on exit drain, sync and checkpoint."""
    engine = parts.engine
    async with task_group() as tasks:
        running = [tasks.create_task(committer.run()) for committer in engine.committers]
        running += [
            tasks.create_task(engine.applier.run()),
            tasks.create_task(parts.disk_guard.run()),
            *([tasks.create_task(parts.memory_guard.run())] if parts.memory_guard is not None else []),
        ]
        running += [
            tasks.create_task(spare_files(committer.wal, committer.spare_wanted, workers.background))
            for committer in engine.committers
        ]
        writing = [  # these write on their own initiative
            tasks.create_task(PeriodicSync(engine, sync_interval_ms=settings.sync_interval_ms).run()),
            tasks.create_task(parts.retention.run()),
            tasks.create_task(parts.maintenance.run()),
        ]
        try:
            yield
            shard.stop_writes()
            give_up(engine)
            for task in writing:
                await ended(task)
            await engine.drain()
            for committer in engine.committers:
                await committer.sync()
            if not engine.read_only_reason:
                await _last_checkpoint(parts.checkpointer)
        finally:
            give_up(engine)
            for task in (*running, *writing):
                task.cancel()


def give_up(engine: Engine) -> None:
    """Stop retrying writes for want of descriptors or memory: the store ends."""
    for committer in engine.committers:
        committer.wal.give_up()


async def _last_checkpoint(checkpointer: Checkpointer) -> None:
    """Checkpoint, so that the next start replays nothing. A failure is logged: the log has everything."""
    try:
        await checkpointer.run(light=True, clean=True)
    except (EddylineError, OSError, CatalogFailed, FoldFailed, FoldStalled) as error:
        logger.warning("last_checkpoint_failed", extra=fields(error=str(error)))


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait([task])


def end_all(workers: Sequence[Worker]) -> None:
    """End workers, each after the job it has begun."""
    for worker in workers:
        worker.close()


def close_all(wals: Sequence[Wal]) -> None:
    """Close every WAL shard."""
    for wal in wals:
        wal.close()


def close_quietly(catalog: Catalog) -> None:
    """Close a catalog whose disk may be full or gone: every write to it is durable, or was refused."""
    try:
        catalog.close()
    except CatalogFailed as error:
        logger.warning("catalog_not_closed", extra=fields(error=str(error)))


def check_identity(identity: Identity | None, ours: ShardOf) -> None:
    """Raise IdentityMismatch if the directory is of another cluster or shard."""
    if identity is None:
        return
    theirs = ShardOf(identity.cluster_id, identity.shard_index, identity.shard_count)
    if ours == theirs:
        return
    ways = list[str]()
    if ours.cluster_id != theirs.cluster_id:
        ways.append("set that cluster (EDDYLINE_COMMON_CLUSTER_ID)")
    if ours.shard_count != theirs.shard_count:
        ways.append(f"set {theirs.shard_count} store addresses (EDDYLINE_COMMON_STORE_ADDRESSES), a fixed number")
    if ours.shard_index != theirs.shard_index:
        ways.append(f"start it as shard {theirs.shard_index} (EDDYLINE_STORE_SHARD_INDEX)")
    raise IdentityMismatch(
        f"the data directory is {theirs}, the configuration {ours}: {' and '.join(ways)}, or set another directory "
        "(EDDYLINE_STORE_DATA_DIR). Nothing was changed"
    )


def keep_mark(mark: WrittenMark | None, run: str, wals: Sequence[Wal]) -> bool:
    """Begin to record which bytes are written; return False if there is no place for the mark. Call it once losses are
    handled: the previous run's mark is not needed any more."""
    if mark is None:
        return False
    try:
        mark.begin(run, [wal.written for wal in wals])
    except OSError as error:
        logger.warning("written_mark_failed", extra=fields(error=str(error)))
        return False
    for shard, wal in enumerate(wals):
        wal.on_written = partial(mark.put, shard)
    return True


async def spare_files(wal: Wal, wanted: asyncio.Event, worker: Worker) -> None:
    """Keep the next WAL file ready, zero-filled in the background; one at a time, until cancelled."""
    while True:
        try:
            await worker.submit(wal.prepare_spare)
        except OSError as error:
            logger.warning("wal_spare_failed", extra=fields(error=str(error)))  # the rotation then fills one itself
        await wanted.wait()
        wanted.clear()
