"""The store's process: settings, composition, signals. `python -m eddyline.store`. (With `fsck DIR`: `fsck/command.py`.)

Life: read the settings; listen (health `live` is SERVING, everything else answers NOT_READY); lock and recover the data
directory; serve; on SIGTERM or SIGINT refuse new calls, end the long ones, wait for those under way, drain, sync, exit 0.
A store that cannot start says why in one line on stderr and exits 1.
Standard output has one line, when the store is ready, with its address; the log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_hexdigest

from eddyline.core.errors import EddylineError
from eddyline.core.forwarding.interceptor import ForwardingInterceptor
from eddyline.core.forwarding.shards import configured_shards
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.fs import Locked, RealFs
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings, SettingsError
from eddyline.core.server.append_limiter import AppendLimiter
from eddyline.core.server.cluster_service import SERVICE as CLUSTER_SERVICE
from eddyline.core.server.cluster_service import ClusterService
from eddyline.core.server.open_files import OWN_FILES, connections_within, raise_open_files
from eddyline.core.server.process import RoleProcess, run_process
from eddyline.core.server.server import make_server
from eddyline.core.telemetry.probes import ReplayProgress
from eddyline.core.telemetry.tracing import NOOP_TRACER, Tracer
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.artifacts.store import ArtifactSettings
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.rocksdb import OPEN_FILES_MAX as CATALOG_FILES_MAX
from eddyline.store.catalog.rocksdb import RocksCatalog
from eddyline.store.config import PREFIX, StoreSettings
from eddyline.store.env import Env, new_workers
from eddyline.store.fold.fold import FoldFailed
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fold.rocksdb_files import CHECKED_BYTES
from eddyline.store.fold.rocksdb_options import PROFILES
from eddyline.store.fold.temporary import RocksTemporaryFold
from eddyline.store.limits.memory_budget import memory_plan
from eddyline.store.limits.process_memory import ProcessMemory, tune_allocator
from eddyline.store.log_io.files import OPEN_FILES_MAX as SEGMENT_FILES_MAX
from eddyline.store.metrics import StoreMetrics
from eddyline.store.recovery.orphans import ForeignFile
from eddyline.store.rpc.apply_service import ApplyServicer
from eddyline.store.rpc.fold_service import FoldServicer
from eddyline.store.rpc.limits import ScanLimit
from eddyline.store.rpc.log_service import LogServicer
from eddyline.store.rpc.segment_service import SegmentServicer
from eddyline.store.rpc.shard_handle import LocalShard, ShardHandle
from eddyline.store.rpc.source_service import SERVICE as SOURCE_SERVICE
from eddyline.store.rpc.source_service import add_source_service
from eddyline.store.rpc.status import store_status
from eddyline.store.rpc.topic_service import TopicServicer
from eddyline.store.runtime.workers import ThreadWorker
from eddyline.store.shard.lifecycle import IdentityMismatch, open_store
from eddyline.store.shard.startup_errors import startup_error_text
from eddyline.store.storage.layout import Layout
from eddyline.store.storage.volume import volume_type
from eddyline.store.storage.wal.written_mark import MappedMark
from eddyline.v1 import (
    apply_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    fold_pb2_grpc,
    log_pb2_grpc,
    segment_pb2_grpc,
    topic_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from eddyline.core.forwarding.shards import ShardForwarder
    from eddyline.core.runtime.clock import Clock, Host
    from eddyline.core.server.server import RoleServer
    from eddyline.store.artifacts.store import ArtifactStore
    from eddyline.store.fold.rocksdb_options import ProfileName
    from eddyline.store.shard.shard import Shard

ROLE: Final = "store"
FOLD_SERVICE: Final = "eddyline.v1.FoldService"
LOG_SERVICE: Final = "eddyline.v1.LogService"
SEGMENT_SERVICE: Final = "eddyline.v1.SegmentService"
SERVICES: Final = (
    "eddyline.v1.TopicService",
    LOG_SERVICE,
    FOLD_SERVICE,
    SEGMENT_SERVICE,
    "eddyline.v1.ApplyService",
    SOURCE_SERVICE,
    CLUSTER_SERVICE,
)
VERSION: Final = version("eddyline-store")
SWITCH_INTERVAL_S: Final = 0.000_5
"""[CPython: 5 ms] A thread that returns from the disk waits so long for the interpreter while the event loop is busy, and
every group commit returns from the disk: 0.5 ms brought +10 % of P1 (`make bench ROWS=P1`), at the cost of more switches."""
SCRATCH_MEMORY_BYTES: Final = 64 << 20
"""RocksDB's memory while a fold is verified: tables of 16 MiB, written once and read once."""
PROGRAMS: Final = ("export", "fsck")
"""Programs on a stopped store's directory, by the first word of the command line."""
HEALTH_INTERVAL_S: Final = 1.0
"""How often health is updated: as often as DISK topics are synced, since a failed sync is what stops writes."""

_LOG: Final = logging.getLogger(__name__)


def main(environ: Mapping[str, str], *, clock: Clock | None = None) -> int:
    """Run a store until SIGTERM or SIGINT; return its exit code. `clock` None = the system's."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_allocator()
    return run_process(
        ROLE,
        serve,
        StoreSettings,
        prefix=PREFIX,
        environ=environ,
        log=_LOG,
        clock=clock,
        check=check_among_others,
        startup_errors=(Locked, IdentityMismatch, ForeignFile, EddylineError, OSError, FoldFailed, CatalogFailed),
        startup_error_text=lambda error, settings: startup_error_text(error, settings.directory),
    )


def run_program(name: str, words: Sequence[str]) -> int:
    """Run one of `PROGRAMS`, which a store that serves does not import; return its exit code."""
    if name == "fsck":
        from eddyline.store.fsck.command import fsck

        return fsck(words)
    from eddyline.store.export import export

    return export(words)


def check_among_others(settings: StoreSettings, common: CommonSettings) -> None:
    """Check the settings of one of several stores.

    Raises:
        SettingsError: its index is not below their number; or they require keys, and it has none for the calls it forwards.
    """
    count = len(common.store_addresses)
    if settings.shard >= count:
        raise SettingsError(
            f"{PREFIX}SHARD_INDEX is {settings.shard_index!r}: {COMMON_PREFIX}STORE_ADDRESSES has "
            f"{count} stores, shards 0 to {count - 1}"
        )
    if count > 1 and common.keys_file and not (common.key_file or common.tls_cert):
        raise SettingsError(
            f"{COMMON_PREFIX}KEY_FILE is not set: with {COMMON_PREFIX}KEYS_FILE each of {count} stores needs a key of "
            f"scope role (or a certificate, {COMMON_PREFIX}TLS_CERT) to forward calls to the others"
        )


async def serve(process: RoleProcess[StoreSettings]) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError, Locked, IdentityMismatch, ForeignFile, DataCorrupt, CatalogLost, CatalogFailed, FoldFailed, OSError:
            it cannot start.
    """
    settings, common, access = process.settings, process.common, process.access
    doorway = ShardHandle()
    room = AppendLimiter(memory_plan(settings.memory_bytes).append_bytes)
    memory = ProcessMemory()
    shards = configured_shards(common, access)
    server = make_server(
        settings.listen,
        cluster_id=common.cluster_id,
        interceptors=(room, *gates_of(doorway, shards, settings.shard)),
        connections_max=connections_within(raise_open_files(), own_files(settings)),
        access=access,
        wire=common.wire,
    )
    export = process.metrics_export(
        server.health,
        recovered=lambda: ReplayProgress(doorway.recovery.replayed_bytes, doorway.recovery.total_bytes),
    )
    add_services(
        server,
        doorway,
        common=common,
        clock=process.clock,
        host=process.host,
        shard_index=settings.shard,
        metrics_address=export.address,
        tracer=process.tracer,
    )
    settings.directory.parent.mkdir(parents=True, exist_ok=True)
    address = await _start(server, settings)
    metrics = _metrics_of(doorway, settings, shards, process, server)
    machine = replace(
        machine_of(settings, process.clock, process.host, doorway),
        memory=memory,
        shed=partial(_shed, doorway, room),
        tracer=process.tracer,
    )
    async with AsyncExitStack() as stack:
        stack.callback(memory.close)
        await stack.enter_async_context(access.running(process.clock))
        await stack.enter_async_context(shards)
        stack.push_async_callback(server.stop, 0)
        await stack.enter_async_context(export.running(metrics.collect))
        await stack.enter_async_context(process.trace_export().running())
        link = await stack.enter_async_context(_opened(machine, settings, common))
        doorway.open(link)
        metrics.link = link
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_keep_health(server, link, process.clock))
            process.print_ready(f"{address}, data in {settings.directory}, start {link.status().instance}")
            await process.stopping.wait()
            watching.cancel()
        _LOG.info("stopping")
        doorway.close()
        shards.end_streams()
        await server.stop(settings.stop_grace_ms / 1000)
    _LOG.info("stopped")


def _opened(machine: Env, settings: StoreSettings, common: CommonSettings) -> AbstractAsyncContextManager[Shard]:
    return open_store(machine, settings, cluster_id=common.cluster_id, shard_count=len(common.store_addresses))


def machine_of(settings: StoreSettings, clock: Clock, host: Host, doorway: ShardHandle) -> Env:
    """Return the environment of a real store on its data directory."""
    layout = Layout(settings.directory)
    plan = memory_plan(settings.memory_bytes)
    return Env(
        fs=RealFs(),
        open_fold=partial(
            RocksFold,
            layout.fold,
            profile=_profile(settings),
            memory_bytes=plan.rocksdb_bytes,
            checked_bytes=CHECKED_BYTES,
        ),
        open_catalog=lambda must_exist: RocksCatalog(layout.catalog, must_exist=must_exist),
        clock=clock,
        host=host,
        workers=new_workers(lambda name, threads: ThreadWorker(name, threads=threads), wal_shards=settings.wal_shards),
        tell=doorway.set_progress,
        volume=volume_type,
        scratch=RocksTemporaryFold(temporary_path(settings, "scratch"), memory_bytes=SCRATCH_MEMORY_BYTES),
        artifacts=place_of(settings, host),
        written_mark=MappedMark(temporary_path(settings, "written")),
    )


def _metrics_of(
    doorway: ShardHandle,
    settings: StoreSettings,
    shards: ShardForwarder,
    process: RoleProcess[StoreSettings],
    server: RoleServer,
) -> StoreMetrics:
    return StoreMetrics(
        recovery=lambda: doorway.recovery,
        disk_floor_bytes=settings.disk_floor_bytes,
        forwarded=shards.forwarded,
        tracer=process.tracer,
        certificate_expires_s=process.access.certificate_expires_s,
        server=server.counts,
    )


def gates_of(doorway: ShardHandle, shards: ShardForwarder, shard_index: int) -> tuple[ForwardingInterceptor, ...]:
    """Return the interceptors of a store that is one of several."""
    return (ForwardingInterceptor(shards, own=LocalShard(doorway, shard_index)),) if shards.count > 1 else ()


def place_of(settings: StoreSettings, host: Host) -> ArtifactSettings:
    """Return where this store keeps artifacts.

    Raises:
        SettingsError: the URL is invalid.
    """
    staging = Layout(settings.directory).staging
    artifact_store: ArtifactStore | None = None
    if (path := settings.artifacts_directory) is not None:
        artifact_store = LocalArtifactStore(RealFs(), path, holder=f"pid {host.pid()} on {host.name()}")
    elif settings.artifacts:
        # obstore takes 4 MiB of memory, which only a store with a URL pays
        from eddyline.store.artifacts.object_store import open_remote

        try:
            artifact_store = open_remote(settings.artifacts, staging / "draft")
        except ValueError as error:
            raise SettingsError(f"{PREFIX}ARTIFACTS: {error}") from error
    return ArtifactSettings(artifact_store, staging, settings.artifacts_keep)


def add_services(
    server: RoleServer,
    doorway: ShardHandle,
    *,
    common: CommonSettings,
    clock: Clock,
    host: Host,
    shard_index: int = 0,
    metrics_address: Callable[[], str] = str,
    tracer: Tracer = NOOP_TRACER,
) -> None:
    """Register every service of a store on `server`. `metrics_address` returns where metrics are scraped; "" = nowhere."""
    room = ScanLimit()
    topic_pb2_grpc.add_TopicServiceServicer_to_server(TopicServicer(doorway), server.grpc)
    log = LogServicer(doorway, room, tracer)
    log_pb2_grpc.add_LogServiceServicer_to_server(log, server.grpc)
    server.add_raw_methods(LOG_SERVICE, log.row_methods())
    server.add_quick_methods(LOG_SERVICE, log.quick_methods())
    folds = FoldServicer(doorway, room, clock=clock)
    fold_pb2_grpc.add_FoldServiceServicer_to_server(folds, server.grpc)
    server.add_raw_methods(FOLD_SERVICE, folds.raw_methods())
    server.add_quick_methods(FOLD_SERVICE, folds.quick_methods())
    segments = SegmentServicer(doorway, clock=clock)
    segment_pb2_grpc.add_SegmentServiceServicer_to_server(segments, server.grpc)
    server.add_raw_methods(SEGMENT_SERVICE, segments.raw_methods())
    apply_pb2_grpc.add_ApplyServiceServicer_to_server(ApplyServicer(doorway, tracer), server.grpc)
    add_source_service(server, doorway)
    cluster = ClusterService(
        cluster_pb2.ROLE_STORE,
        version=VERSION,
        common=common,
        status=partial(store_status, doorway, shard_index=shard_index, shard_count=len(common.store_addresses)),
        clock=clock,
        host=host,
        address=lambda: server.address,
        metrics_address=metrics_address,
    )
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(cluster, server.grpc)


async def _start(server: RoleServer, settings: StoreSettings) -> str:
    """Listen. If this store runs already, raise the error that names the process rather than the port."""
    try:
        return await server.start(*SERVICES)
    except SettingsError:
        layout = Layout(settings.directory)
        if layout.lock.exists():
            RealFs().lock(layout.lock, b"").release()
        raise


async def _keep_health(server: RoleServer, link: Shard, clock: Clock) -> None:
    """Update health until cancelled: SERVING while all writes are served."""
    reported: bool | None = None
    while True:
        ready = not link.unserved_reason()
        if ready is not reported:
            reported = ready
            await server.health.set_ready(ready)
        await sleep(clock, HEALTH_INTERVAL_S)


def own_files(settings: StoreSettings) -> int:
    """Return the most files that the store opens itself: tables of fold, catalog and a second fold, segments, the rest."""
    tables = PROFILES[_profile(settings)].open_files_max + CATALOG_FILES_MAX
    return tables + SEGMENT_FILES_MAX + OWN_FILES


def temporary_path(settings: StoreSettings, what: str) -> Path:
    """Return a path in the system's temporary directory (`TMPDIR`) that is the same after a crash of this store."""
    directory = xxh3_64_hexdigest(str(settings.directory.resolve()).encode())
    return Path(gettempdir()) / f"eddyline-{what}-{directory}"


def _shed(doorway: ShardHandle, room: AppendLimiter, memory_is_full: bool) -> None:
    room.hold(memory_is_full)
    if memory_is_full:
        doorway.shed_appends()


def _profile(settings: StoreSettings) -> ProfileName:
    return "large" if settings.fold_profile == "large" else "small"


if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in PROGRAMS else main(os.environ))
