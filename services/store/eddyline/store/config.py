"""The store's settings: the environment names `EDDYLINE_STORE_…`, each with its reason.

Bounds of queues that protect the process rather than fit it to a machine are constants of the modules that own them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eddyline.core.settings import SettingsError, check_address, check_choice, check_range

PREFIX: Final = "EDDYLINE_STORE_"

LISTEN: Final = "127.0.0.1:7701"
"""Loopback only, until there are keys and TLS. Port 0 takes a free one, which is printed when the store is ready."""
DATA_DIR: Final = "./eddyline-data/store"
"""Below the folder of a local cluster, where `eddyline up` keeps every role's data."""
WAL_FILE_BYTES: Final = 64 << 20
"""Elsewhere 64 MiB (RocksDB, etcd) to 128 MiB. A file is zero-filled and fsynced in the background before its use: 64 MiB
is 0.3 s of a slow disk, hidden behind the 64 MiB written meanwhile. Smaller rotates more often (an fdatasync and two
fsyncs each), larger keeps that much of spare space idle."""
WAL_FILE_BYTES_MIN: Final = 64 << 10
WAL_FILE_BYTES_MAX: Final = 1 << 30
"""A file is zero-filled whole before its use: beyond 1 GiB that is seconds of a disk at each rotation."""
SYNC_INTERVAL_MS: Final = 1_000
"""Elsewhere two minutes (NATS) or never by itself (Kafka): then power loss takes all of it. The contract promises at most
the last second of a DISK topic. Costs one fdatasync a second while something is written."""
SYNC_INTERVAL_MS_MIN: Final = 10
TOPICS_MAX: Final = 100_000
"""Elsewhere unbounded, until a client that makes names from user input fills memory. A topic takes about 2 KiB of it
before its first append, so this many take 200 MiB."""
TOPICS_MAX_MAX: Final = 10_000_000
CACHE_BYTES: Final = 64 << 20
"""Newest frames kept for followers and readers near the head, so that a live read touches no disk: half a second of
the fastest append rate."""
CACHE_BYTES_MAX: Final = 64 << 30
FOLD_PROFILES: Final = ("small", "large")
"""Sizes of RocksDB's buffers and caches; what each means is in `fold/rocksdb.py`."""
STOP_GRACE_MS: Final = 5_000
"""Time for calls under way when the store is told to stop: ten times what the longest commit takes, and within the 10 s
after which a supervisor kills. Watchers and waiting reads are cut at its end; they resume elsewhere."""
STOP_GRACE_MS_MAX: Final = 600_000

assert WAL_FILE_BYTES_MIN <= WAL_FILE_BYTES <= WAL_FILE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What a store is told."""

    listen: str = LISTEN
    data_dir: str = DATA_DIR
    wal_file_bytes: int = WAL_FILE_BYTES
    sync_interval_ms: int = SYNC_INTERVAL_MS
    topics_max: int = TOPICS_MAX
    cache_bytes: int = CACHE_BYTES
    fold_profile: str = "small"
    stop_grace_ms: int = STOP_GRACE_MS

    def __post_init__(self) -> None:
        check_address(f"{PREFIX}LISTEN", self.listen)
        if not self.data_dir:
            raise SettingsError(f"{PREFIX}DATA_DIR is empty")
        check_range(f"{PREFIX}WAL_FILE_BYTES", self.wal_file_bytes, WAL_FILE_BYTES_MIN, WAL_FILE_BYTES_MAX)
        check_range(f"{PREFIX}SYNC_INTERVAL_MS", self.sync_interval_ms, SYNC_INTERVAL_MS_MIN, SYNC_INTERVAL_MS)
        check_range(f"{PREFIX}TOPICS_MAX", self.topics_max, 1, TOPICS_MAX_MAX)
        check_range(f"{PREFIX}CACHE_BYTES", self.cache_bytes, 0, CACHE_BYTES_MAX)
        check_choice(f"{PREFIX}FOLD_PROFILE", self.fold_profile, FOLD_PROFILES)
        check_range(f"{PREFIX}STOP_GRACE_MS", self.stop_grace_ms, 0, STOP_GRACE_MS_MAX)

    @property
    def directory(self) -> Path:
        """The data directory's absolute path."""
        return Path(self.data_dir).absolute()
