"""Memory budget: how it is split. One number bounds the memory that a store plans with: 9/16 hold data, 7/16 are for
appends and answers in flight.

    1/8  batches just written or read (the cache)
    1/8  records of EPHEMERAL topics
    1/4  RocksDB: block cache and memtables of the fold
    1/16 footers of segments (330 KB each where all its keys are distinct)
    1/4  appends being received and until they are answered (`eddyline.core.server.append_limiter`)
    3/16 appends staged and being applied (64 MiB each), messages on streams, answers, topics (2 KiB each), indexes (40 bytes
         a frame), segments being sealed or merged (some record batches of 8 MiB), keys (64 MiB), the interpreter itself

Threading: immutable values.
"""

from __future__ import annotations

from typing import NamedTuple


class MemoryPlan(NamedTuple):
    """Bytes of each part."""

    cache_bytes: int
    ephemeral_bytes: int
    rocksdb_bytes: int
    footer_bytes: int
    append_bytes: int


def memory_plan(memory_bytes: int) -> MemoryPlan:
    """Split a budget."""
    return MemoryPlan(memory_bytes // 8, memory_bytes // 8, memory_bytes // 4, memory_bytes // 16, memory_bytes // 4)
