"""A store in process on a real directory with RocksDB: real files, a manual clock, one loop, no server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.runtime.fs import RealFs
from eddyline.core.runtime.tasks import noop
from eddyline.store.artifacts.store import ArtifactSettings
from eddyline.store.catalog.rocksdb import RocksCatalog
from eddyline.store.config import StoreSettings
from eddyline.store.env import Env, new_workers
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fold.rocksdb_files import CHECKED_BYTES
from eddyline.store.fold.temporary import RocksTemporaryFold
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.runtime.workers import ThreadWorker
from eddyline.store.shard.lifecycle import open_store
from eddyline.store.storage.layout import Layout
from tests.support.manual_clock import ManualClock
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import WAL_FILE_BYTES, SimHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.store import ArtifactStore
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.shard.shard import Shard
    from eddyline.store.stats import RecoveryProgress


def _inline(name: str, threads: int) -> Worker:
    return InlineWorker(turns=0)


def threaded(name: str, threads: int) -> Worker:
    """Workers as the real ones."""
    return ThreadWorker(name, threads=threads)


@asynccontextmanager
async def real_store(
    data_dir: Path,
    *,
    checked_bytes: int = CHECKED_BYTES,
    workers: Callable[[str, int], Worker] = _inline,
    tell: Callable[[RecoveryProgress], None] = noop,
    artifact_store: ArtifactStore | None = None,
    fs: Fs | None = None,
    clock: Clock | None = None,
    **changes: int,
) -> AsyncIterator[Shard]:
    """A recovered store in `data_dir`; a second fold is made beside it."""
    chosen = StoreSettings(**{"data_dir": str(data_dir), "wal_file_bytes": WAL_FILE_BYTES, **changes})  # type: ignore[arg-type]
    env = real_env(
        chosen,
        clock=clock or ManualClock(),
        workers=workers,
        fs=fs,
        artifact_store=artifact_store,
        checked_bytes=checked_bytes,
    )
    env = replace(env, tell=tell)
    async with open_store(env, chosen, cluster_id="test") as link:
        yield link


def real_env(
    settings: StoreSettings,
    *,
    clock: Clock,
    workers: Callable[[str, int], Worker],
    fs: Fs | None,
    artifact_store: ArtifactStore | None,
    checked_bytes: int = CHECKED_BYTES,
) -> Env:
    """The environment of a store on real files, on a host that never reboots; a second fold is made beside its directory."""
    layout = Layout(settings.directory)
    return Env(
        fs=fs or RealFs(),
        open_fold=partial(RocksFold, layout.fold, checked_bytes=checked_bytes),
        open_catalog=lambda must_exist: RocksCatalog(layout.catalog, must_exist=must_exist),
        clock=clock,
        host=SimHost("boot"),
        workers=new_workers(workers),
        plan=memory_plan(settings.memory_bytes),
        scratch=RocksTemporaryFold(scratch_of(layout.data_dir)),
        artifacts=ArtifactSettings(artifact_store, layout.staging),
    )


def scratch_of(data_dir: Path) -> Path:
    """The folder of a second fold."""
    return data_dir.with_name(data_dir.name + "-scratch")
