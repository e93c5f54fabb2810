"""Settings of the store: the environment names `EDDYLINE_STORE_…`, each default with its reason.

Bounds of queues that protect the process rather than fit it to a machine are constants of the modules that own them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eddyline.core.runtime.settings import SettingsError, check_address, check_choice, check_range

PREFIX: Final = "EDDYLINE_STORE_"

LISTEN: Final = "127.0.0.1:7701"
"""Any address but loopback needs keys or clients' certificates. Port 0 takes a free one, printed when the store is ready."""
DATA_DIR: Final = "./eddyline-data/store"
"""Below the folder of a local cluster, where `eddyline up` keeps every role's data."""
WAL_FILE_BYTES: Final = 64 << 20
"""[RocksDB, etcd: 64 MiB; up to 128 MiB] A file is zero-filled and fsynced in the background before its use: 64 MiB is 0.3
s of a slow disk, hidden behind the 64 MiB written meanwhile. A smaller file rotates more often (an fdatasync and two fsyncs
each), a larger one keeps that much spare space idle."""
WAL_FILE_BYTES_MIN: Final = 64 << 10
WAL_FILE_BYTES_MAX: Final = 1 << 30
"""A file is zero-filled as a whole before its use: beyond 1 GiB that takes seconds of a disk at each rotation."""
SYNC_INTERVAL_MS: Final = 1_000
"""[NATS: two minutes; Kafka: never on its own] There a power failure loses everything since. The contract promises to lose
at most the last second of a DISK topic. Costs one fdatasync a second while records are written."""
SYNC_INTERVAL_MS_MIN: Final = 10
TOPICS_MAX: Final = 100_000
"""[NATS, Kafka: unbounded, until a client that makes names from user input fills memory] A topic takes about 2 KiB of
memory before its first append, so this many take 200 MiB. 0 = no bound."""
TOPICS_MAX_MAX: Final = 10_000_000
RETAINED_BYTES_MAX_MAX: Final = 1 << 60
WAL_SHARDS_MAX: Final = 16
"""One WAL shard has one thread, and one fdatasync at a time. More than one pays on a disk that syncs in parallel; each
costs two files of WAL_FILE_BYTES and a thread. 16 is more than two cores ever fill."""
MEMORY_BYTES: Final = 1 << 30
MEMORY_BYTES_MIN: Final = 256 << 20
MEMORY_BYTES_MAX: Final = 1 << 40
"""Memory that the store plans with: an eighth for batches read and written, an eighth for EPHEMERAL records, a quarter for
RocksDB; the rest for appends in flight, answers, indexes and topics (`limits/memory_budget.py`). Below 256 MiB messages of
64 MiB would leave no room for anything else."""
UNSEGMENTED_BYTES_MAX: Final = 4 << 30
"""WAL that waits to be sealed. Sealing runs at 100 MB/s and more under full load; if it stops (a failing disk) appends are
refused at this size, so that a restart has at most so much to index."""
UNSEGMENTED_BYTES_MAX_MAX: Final = 1 << 40
CHECKPOINT_BYTES: Final = 256 << 20
CHECKPOINT_INTERVAL_MS: Final = 300_000
"""A checkpoint after so many bytes of log, or so long after the last one if there are any: a restart replays them, in about
a second. Each costs a pause of some milliseconds and one synced write of the changes."""
CHECKPOINT_INTERVAL_MS_MAX: Final = 86_400_000
SEAL_RECORDS: Final = 262_144
SEAL_BYTES: Final = 64 << 20
SEAL_AGE_MS: Final = 3_600_000
"""Size of a segment: the unit of a Spark task or a scan, a second of reading. Smaller ones are merged, so sealing by age or
at a checkpoint leaves no small files."""
COMPRESSIONS: Final = ("none", "lz4", "zstd")
ERASE_WITHIN_H: Final = 24
ERASE_WITHIN_H_MAX: Final = 24 * 365
"""Hours until deleted records are gone from the disk: time to gather deletes, so that one rewrite serves many."""
SCRUB_BYTES_PER_S: Final = 1 << 20
SCRUB_BYTES_PER_S_MAX: Final = 1 << 30
"""How fast segments are read and verified in the background: 1 MiB/s reads 86 GB a day, 1 % of a slow disk. 0 = off."""
WRITER_KEEP_DAYS: Final = 30
WRITER_KEEP_DAYS_MAX: Final = 36_500
DISK_FLOOR_BYTES: Final = 512 << 20
DISK_FLOOR_BYTES_MAX: Final = 1 << 50
"""Below so many free bytes appends are refused, so that deletes, floors, checkpoints and merges have the room they need:
two WAL files, a segment being rewritten, RocksDB's compaction. Without a floor the disk fills and writes fail."""
FOLD_PROFILES: Final = ("small", "large")
"""Sizes of RocksDB's buffers and caches; `fold/rocksdb_options.py` has the values."""
ARTIFACTS_URL: Final = re.compile(r"(s3|gs|az|memory)://.*")
"""Object stores; memory is for tests. Empty = no artifacts: a caller cannot name another destination."""
ARTIFACTS_KEEP: Final = 3
ARTIFACTS_KEEP_MAX: Final = 1_000
"""Artifacts kept a topic: the latest, and two to go back to if a bad write was exported before it was noticed."""
STOP_GRACE_MS: Final = 5_000
"""Time for calls in flight when the store stops: ten times the longest commit, and within the 10 s after which a supervisor
kills. Watchers and waiting reads are ended after it; they resume at the next start."""
STOP_GRACE_MS_MAX: Final = 600_000

_SHARD_INDEX: Final = re.compile(r"([a-z0-9.-]*[a-z0-9]-)?[0-9]{1,5}")
"""A number, or a pod's name: a StatefulSet's names end with their ordinals."""

assert WAL_FILE_BYTES_MIN <= WAL_FILE_BYTES <= WAL_FILE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of a store. `metrics_listen` empty = no metrics endpoint. `shard_index` is a number from 0, or a name that
    ends with one, as a StatefulSet's pods have it: `store-1`."""

    listen: str = LISTEN
    metrics_listen: str = ""
    shard_index: str = "0"
    data_dir: str = DATA_DIR
    wal_file_bytes: int = WAL_FILE_BYTES
    sync_interval_ms: int = SYNC_INTERVAL_MS
    wal_shards: int = 1
    topics_max: int = TOPICS_MAX
    retained_bytes_max: int = 0
    memory_bytes: int = MEMORY_BYTES
    unsegmented_bytes_max: int = UNSEGMENTED_BYTES_MAX
    disk_floor_bytes: int = DISK_FLOOR_BYTES
    checkpoint_bytes: int = CHECKPOINT_BYTES
    checkpoint_interval_ms: int = CHECKPOINT_INTERVAL_MS
    seal_records: int = SEAL_RECORDS
    seal_bytes: int = SEAL_BYTES
    seal_age_ms: int = SEAL_AGE_MS
    compression: str = "lz4"
    erase_within_h: int = ERASE_WITHIN_H
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S
    writer_keep_days: int = WRITER_KEEP_DAYS
    fold_profile: str = "small"
    artifacts: str = ""
    artifacts_keep: int = ARTIFACTS_KEEP
    stop_grace_ms: int = STOP_GRACE_MS

    def __post_init__(self) -> None:
        check_address(f"{PREFIX}LISTEN", self.listen)
        if self.metrics_listen:
            check_address(f"{PREFIX}METRICS_LISTEN", self.metrics_listen)
        if not _SHARD_INDEX.fullmatch(self.shard_index):
            raise SettingsError(
                f"{PREFIX}SHARD_INDEX is {self.shard_index!r}, not a whole number, or a pod name that ends with one"
            )
        if not self.data_dir:
            raise SettingsError(f"{PREFIX}DATA_DIR is empty")
        check_range(f"{PREFIX}WAL_FILE_BYTES", self.wal_file_bytes, WAL_FILE_BYTES_MIN, WAL_FILE_BYTES_MAX)
        check_range(f"{PREFIX}SYNC_INTERVAL_MS", self.sync_interval_ms, SYNC_INTERVAL_MS_MIN, SYNC_INTERVAL_MS)
        check_range(f"{PREFIX}TOPICS_MAX", self.topics_max, 0, TOPICS_MAX_MAX)
        check_range(f"{PREFIX}RETAINED_BYTES_MAX", self.retained_bytes_max, 0, RETAINED_BYTES_MAX_MAX)
        check_range(f"{PREFIX}WAL_SHARDS", self.wal_shards, 1, WAL_SHARDS_MAX)
        check_range(f"{PREFIX}MEMORY_BYTES", self.memory_bytes, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX)
        check_range(
            f"{PREFIX}UNSEGMENTED_BYTES_MAX",
            self.unsegmented_bytes_max,
            2 * self.wal_file_bytes,
            UNSEGMENTED_BYTES_MAX_MAX,
        )
        check_range(f"{PREFIX}DISK_FLOOR_BYTES", self.disk_floor_bytes, 0, DISK_FLOOR_BYTES_MAX)
        check_range(f"{PREFIX}CHECKPOINT_BYTES", self.checkpoint_bytes, 1, UNSEGMENTED_BYTES_MAX_MAX)
        check_range(f"{PREFIX}CHECKPOINT_INTERVAL_MS", self.checkpoint_interval_ms, 10, CHECKPOINT_INTERVAL_MS_MAX)
        check_range(f"{PREFIX}SEAL_RECORDS", self.seal_records, 1, SEAL_RECORDS)
        check_range(f"{PREFIX}SEAL_BYTES", self.seal_bytes, 1, SEAL_BYTES)
        check_range(f"{PREFIX}SEAL_AGE_MS", self.seal_age_ms, 10, CHECKPOINT_INTERVAL_MS_MAX)
        check_choice(f"{PREFIX}COMPRESSION", self.compression, COMPRESSIONS)
        check_range(f"{PREFIX}ERASE_WITHIN_H", self.erase_within_h, 1, ERASE_WITHIN_H_MAX)
        check_range(f"{PREFIX}SCRUB_BYTES_PER_S", self.scrub_bytes_per_s, 0, SCRUB_BYTES_PER_S_MAX)
        check_range(f"{PREFIX}WRITER_KEEP_DAYS", self.writer_keep_days, 1, WRITER_KEEP_DAYS_MAX)
        check_choice(f"{PREFIX}FOLD_PROFILE", self.fold_profile, FOLD_PROFILES)
        check_range(f"{PREFIX}ARTIFACTS_KEEP", self.artifacts_keep, 1, ARTIFACTS_KEEP_MAX)
        self._check_artifacts()
        check_range(f"{PREFIX}STOP_GRACE_MS", self.stop_grace_ms, 0, STOP_GRACE_MS_MAX)

    @property
    def shard(self) -> int:
        """Index of the shard, from 0."""
        return int(self.shard_index.rpartition("-")[2])

    @property
    def erase_within_ms(self) -> int:
        """`erase_within_h` in milliseconds."""
        return self.erase_within_h * 3_600_000

    @property
    def writer_keep_ms(self) -> int:
        """`writer_keep_days` in milliseconds."""
        return self.writer_keep_days * 86_400_000

    def _check_artifacts(self) -> None:
        """Check that artifacts, which outlive the data directory, are not below it."""
        if not self.artifacts:
            return
        if (path := self.artifacts_directory) is None:
            if not ARTIFACTS_URL.match(self.artifacts):
                raise SettingsError(
                    f"{PREFIX}ARTIFACTS is {self.artifacts}, not an absolute path or a URL that begins with file://, "
                    "s3://, gs:// or az://"
                )
        elif path == self.directory or self.directory in path.parents:
            raise SettingsError(f"{PREFIX}ARTIFACTS must be outside the data directory {self.directory}")

    @property
    def artifacts_directory(self) -> Path | None:
        """Directory of artifacts; None = they are in an object store, or there are none."""
        path = self.artifacts.removeprefix("file://")
        return Path(os.path.normpath(path)) if path.startswith("/") else None

    @property
    def directory(self) -> Path:
        """The data directory's absolute path."""
        return Path(self.data_dir).absolute()
