"""RocksDB options of the fold: two profiles, each number with its reason.

`small` is the default: a developer's machine, tests, a store of some million entries on a shared host. `large` is meant
for 1e9 entries of 60 B keys and 200 B values (300 GB before compression) on a dedicated host.

This module gives the reason for every option; `rocksdb_files.py` only sets them. RocksDB's defaults are in brackets.
Options of both profiles that are not numbers:

    dynamic level bytes [on since 8.4]      levels grow from the last one up, so that a tenth of the data is stored twice;
                                            set explicitly, since an older database keeps its own value
    LZ4, ZSTD at the bottom [Snappy]        below
    hyper clock cache [LRU]                 no lock a look-up: four reader threads and the fold's share one cache
    two-level index, partitioned filters    below
    top level of both pinned [no]           some KB a table: finding a partition costs one read, not two
    filters of whole keys [the same]        no prefix filter: a prefix is a scan, which begins at its first block anyway
    WAL recovery to a point in time [same]  a torn tail ends the replay: some prefix of the writes, which is the contract
    no fsync of RocksDB's WAL a write       the store's own log is the truth; `sync` at checkpoints
    no slow-down of a stalled write         it would sleep with the interpreter's lock; the applier waits instead
    purge in the background                 a thread that drops an iterator, perhaps the event loop, unlinks no file

And the numbers: 16 KiB blocks, since with 4 KiB the index of 300 GB would be 4 GB; a two-level index and partitioned
filters, so that only hot partitions are cached; 10 bits of bloom filter a key, which is 1 % false positives; LZ4 above and
ZSTD at the bottom, which holds nine tenths of the data, written once; index and filters inside the block cache, so that
one number bounds memory.
Rejected: one database a topic (0.39 MB, 8 files and 8 ms each: not for 100 000 topics); sorting a batch by key or
RocksDB's insert hints (RocksDB gained less than the sort cost).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

ProfileName = Literal["small", "large"]

BLOCK_BYTES: Final = 16 << 10
"""[4 KiB] A point read decompresses 16 KiB, about 10 us; the index is a quarter as large."""
METADATA_BLOCK_BYTES: Final = 4096
"""[4 KiB] Partitions of index and filter: small ones, as each is cached by itself."""
BLOOM_BITS: Final = 10
"""[none] 1 % of the lookups of a missing key read a block for nothing; 1.25 GB of filters for 1e9 keys."""
FORMAT_VERSION: Final = 5
"""[5 since 6.6, later 6] Cache-local filters; every RocksDB since 2020 reads them."""
FILE_LOG_COUNT: Final = 4
FILE_LOG_BYTES: Final = 4 << 20
"""[1 000 files, no bound] RocksDB's own text log, which would grow without end."""
MANIFEST_BYTES: Final = 1
"""[1 GiB] The manifest keeps first and last keys of removed tables until it is rewritten, which this forces at each
flush and compaction, so that an erased key disappears with its table. Costs 200 bytes a table and two fsyncs each time."""
BYTES_PER_SYNC: Final = 1 << 20
"""[0] Table files are written back as they grow: otherwise the kernel writes 64 MiB at once and our WAL's fdatasync
waits for it. Costs nothing measurable."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Sizes of one fold."""

    memtable_bytes: int
    """[64 MiB] One memtable of entries; the next fills while it is flushed."""
    memtable_count: int
    """[2] Memtables at most, including full ones that wait for a flush; when all are full writes stall."""
    meta_memtable_bytes: int
    """[64 MiB] The same for cursors and positions: 50 B a topic, overwritten in place of growing."""
    wal_bytes_max: int
    """[4 x all memtables] RocksDB's WAL; above this size the memtables that pin its oldest file are flushed. An open
    replays it, at about 200 MiB/s."""
    cache_bytes: int
    """[32 MiB] Blocks, indexes and filters of both families, unless a budget sets it (`fit_profile`)."""
    target_file_bytes: int
    """[64 MiB] One table file."""
    level_base_bytes: int
    """[256 MiB] Data of the first level; as large as all memtables together."""
    background_jobs: int
    """[2] Flushes and compactions at once: the cores, at most."""
    open_files_max: int
    """[no bound] Table files kept open; the process shares its bound (20 000 here) with WAL and connections."""


SMALL: Final = Profile(
    memtable_bytes=16
    << 20,  # 2 of them fit any laptop; a flush each 100 000 entries of 150 B, one a second at full rate
    memtable_count=3,  # one more than the default: a flush of 16 MiB is short, a stall is back-pressure to producers
    meta_memtable_bytes=4 << 20,
    wal_bytes_max=64 << 20,  # 0.3 s of replay at open
    cache_bytes=64 << 20,
    target_file_bytes=16 << 20,
    level_base_bytes=64 << 20,
    background_jobs=2,
    open_files_max=512,  # 8 GB of entries before a table is ever closed
)

LARGE: Final = Profile(
    memtable_bytes=256 << 20,  # fewer, larger flushes: at 50 MB/s one each 5 s, and less is rewritten by compaction
    memtable_count=4,  # 1 GiB: 15 s of flushes may fail to keep up before a write stalls
    meta_memtable_bytes=16 << 20,
    wal_bytes_max=1 << 30,  # 5 s of replay at open; below it the 4 memtables would be flushed half empty
    cache_bytes=4 << 30,  # 1.25 GB of filters, 0.3 GB of index, the rest blocks
    target_file_bytes=128 << 20,
    level_base_bytes=1 << 30,
    background_jobs=4,
    open_files_max=8192,  # all of 300 GB in 128 MiB files, with room for compaction
)

PROFILES: Final[dict[ProfileName, Profile]] = {"small": SMALL, "large": LARGE}

MEMTABLE_BYTES_MIN: Final = 256 << 10


def fit_profile(profile: Profile, memory_bytes: int) -> Profile:
    """Return the profile within a budget: memtables take half of it at most, shrunk in proportion if necessary; blocks,
    indexes and filters get the rest."""
    held_bytes = profile.memtable_count * (profile.memtable_bytes + profile.meta_memtable_bytes)
    share = min(1.0, memory_bytes / 2 / held_bytes)
    memtable_bytes = max(int(profile.memtable_bytes * share), MEMTABLE_BYTES_MIN)
    meta_memtable_bytes = max(int(profile.meta_memtable_bytes * share), MEMTABLE_BYTES_MIN)
    held_bytes = profile.memtable_count * (memtable_bytes + meta_memtable_bytes)
    return replace(
        profile,
        memtable_bytes=memtable_bytes,
        meta_memtable_bytes=meta_memtable_bytes,
        cache_bytes=max(memory_bytes - held_bytes, MEMTABLE_BYTES_MIN),
    )


for _profile in PROFILES.values():
    assert _profile.memtable_bytes * _profile.memtable_count <= _profile.wal_bytes_max, (
        "the WAL never cuts memtables short"
    )
    assert _profile.memtable_bytes <= _profile.level_base_bytes, "the first level takes a flush"
