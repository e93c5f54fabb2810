"""Environment of a store: files, engines, time and threads. A simulation replaces every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.tasks import noop
from eddyline.core.telemetry.tracing import NOOP_TRACER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.runtime.fs import Fs
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.store.artifacts.store import ArtifactSettings
    from eddyline.store.catalog.catalog import Catalog
    from eddyline.store.fold.fold import Fold, TemporaryFold
    from eddyline.store.limits.memory_budget import MemoryPlan
    from eddyline.store.limits.memory_guard import Memory
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.stats import RecoveryProgress
    from eddyline.store.storage.wal.written_mark import WrittenMark

READER_THREADS: Final = 4
"""Disk reads at once: enough to keep a disk busy, and each takes at most one frame of memory."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Threads for blocking calls: one a WAL shard, one for the fold, a few for reads, one for background jobs."""

    wals: tuple[Worker, ...]
    fold: Worker
    reader: Worker
    background: Worker

    def close(self) -> None:
        """End all workers, each after its jobs."""
        for worker in (self.background, self.reader, *self.wals, self.fold):
            worker.close()


def new_workers(make: Callable[[str, int], Worker], *, wal_shards: int = 1) -> Workers:
    """Make a store's workers by their names and thread counts."""
    return Workers(
        wals=tuple(make(f"wal-{shard}", 1) for shard in range(wal_shards)),
        fold=make("fold", 1),
        reader=make("reader", READER_THREADS),
        background=make("background", 1),
    )


def _unknown_volume(directory: Path) -> str:
    """Return "": the file system is unknown."""
    return ""


def _not_shed(memory_is_full: bool) -> None:
    """Do nothing: no call receives appends."""


@dataclass(frozen=True, slots=True)
class Env:
    """Everything outside the store's own code; see the module."""

    fs: Fs
    open_fold: Callable[[], Fold]
    open_catalog: Callable[[bool], Catalog]
    """Called with whether the catalog must exist."""
    clock: Clock
    host: Host
    workers: Workers
    tell: Callable[[RecoveryProgress], None] = noop
    plan: MemoryPlan | None = None
    """None = the settings' budget, split by `memory_plan`."""
    memory: Memory | None = None
    """The process's memory; None = it is not guarded."""
    shed: Callable[[bool], None] = _not_shed
    """Called with True to end append streams and take few new appends, since memory is full; with False once it is not."""
    volume: Callable[[Path], str] = _unknown_volume
    """Returns the type of the file system that a directory is on; "" = unknown."""
    scratch: TemporaryFold | None = None
    """Place for the second fold of a check; None = there is none."""
    written_mark: WrittenMark | None = None
    """Record of the bytes written, outside the data directory. None = there is none: a start relies on the boot id and on
    truncated bytes."""
    artifacts: ArtifactSettings | None = None
    """Places where artifacts are stored and staged; None = artifacts are not configured."""
    tracer: Tracer = NOOP_TRACER
