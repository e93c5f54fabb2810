"""Putting a store's parts together, once it is recovered. The only place where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.store.artifacts.artifacts import Artifacts
from eddyline.store.artifacts.exporting import FoldExport, Turn
from eddyline.store.artifacts.importing import FoldImport
from eddyline.store.artifacts.restore import FoldRestore
from eddyline.store.background.checkpoint import Checkpointer
from eddyline.store.background.erasure import EraseJob
from eddyline.store.background.erasure_queue import ErasureQueue
from eddyline.store.background.scheduler import CorruptionLog, Maintenance
from eddyline.store.background.scrub import Scrubber
from eddyline.store.compaction.fold_base import BaseMaker
from eddyline.store.compaction.planner import CompactionPlanner
from eddyline.store.compaction.rewrite import Rewriter
from eddyline.store.compaction.seal import Sealer
from eddyline.store.compaction.segment_swap import SegmentSwap
from eddyline.store.fold_repair.accept_loss import SettleFold
from eddyline.store.fold_repair.verify import VerifyFold
from eddyline.store.limits.disk_guard import DiskGuard
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.limits.memory_guard import MemoryGuard
from eddyline.store.log.batch_cache import BatchCache
from eddyline.store.log_io.base_lookup import BaseLookup
from eddyline.store.log_io.files import LogFiles
from eddyline.store.log_io.garbage import Garbage
from eddyline.store.log_io.pieces import StoredLog
from eddyline.store.read.as_of import AsOf
from eddyline.store.read.find_seq import FindSeq
from eddyline.store.read.fold_reader import FoldReader
from eddyline.store.read.key_history import KeyHistory
from eddyline.store.read.log_reader import LogReader
from eddyline.store.retention.log_front import LogStart
from eddyline.store.retention.record_deletes import RecordDeleter
from eddyline.store.retention.retention import Retention
from eddyline.store.runtime.age_clock import AgeClock
from eddyline.store.shard.parts import FoldParts, HistoryParts, StoreParts
from eddyline.store.shard.shard import Shard
from eddyline.store.splits.base_reader import BaseSplitReader
from eddyline.store.splits.hidden_values import HiddenValues
from eddyline.store.splits.planner import SplitPlanner
from eddyline.store.splits.reader import SplitReader
from eddyline.store.splits.scan import ScanPieces
from eddyline.store.splits.slots import SplitSlots
from eddyline.store.write.admission import AdmissionControl
from eddyline.store.write.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.errors import DataCorrupt
    from eddyline.store.catalog.catalog import Catalog
    from eddyline.store.config import StoreSettings
    from eddyline.store.env import Env
    from eddyline.store.fold.fold import Fold
    from eddyline.store.limits.memory_budget import MemoryPlan
    from eddyline.store.log.sources import Sources
    from eddyline.store.recovery.recovered import Recovered
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import Compression

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Store:
    """A store's parts."""

    engine: Engine
    sources: Sources
    entries: FoldReader
    reader: LogReader
    log: StoredLog
    cache: BatchCache
    retention: Retention
    garbage: Garbage
    checkpointer: Checkpointer
    maintenance: Maintenance
    disk_guard: DiskGuard
    memory_guard: MemoryGuard | None
    history: HistoryParts
    folds: FoldParts

    def link(self, instance: int) -> Shard:
        """The door to it."""
        parts = StoreParts(
            instance=instance,
            log=self.log,
            cache=self.cache,
            retention=self.retention,
            garbage=self.garbage,
            checkpointer=self.checkpointer,
            maintenance=self.maintenance,
            history=self.history,
            folds=self.folds,
        )
        return Shard(engine=self.engine, reader=self.reader, entries=self.entries, sources=self.sources, parts=parts)


def build_store(
    machine: Env, settings: StoreSettings, layout: Layout, recovered: Recovered, *, catalog: Catalog, fold: Fold
) -> Store:
    """All parts of a recovered store; nothing runs yet."""
    clock, workers = machine.clock, machine.workers
    plan = machine.plan or memory_plan(settings.memory_bytes)
    cache = BatchCache(plan.cache_bytes)
    ages = AgeClock(clock)
    files = LogFiles(machine.fs, recovered.wals, footer_bytes_max=plan.footer_bytes)
    engine = _engine(machine, settings, recovered, fold=fold, cache=cache, ages=ages, plan=plan)
    log = StoredLog(files=files, cache=cache, worker=workers.reader)
    retention = Retention(engine=engine, front=LogStart(log), clock=clock, ages=ages)
    garbage = Garbage(
        layout=layout, files=files, worker=workers.background, erase_within_ms=settings.erase_within_h * _HOUR_MS
    )
    garbage.replayed(recovered.head, recovered.replay.replaced, recovered.replay.gone.values())
    checkpointer, maintenance = _upkeep(
        machine,
        settings,
        layout,
        recovered,
        catalog=catalog,
        engine=engine,
        log=log,
        retention=retention,
        garbage=garbage,
        ages=ages,
    )
    for topic in recovered.table.all():
        retention.on_topic_changed(topic)
    found = maintenance.corruption_log.record
    entries = _entries(machine, recovered, fold)
    return Store(
        engine=engine,
        sources=recovered.sources,
        entries=entries,
        reader=LogReader(log=log, retention=retention, clock=clock, on_corrupt=found),
        log=log,
        cache=cache,
        retention=retention,
        garbage=garbage,
        checkpointer=checkpointer,
        maintenance=maintenance,
        disk_guard=_disk_guard(machine, settings, layout, engine),
        memory_guard=_memory_guard(machine, settings, engine),
        history=_history_parts(
            machine, settings, layout, engine=engine, log=log, entries=entries, retention=retention, found=found
        ),
        folds=_fold_parts(
            machine,
            layout,
            recovered,
            engine=engine,
            log=log,
            entries=entries,
            retention=retention,
            artifacts=_artifacts(
                machine,
                settings,
                layout,
                recovered,
                engine=engine,
                log=log,
                garbage=garbage,
                entries=entries,
                maintenance=maintenance,
            ),
        ),
    )


def _upkeep(
    machine: Env,
    settings: StoreSettings,
    layout: Layout,
    recovered: Recovered,
    *,
    catalog: Catalog,
    engine: Engine,
    log: StoredLog,
    retention: Retention,
    garbage: Garbage,
    ages: AgeClock,
) -> tuple[Checkpointer, Maintenance]:
    files, background = log.files, machine.workers.background
    swap = SegmentSwap(
        engine=engine,
        files=files,
        layout=layout,
        garbage=garbage,
        worker=background,
        compression=_compression(settings),
    )
    sealer = Sealer(swap, files, records_max=settings.seal_records, bytes_max=settings.seal_bytes)
    checkpointer = Checkpointer(
        engine=engine,
        catalog=catalog,
        sources=recovered.sources,
        sealer=sealer,
        files=files,
        garbage=garbage,
        worker=background,
        store_id=recovered.store_id,
        checkpoint=recovered.head.checkpoint,
        ages=ages,
        writer_keep_ms=settings.writer_keep_days * _DAY_MS,
    )
    return checkpointer, _maintenance(
        machine,
        settings,
        layout,
        files=files,
        engine=engine,
        retention=retention,
        garbage=garbage,
        swap=swap,
        sealer=sealer,
        checkpointer=checkpointer,
    )


def _entries(machine: Env, recovered: Recovered, fold: Fold) -> FoldReader:
    return FoldReader(
        fold=fold,
        fold_worker=machine.workers.fold,
        reader_worker=machine.workers.reader,
        clock=machine.clock,
        sources=recovered.sources,
    )


def _disk_guard(machine: Env, settings: StoreSettings, layout: Layout, engine: Engine) -> DiskGuard:
    return DiskGuard(
        fs=machine.fs,
        directory=layout.data_dir,
        wal_directories=[layout.wal_shard(shard) for shard in range(settings.wal_shards)],
        worker=machine.workers.reader,
        gate=engine.gate,
        clock=machine.clock,
        floor_bytes=settings.disk_floor_bytes,
    )


def _fold_parts(
    machine: Env,
    layout: Layout,
    recovered: Recovered,
    *,
    engine: Engine,
    log: StoredLog,
    entries: FoldReader,
    retention: Retention,
    artifacts: Artifacts,
) -> FoldParts:
    verify = VerifyFold(
        fold=engine.fold,
        fold_worker=engine.fold_worker,
        worker=machine.workers.reader,
        clock=machine.clock,
        files=log.files,
        layout=layout,
        retention=retention,
        entries=entries,
        scratch=machine.scratch,
    )
    settle = SettleFold(engine, entries, layout, recovered.salvaged)
    return FoldParts(entries, verify, settle, artifacts)


def _artifacts(
    machine: Env,
    settings: StoreSettings,
    layout: Layout,
    recovered: Recovered,
    *,
    engine: Engine,
    log: StoredLog,
    garbage: Garbage,
    entries: FoldReader,
    maintenance: Maintenance,
) -> Artifacts:
    turn, worker, place = Turn(), machine.workers.reader, machine.artifacts
    restore = FoldRestore(
        engine=engine, worker=worker, files=log.files, layout=layout, garbage=garbage, store_id=recovered.store_id
    )
    exports = FoldExport(
        fold=engine.fold,
        fold_worker=engine.fold_worker,
        worker=worker,
        clock=machine.clock,
        fs=machine.fs,
        sources=recovered.sources,
        store_id=recovered.store_id,
        place=place,
        turn=turn,
        gate=engine.gate,
    )
    imports = FoldImport(
        engine=engine,
        worker=worker,
        clock=machine.clock,
        fs=machine.fs,
        layout=layout,
        sources=recovered.sources,
        entries=entries,
        place=place,
        turn=turn,
        compression=_compression(settings),
        between_rounds=maintenance.between_rounds,
        restore=restore,
    )
    return Artifacts(exports=exports, imports=imports, place=place, worker=worker)


def _history_parts(
    machine: Env,
    settings: StoreSettings,
    layout: Layout,
    *,
    engine: Engine,
    log: StoredLog,
    entries: FoldReader,
    retention: Retention,
    found: Callable[[DataCorrupt], None],
) -> HistoryParts:
    bases = BaseLookup(fs=machine.fs, layout=layout, worker=machine.workers.reader)
    as_of = AsOf(log=log, entries=entries, bases=bases, retention=retention, clock=machine.clock)
    pieces, slots = ScanPieces(files=log.files, worker=machine.workers.reader), SplitSlots(machine.clock)
    hidden_values = HiddenValues(fold=engine.fold, fold_worker=engine.fold_worker, as_of=as_of)
    base = BaseSplitReader(fs=machine.fs, layout=layout, pieces=pieces, hidden_values=hidden_values, slots=slots)
    return HistoryParts(
        deletes=RecordDeleter(
            engine=engine,
            log=log,
            front=LogStart(log),
            retention=retention,
            bases=bases,
            erase_within_ms=settings.erase_within_h * _HOUR_MS,
        ),
        find_seq=FindSeq(log=log, retention=retention),
        keys=KeyHistory(log=log, retention=retention),
        as_of=as_of,
        splits=SplitPlanner(pieces=pieces, base=base, retention=retention, on_corrupt=found),
        split_reads=SplitReader(
            pieces=pieces, base=base, hidden_values=hidden_values, retention=retention, slots=slots, on_corrupt=found
        ),
    )


def _memory_guard(machine: Env, settings: StoreSettings, engine: Engine) -> MemoryGuard | None:
    if machine.memory is None:
        return None
    return MemoryGuard(
        memory=machine.memory,
        worker=machine.workers.reader,
        gate=engine.gate,
        clock=machine.clock,
        memory_bytes=settings.memory_bytes,
        shed=machine.shed,
    )


def _maintenance(
    machine: Env,
    settings: StoreSettings,
    layout: Layout,
    *,
    files: LogFiles,
    engine: Engine,
    retention: Retention,
    garbage: Garbage,
    swap: SegmentSwap,
    sealer: Sealer,
    checkpointer: Checkpointer,
) -> Maintenance:
    clock, background, table, corruption_log = machine.clock, machine.workers.background, engine.table, CorruptionLog()
    erase_within_ms = settings.erase_within_h * _HOUR_MS
    bases, rewriter = BaseMaker(engine, swap), Rewriter(swap, files)
    erase_job = EraseJob(
        engine=engine,
        retention=retention,
        checkpointer=checkpointer,
        sealer=sealer,
        bases=bases,
        rewriter=rewriter,
        swap=swap,
        garbage=garbage,
        fs=machine.fs,
        layout=layout,
        background=background,
        reader=machine.workers.reader,
        erase_within_ms=erase_within_ms,
    )
    return Maintenance(
        engine=engine,
        checkpointer=checkpointer,
        sealer=sealer,
        garbage=garbage,
        erasures=ErasureQueue(erase_job, table=table, garbage=garbage, clock=clock, erase_within_ms=erase_within_ms),
        planner=CompactionPlanner(
            table=table,
            swap=swap,
            rewriter=rewriter,
            bases=bases,
            records_max=settings.seal_records,
            bytes_max=settings.seal_bytes,
        ),
        scrubber=Scrubber(
            fs=machine.fs,
            layout=layout,
            table=table,
            worker=background,
            clock=clock,
            bytes_per_s=settings.scrub_bytes_per_s,
            on_corrupt=corruption_log.record,
        ),
        corruption_log=corruption_log,
        clock=clock,
        settings=settings,
    )


def _engine(
    machine: Env,
    settings: StoreSettings,
    recovered: Recovered,
    *,
    fold: Fold,
    cache: BatchCache,
    ages: AgeClock,
    plan: MemoryPlan,
) -> Engine:
    return Engine(
        table=recovered.table,
        wals=recovered.wals,
        fold=fold,
        clock=machine.clock,
        ages=ages,
        cache=cache,
        wal_workers=machine.workers.wals,
        fold_worker=machine.workers.fold,
        gate=AdmissionControl(
            topics_max=settings.topics_max,
            unsegmented_bytes_max=settings.unsegmented_bytes_max,
            memory_bytes_max=plan.ephemeral_bytes,
        ),
        retained_bytes_max=settings.retained_bytes_max,
        tracer=machine.tracer,
    )


def _compression(settings: StoreSettings) -> Compression:
    if settings.compression == "none":
        return "none"
    return "zstd" if settings.compression == "zstd" else "lz4"
