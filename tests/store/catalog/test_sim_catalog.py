"""The simulated catalog's crashes and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.store.catalog.catalog import CatalogFailed
from tests.support.sim.catalog import SimCatalog
from tests.support.sim.fs import Crashed, CrashKind, SimFs
from tests.support.storage import catalog_entries as entries

PATH = Path("/data/catalog")
SEEDS = range(20)
KINDS: tuple[CrashKind, ...] = ("kill", "power")


def head_seqs(fs: SimFs) -> list[int]:
    """Head seq of each topic as the next process on this disk loads it."""
    return [entry.head_seq for entry in SimCatalog(fs, PATH).load()[1]]


def written(fs: SimFs) -> SimCatalog:
    """A catalog with one topic at head 1."""
    catalog = SimCatalog(fs, PATH)
    list(catalog.load()[1])
    catalog.write(entries.head(1), [entries.plain_topic(1, head_seq=1)], [])
    return catalog


def test_returned_write_survives_kill_and_power() -> None:
    for kind in KINDS:
        for seed in SEEDS:
            fs = SimFs(seed)
            written(fs)
            assert head_seqs(fs.reboot(kind)) == [1]


def test_interrupted_write_is_stored_completely_or_not_at_all() -> None:
    for kind in KINDS:
        outcomes = set[tuple[int, ...]]()
        for seed in SEEDS:
            fs = SimFs(seed)
            catalog = written(fs)
            fs.crash_at = fs.calls + 1
            with pytest.raises(Crashed):
                catalog.write(entries.head(2), [entries.plain_topic(n, head_seq=2) for n in (1, 2)], [])
            outcomes.add(tuple(head_seqs(fs.reboot(kind))))
        assert outcomes == {(1,), (2, 2)}


def test_opening_loading_and_writing_are_one_call_each() -> None:
    fs = SimFs()
    written(fs)
    assert fs.calls == 3
    for crash_at in (1, 2, 3):
        with pytest.raises(Crashed):
            written(SimFs(crash_at=crash_at))


def test_each_outcome_of_a_crash_has_its_own_disk() -> None:
    fs = SimFs()
    written(fs)
    one, other = fs.reboot("power"), fs.reboot("power")
    catalog = SimCatalog(one, PATH)
    list(catalog.load()[1])
    catalog.write(entries.head(2), [], [1])
    assert head_seqs(one) == []
    assert head_seqs(other) == head_seqs(fs) == [1]


@pytest.mark.parametrize("stored", [True, False])
def test_outcome_of_a_failed_write_is_known_after_a_reopen(stored: bool) -> None:
    fs = SimFs()
    catalog = written(fs)
    catalog.fail(stored=stored)
    for _ in range(2):
        with pytest.raises(CatalogFailed):
            catalog.write(entries.head(2), [entries.plain_topic(1, head_seq=2)], [])
    assert head_seqs(fs.reboot("kill")) == ([2] if stored else [1])
