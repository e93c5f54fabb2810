"""What a store runs on: files, engines, time and threads. Everything that a simulation puts others in the place of."""

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
"""Disk reads at once: enough to keep a disk busy, and each at most one frame of memory."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Where a store's blocking calls run: one thread a WAL shard, one for the fold, a few for reads, one for spare files."""

    wals: tuple[Worker, ...]
    fold: Worker
    reader: Worker
    background: Worker

    def close(self) -> None:
        """End all, each after its jobs."""
        for worker in (self.background, self.reader, *self.wals, self.fold):
            worker.close()


def new_workers(make: Callable[[str, int], Worker], *, wal_shards: int = 1) -> Workers:
    """A store's workers by their names and thread counts."""
    return Workers(
        wals=tuple(make(f"wal-{shard}", 1) for shard in range(wal_shards)),
        fold=make("fold", 1),
        reader=make("reader", READER_THREADS),
        background=make("background", 1),
    )


def _unknown_volume(directory: Path) -> str:
    """Nothing is known of where it lies."""
    return ""


def _not_shed(memory_is_full: bool) -> None:
    """Nobody receives anything."""


@dataclass(frozen=True, slots=True)
class Env:
    """See the module."""

    fs: Fs
    open_fold: Callable[[], Fold]
    open_catalog: Callable[[bool], Catalog]
    """With whether the catalog must exist."""
    clock: Clock
    host: Host
    workers: Workers
    tell: Callable[[RecoveryProgress], None] = noop
    plan: MemoryPlan | None = None
    """None = the settings' budget, split as usual."""
    memory: Memory | None = None
    """The process's; None = nobody watches it."""
    shed: Callable[[bool], None] = _not_shed
    """End what is being received, since memory is full, and let little in; False = it is not full any more."""
    volume: Callable[[Path], str] = _unknown_volume
    """The type of the file system that a directory is on; "" = unknown."""
    scratch: TemporaryFold | None = None
    """Where a second fold is made when one is checked; None = nowhere."""
    written_mark: WrittenMark | None = None
    """Where word of what is written is left, outside the data directory; None = nowhere: a start trusts the boot id, and
    bytes that were cut."""
    artifacts: ArtifactSettings | None = None
    """Where artifacts go, and are staged; None = this machine has none."""
    tracer: Tracer = NOOP_TRACER
