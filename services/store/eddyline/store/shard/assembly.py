"""Composition of a shard: builds every part of a recovered store. The only module that knows all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from eddyline.store.artifacts.artifacts import Artifacts
from eddyline.store.artifacts.exporting import ExclusiveJob, FoldExport
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
from eddyline.store.shard.parts import FoldParts, HistoryParts, ShardParts
from eddyline.store.splits.base_reader import BaseSplitReader
from eddyline.store.splits.hidden_values import HiddenValues
from eddyline.store.splits.planner import SplitPlanner
from eddyline.store.splits.reader import SplitReader
from eddyline.store.splits.scan import ScanPieces
from eddyline.store.splits.slots import SplitSlots
from eddyline.store.write.admission import AdmissionControl
from eddyline.store.write.engine import Engine

if TYPE_CHECKING:
    from eddyline.store.catalog.catalog import Catalog
    from eddyline.store.config import StoreSettings
    from eddyline.store.env import Env
    from eddyline.store.fold.fold import Fold
    from eddyline.store.recovery.recovered import Recovered
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import Compression


def build_parts(
    env: Env, settings: StoreSettings, layout: Layout, recovered: Recovered, *, catalog: Catalog, fold: Fold
) -> ShardParts:
    """Build all parts of a recovered store; none of them runs yet."""
    return _Assembly(env, settings, layout, recovered, fold).parts(catalog)


class _Assembly:
    """Builds the parts: the attributes are those that others are built from, a method builds each group of the others."""

    def __init__(self, env: Env, settings: StoreSettings, layout: Layout, recovered: Recovered, fold: Fold) -> None:
        self.env, self.settings, self.layout, self.recovered = env, settings, layout, recovered
        self.compression = cast("Compression", settings.compression)  # the settings allow no other value
        plan = env.plan or memory_plan(settings.memory_bytes)
        self.ages = AgeClock(env.clock)
        self.cache = BatchCache(plan.cache_bytes)
        self.files = LogFiles(env.fs, recovered.wals, footer_bytes_max=plan.footer_bytes)
        self.log = StoredLog(files=self.files, cache=self.cache, worker=env.workers.reader)
        self.engine = Engine(
            table=recovered.table,
            wals=recovered.wals,
            fold=fold,
            clock=env.clock,
            ages=self.ages,
            cache=self.cache,
            wal_workers=env.workers.wals,
            fold_worker=env.workers.fold,
            gate=AdmissionControl(
                topics_max=settings.topics_max,
                unsegmented_bytes_max=settings.unsegmented_bytes_max,
                memory_bytes_max=plan.ephemeral_bytes,
            ),
            retained_bytes_max=settings.retained_bytes_max,
            tracer=env.tracer,
        )
        self.retention = Retention(engine=self.engine, log_start=LogStart(self.log), clock=env.clock, ages=self.ages)
        self.garbage = Garbage(
            layout=layout,
            files=self.files,
            worker=env.workers.background,
            erase_within_ms=settings.erase_within_ms,
        )
        self.garbage.restore(recovered.head, recovered.replay.replaced, recovered.replay.gone.values())
        self.entries = FoldReader(
            fold=fold,
            fold_worker=env.workers.fold,
            reader_worker=env.workers.reader,
            clock=env.clock,
            sources=recovered.sources,
        )
        self.corruption_log = CorruptionLog()

    def parts(self, catalog: Catalog) -> ShardParts:
        """Build every part of the shard."""
        swap = SegmentSwap(
            engine=self.engine,
            files=self.files,
            layout=self.layout,
            garbage=self.garbage,
            worker=self.env.workers.background,
            compression=self.compression,
        )
        sealer = Sealer(swap, self.files, records_max=self.settings.seal_records, bytes_max=self.settings.seal_bytes)
        checkpointer = Checkpointer(
            engine=self.engine,
            catalog=catalog,
            sources=self.recovered.sources,
            sealer=sealer,
            files=self.files,
            garbage=self.garbage,
            worker=self.env.workers.background,
            store_id=self.recovered.store_id,
            checkpoint=self.recovered.head.checkpoint,
            ages=self.ages,
            writer_keep_ms=self.settings.writer_keep_ms,
        )
        maintenance = self._maintenance(swap, sealer, checkpointer)
        for topic in self.recovered.table.all():
            self.retention.on_topic_changed(topic)
        return ShardParts(
            engine=self.engine,
            sources=self.recovered.sources,
            entries=self.entries,
            reader=LogReader(
                log=self.log, retention=self.retention, clock=self.env.clock, on_corrupt=self.corruption_log.record
            ),
            log=self.log,
            cache=self.cache,
            retention=self.retention,
            garbage=self.garbage,
            checkpointer=checkpointer,
            maintenance=maintenance,
            disk_guard=self._disk_guard(),
            memory_guard=self._memory_guard(),
            history=self._history(),
            folds=self._folds(maintenance),
            background=self.env.workers.background,
        )

    def _maintenance(self, swap: SegmentSwap, sealer: Sealer, checkpointer: Checkpointer) -> Maintenance:
        env, settings, table = self.env, self.settings, self.engine.table
        bases, rewriter = BaseMaker(self.engine, swap), Rewriter(swap, self.files)
        erase_job = EraseJob(
            engine=self.engine,
            retention=self.retention,
            checkpointer=checkpointer,
            sealer=sealer,
            bases=bases,
            rewriter=rewriter,
            swap=swap,
            garbage=self.garbage,
            fs=env.fs,
            layout=self.layout,
            background=env.workers.background,
            reader=env.workers.reader,
            erase_within_ms=settings.erase_within_ms,
        )
        return Maintenance(
            engine=self.engine,
            checkpointer=checkpointer,
            sealer=sealer,
            garbage=self.garbage,
            erasures=ErasureQueue(
                erase_job,
                table=table,
                garbage=self.garbage,
                clock=env.clock,
                erase_within_ms=settings.erase_within_ms,
            ),
            planner=CompactionPlanner(
                table=table,
                swap=swap,
                rewriter=rewriter,
                bases=bases,
                records_max=settings.seal_records,
                bytes_max=settings.seal_bytes,
            ),
            scrubber=Scrubber(
                fs=env.fs,
                layout=self.layout,
                table=table,
                worker=env.workers.background,
                clock=env.clock,
                bytes_per_s=settings.scrub_bytes_per_s,
                on_corrupt=self.corruption_log.record,
            ),
            corruption_log=self.corruption_log,
            clock=env.clock,
            settings=settings,
        )

    def _disk_guard(self) -> DiskGuard:
        return DiskGuard(
            fs=self.env.fs,
            directory=self.layout.data_dir,
            wal_directories=[self.layout.wal_shard(shard) for shard in range(self.settings.wal_shards)],
            worker=self.env.workers.reader,
            gate=self.engine.gate,
            clock=self.env.clock,
            floor_bytes=self.settings.disk_floor_bytes,
        )

    def _memory_guard(self) -> MemoryGuard | None:
        if self.env.memory is None:
            return None
        return MemoryGuard(
            memory=self.env.memory,
            worker=self.env.workers.reader,
            gate=self.engine.gate,
            clock=self.env.clock,
            memory_bytes=self.settings.memory_bytes,
            shed=self.env.shed,
        )

    def _history(self) -> HistoryParts:
        env, log, retention, on_corrupt = self.env, self.log, self.retention, self.corruption_log.record
        bases = BaseLookup(fs=env.fs, layout=self.layout, worker=env.workers.reader)
        as_of = AsOf(log=log, fold_reader=self.entries, bases=bases, retention=retention, clock=env.clock)
        pieces, slots = ScanPieces(files=self.files, worker=env.workers.reader), SplitSlots(env.clock)
        hidden = HiddenValues(fold=self.engine.fold, fold_worker=self.engine.fold_worker, as_of=as_of)
        base = BaseSplitReader(fs=env.fs, layout=self.layout, pieces=pieces, hidden_values=hidden, slots=slots)
        return HistoryParts(
            deletes=RecordDeleter(
                engine=self.engine,
                log=log,
                log_start=LogStart(log),
                retention=retention,
                bases=bases,
                erase_within_ms=self.settings.erase_within_ms,
            ),
            find_seq=FindSeq(log=log, retention=retention),
            keys=KeyHistory(log=log, retention=retention),
            as_of=as_of,
            splits=SplitPlanner(pieces=pieces, base=base, retention=retention, on_corrupt=on_corrupt),
            split_reads=SplitReader(
                pieces=pieces, base=base, hidden_values=hidden, retention=retention, slots=slots, on_corrupt=on_corrupt
            ),
        )

    def _folds(self, maintenance: Maintenance) -> FoldParts:
        return FoldParts(
            verify=VerifyFold(
                fold=self.engine.fold,
                fold_worker=self.engine.fold_worker,
                worker=self.env.workers.reader,
                clock=self.env.clock,
                files=self.files,
                layout=self.layout,
                retention=self.retention,
                entries=self.entries,
                scratch=self.env.scratch,
            ),
            settle=SettleFold(self.engine, self.entries, self.layout, self.recovered.salvaged),
            artifacts=self._artifacts(maintenance),
        )

    def _artifacts(self, maintenance: Maintenance) -> Artifacts:
        env, recovered = self.env, self.recovered
        exclusive_job, worker, settings = ExclusiveJob(), env.workers.reader, env.artifacts
        exports = FoldExport(
            fold=self.engine.fold,
            fold_worker=self.engine.fold_worker,
            worker=worker,
            clock=env.clock,
            fs=env.fs,
            sources=recovered.sources,
            store_id=recovered.store_id,
            settings=settings,
            exclusive_job=exclusive_job,
            gate=self.engine.gate,
        )
        imports = FoldImport(
            engine=self.engine,
            worker=worker,
            clock=env.clock,
            fs=env.fs,
            layout=self.layout,
            sources=recovered.sources,
            entries=self.entries,
            settings=settings,
            exclusive_job=exclusive_job,
            compression=self.compression,
            between_rounds=maintenance.between_rounds,
            restore=FoldRestore(
                engine=self.engine,
                worker=worker,
                files=self.files,
                layout=self.layout,
                garbage=self.garbage,
                store_id=recovered.store_id,
            ),
        )
        return Artifacts(exports=exports, imports=imports, settings=settings, worker=worker)
