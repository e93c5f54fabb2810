"""The simulated disk keeps its own promises: what a crash may take, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.store.storage.fs import write_all
from tests.support.sim_fs import SECTOR_BYTES, Crashed, SimFs

A, B = Path("/a"), Path("/b")
SEEDS = range(200)


def content(fs: SimFs, path: Path) -> bytes:
    return fs.open(path).pread(1 << 20, 0)


def test_kill_keeps_bytes_names_and_boot_id() -> None:
    fs = SimFs()
    write_all(fs.open(A, create=True), [b"abc"], 0)
    after = fs.reboot("kill")
    assert content(after, A) == b"abc"
    assert after.boot_id == fs.boot_id


def test_power_keeps_what_was_synced_and_changes_the_boot_id() -> None:
    fs = SimFs()
    file = fs.open(A, create=True)
    write_all(file, [b"abc"], 0)
    file.fdatasync()
    fs.fsync_dir(Path("/"))
    for seed in SEEDS:
        after = fs.reboot("power", seed=seed)
        assert content(after, A) == b"abc"
        assert after.boot_id != fs.boot_id


def test_power_loses_keeps_or_tears_unsynced_bytes_by_sector() -> None:
    fs = SimFs()
    file = fs.open(A, create=True)
    write_all(file, [bytes(3 * SECTOR_BYTES)], 0)
    file.fsync()
    fs.fsync_dir(Path("/"))
    write_all(file, [b"x" * 3 * SECTOR_BYTES], 0)
    outcomes = {content(fs.reboot("power", seed=seed), A)[::SECTOR_BYTES] for seed in SEEDS}
    assert outcomes >= {b"\0\0\0", b"xxx", b"x\0\0", b"\0xx", b"\0\0x"}


def test_power_may_keep_a_later_write_and_lose_an_earlier_one() -> None:
    fs = SimFs()
    file = fs.open(A, create=True)
    write_all(file, [bytes(2 * SECTOR_BYTES)], 0)
    file.fsync()
    fs.fsync_dir(Path("/"))
    write_all(file, [b"1"], 0)
    write_all(file, [b"2"], SECTOR_BYTES)
    outcomes = {content(fs.reboot("power", seed=seed), A)[::SECTOR_BYTES] for seed in SEEDS}
    assert outcomes == {b"\0\0", b"1\0", b"\0002", b"12"}


def test_fdatasync_may_lose_a_cut_that_fsync_keeps() -> None:
    lengths = {"fdatasync": set[int](), "fsync": set[int]()}
    for sync, seen in lengths.items():
        for seed in SEEDS:
            fs = SimFs(seed)
            file = fs.open(A, create=True)
            write_all(file, [b"abcdef"], 0)
            file.fsync()
            fs.fsync_dir(Path("/"))
            file.truncate(2)
            getattr(file, sync)()
            seen.add(len(content(fs.reboot("power"), A)))
    assert lengths == {"fdatasync": {2, 6}, "fsync": {2}}


def test_power_may_lose_names_whose_directory_was_not_synced() -> None:
    fs = SimFs()
    fs.open(A, create=True).fsync()
    fs.open(B, create=True).fsync()
    outcomes = {tuple(fs.reboot("power", seed=seed).listdir(Path("/"))) for seed in SEEDS}
    assert outcomes == {(), ("a",), ("b",), ("a", "b")}


def test_rename_is_one_step() -> None:
    fs = SimFs()
    fs.open(A, create=True).fsync()
    fs.fsync_dir(Path("/"))
    fs.rename(A, B)
    outcomes = {tuple(fs.reboot("power", seed=seed).listdir(Path("/"))) for seed in SEEDS}
    assert outcomes == {("a",), ("b",)}


def test_one_seed_gives_one_outcome() -> None:
    fs = SimFs(7)
    write_all(fs.open(A, create=True), [b"x" * 5000], 0)
    fs.fsync_dir(Path("/"))
    assert content(fs.reboot("power"), A) == content(fs.reboot("power"), A)


def test_machine_stops_at_its_call_and_stays_stopped() -> None:
    fs = SimFs(crash_at=2)
    file = fs.open(A, create=True)
    with pytest.raises(Crashed):
        write_all(file, [b"abc"], 0)
    with pytest.raises(Crashed):
        file.pread(1, 0)
    assert fs.calls == 2


def test_last_call_takes_effect_wholly_in_part_or_not_at_all() -> None:
    lengths = set[int]()
    for seed in SEEDS:
        fs = SimFs(seed, crash_at=2)
        with pytest.raises(Crashed):
            write_all(fs.open(A, create=True), [b"abc"], 0)
        lengths.add(len(content(fs.reboot("kill"), A)))
    assert lengths == {0, 1, 2, 3}


def test_lock_ends_with_the_crash() -> None:
    fs = SimFs()
    fs.lock(A, b"one")
    fs.reboot("kill").lock(A, b"two")
