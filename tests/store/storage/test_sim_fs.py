"""The simulated disk: changes that a crash may lose, and changes that it must keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.core.runtime.fs import Locked, write_all
from tests.support.sim.file_tree import SECTOR_BYTES
from tests.support.sim.fs import Crashed, SimFs

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


def test_power_loss_keeps_synced_bytes_and_changes_the_boot_id() -> None:
    fs = SimFs()
    file = fs.open(A, create=True)
    write_all(file, [b"abc"], 0)
    file.fdatasync()
    fs.fsync_dir(Path("/"))
    for seed in SEEDS:
        after = fs.reboot("power", seed=seed)
        assert content(after, A) == b"abc"
        assert after.boot_id != fs.boot_id


def test_power_loss_drops_keeps_or_tears_unsynced_bytes_by_sector() -> None:
    fs = SimFs()
    file = fs.open(A, create=True)
    write_all(file, [bytes(3 * SECTOR_BYTES)], 0)
    file.fsync()
    fs.fsync_dir(Path("/"))
    write_all(file, [b"x" * 3 * SECTOR_BYTES], 0)
    outcomes = {content(fs.reboot("power", seed=seed), A)[::SECTOR_BYTES] for seed in SEEDS}
    assert outcomes >= {b"\0\0\0", b"xxx", b"x\0\0", b"\0xx", b"\0\0x"}


def test_power_loss_may_keep_a_later_write_and_drop_an_earlier_one() -> None:
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


def test_power_loss_may_drop_names_whose_directory_was_not_synced() -> None:
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


OLD, NEW = Path("/old"), Path("/new")


def disk_with_a_move(*, directory: bool = False, old: Path = OLD, new: Path = NEW) -> SimFs:
    """A durable file (or a directory with one in it) in one directory, moved to another."""
    fs = SimFs()
    for path in (OLD, NEW):
        fs.mkdir(path)
    fs.fsync_dir(Path("/"))
    path = old / "a"
    if directory:
        fs.mkdir(path)
        path /= "inside"
    file = fs.open(path, create=True)
    write_all(file, [b"abc"], 0)
    file.fsync()
    fs.fsync_dir(path.parent)
    fs.fsync_dir(old)
    fs.rename(old / "a", new / "b")
    return fs


def places(fs: SimFs) -> tuple[list[str], list[str]]:
    return fs.listdir(OLD), fs.listdir(NEW)


def places_after_power(fs: SimFs) -> list[tuple[list[str], list[str]]]:
    """All outcomes of a move after a power crash, sorted."""
    outcomes = [places(fs.reboot("power", seed=seed)) for seed in SEEDS]
    return sorted({repr(place): place for place in outcomes}.values())


def test_move_between_directories_is_atomic_while_the_machine_runs() -> None:
    fs = disk_with_a_move()
    assert places(fs) == places(fs.reboot("kill")) == ([], ["b"])
    outcomes = set[str]()
    for seed in SEEDS:
        fs = SimFs(seed, crash_at=4)
        fs.mkdir(OLD)
        fs.mkdir(NEW)
        fs.open(OLD / "a", create=True)
        with pytest.raises(Crashed):
            fs.rename(OLD / "a", NEW / "b")
        outcomes.add(repr(places(fs.reboot("kill"))))
    assert outcomes == {repr(([], ["b"])), repr((["a"], []))}


@pytest.mark.parametrize(("old", "new"), [(OLD, NEW), (NEW, OLD)])
def test_unsynced_move_leaves_the_old_name_the_new_one_or_both(old: Path, new: Path) -> None:
    """Independent of the order of the two directories in the tree."""
    fs = disk_with_a_move(old=old, new=new)
    outcomes = set[tuple[int, int]]()
    for seed in SEEDS:
        after = fs.reboot("power", seed=seed)
        outcomes.add((len(after.listdir(old)), len(after.listdir(new))))
    assert outcomes == {(1, 0), (0, 1), (1, 1)}


def test_move_is_durable_after_fsync_of_the_new_directory_then_the_old_one() -> None:
    fs = disk_with_a_move()
    fs.fsync_dir(NEW)
    assert places_after_power(fs) == [([], ["b"]), (["a"], ["b"])]
    fs.fsync_dir(OLD)
    assert places_after_power(fs) == [([], ["b"])]
    assert content(fs.reboot("power"), NEW / "b") == b"abc"


def test_move_may_be_lost_if_only_the_old_directory_was_synced() -> None:
    fs = disk_with_a_move()
    fs.fsync_dir(OLD)
    assert places_after_power(fs) == [([], []), ([], ["b"])]


def test_moved_directory_never_has_two_names() -> None:
    fs = disk_with_a_move(directory=True)
    assert places_after_power(fs) == [([], ["b"]), (["a"], [])]
    fs.fsync_dir(NEW)
    assert places_after_power(fs) == [([], ["b"])]
    assert content(fs.reboot("power"), NEW / "b" / "inside") == b"abc"


def test_file_with_two_names_is_one_file() -> None:
    fs = disk_with_a_move()
    fs.fsync_dir(NEW)
    both = next(after for seed in SEEDS if places(after := fs.reboot("power", seed=seed)) == (["a"], ["b"]))
    write_all(both.open(OLD / "a"), [b"x"], 0)
    assert content(both, NEW / "b") == b"xbc"


def test_removed_directory_may_come_back_until_its_parent_is_synced() -> None:
    fs = SimFs()
    fs.mkdir(A)
    fs.fsync_dir(Path("/"))
    fs.rmdir(A)
    assert {fs.reboot("power", seed=seed).exists(A) for seed in SEEDS} == {True, False}
    fs.fsync_dir(Path("/"))
    assert {fs.reboot("power", seed=seed).exists(A) for seed in SEEDS} == {False}


def test_engine_content_survives_every_crash_and_each_boot_has_its_own_copy() -> None:
    fs = SimFs()
    fs.engines[A] = {b"key": b"value"}
    after = fs.reboot("power")
    after.engines[A][b"key"] = b"changed"
    assert fs.reboot("kill").engines == {A: {b"key": b"value"}}
    fs.free = 7
    assert fs.reboot("power").free_bytes(Path("/")) == 7


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


def test_last_call_takes_effect_completely_in_part_or_not_at_all() -> None:
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
    after = fs.reboot("kill")
    after.lock(A, b"two")
    with pytest.raises(Locked, match="two"):
        after.lock(A, b"three")
