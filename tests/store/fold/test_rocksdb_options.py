"""A memory budget bounds a fold's profile."""

from __future__ import annotations

import pytest

from eddyline.store.fold.rocksdb_options import LARGE, SMALL, Profile, fit_profile

MIB = 1 << 20


@pytest.mark.parametrize("profile", [SMALL, LARGE])
@pytest.mark.parametrize("memory_mib", [64, 256, 1024, 16_384])
def test_memtables_and_cache_fit_the_budget(profile: Profile, memory_mib: int) -> None:
    chosen = fit_profile(profile, memory_mib * MIB)
    held = chosen.memtable_count * (chosen.memtable_bytes + chosen.meta_memtable_bytes)
    assert held <= memory_mib * MIB // 2
    assert held + chosen.cache_bytes <= memory_mib * MIB


def test_sufficient_budget_leaves_memtables_unchanged() -> None:
    chosen = fit_profile(SMALL, 1024 * MIB)
    assert (chosen.memtable_bytes, chosen.meta_memtable_bytes) == (SMALL.memtable_bytes, SMALL.meta_memtable_bytes)
