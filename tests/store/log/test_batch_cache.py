"""The cache of batches: bounded in bytes, the least recently used goes first."""

from __future__ import annotations

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.store.log.batch_cache import ENTRY_OVERHEAD_BYTES, BatchCache


def batch(size: int) -> Batch:
    return Batch.from_rows([Record(data=bytes(size))])


def test_least_recently_used_goes_first() -> None:
    one = batch(1_000)
    cache = BatchCache(2 * (one.nbytes + ENTRY_OVERHEAD_BYTES))
    cache.add("a", one)
    cache.add("b", one)
    assert cache.get("a") is one
    cache.add("c", one)
    assert cache.get("b") is None
    assert cache.get("a") is cache.get("c") is one


def test_batch_larger_than_the_cache_pushes_nothing_out() -> None:
    small = batch(10)
    cache = BatchCache(4_096)
    cache.add("small", small)
    held_bytes = cache.bytes
    cache.add("large", batch(4_096))
    assert cache.get("large") is None
    assert cache.get("small") is small
    assert cache.bytes == held_bytes
