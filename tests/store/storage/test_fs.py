"""One conformance suite for every file system, and properties of the real one."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from eddyline.core.runtime.fs import BUFFERS_MAX, Locked, RealFs, remove_directory, remove_tree, write_all
from eddyline.store.storage.layout import Layout, wal_file, wal_numbers
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fs import Crashed, SimFs

if TYPE_CHECKING:
    from eddyline.core.runtime.fs import Fs


class Disk(NamedTuple):
    """A file system and a working directory on it."""

    fs: Fs
    root: Path


@pytest.fixture(params=["real", "sim", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    root = Path("/root")
    if request.param == "real":
        root = tmp_path / "root"
    disks: dict[str, Fs] = {"real": RealFs(), "sim": SimFs(), "faulty": FaultyFs(SimFs())}
    fs = disks[request.param]
    fs.mkdir(root)
    return Disk(fs, root)


def test_written_bytes_are_read_back_by_every_handle(disk: Disk) -> None:
    file = disk.fs.open(disk.root / "a", create=True)
    assert file.pwritev([b"abc", memoryview(b"def"), bytearray(b"")], 2) == 6
    other = disk.fs.open(disk.root / "a")
    assert other.pread(100, 0) == b"\0\0abcdef"
    assert other.pread(2, 3) == b"bc"
    assert other.pread(2, 100) == b""
    assert other.size() == 8
    for handle in (file, other):
        handle.fdatasync()
        handle.fsync()
        handle.close()


def test_truncate_cuts_and_extends_with_zeros(disk: Disk) -> None:
    file = disk.fs.open(disk.root / "a", create=True)
    write_all(file, [b"abcdef"], 0)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"
    file.close()


def test_create_keeps_an_existing_file(disk: Disk) -> None:
    file = disk.fs.open(disk.root / "a", create=True)
    write_all(file, [b"abc"], 0)
    again = disk.fs.open(disk.root / "a", create=True)
    assert again.pread(10, 0) == b"abc"
    file.close()
    again.close()


def test_absent_file_is_not_found(disk: Disk) -> None:
    missing = disk.root / "missing"
    assert not disk.fs.exists(missing)
    assert not disk.fs.exists(missing / "deeper")
    for call in (disk.fs.open, disk.fs.unlink, disk.fs.listdir, disk.fs.fsync_dir):
        with pytest.raises(FileNotFoundError):
            call(missing)
    with pytest.raises(FileNotFoundError):
        disk.fs.rename(missing, disk.root / "other")
    with pytest.raises(FileNotFoundError):
        disk.fs.mkdir(missing / "deeper")


def test_names_are_listed_sorted_renamed_over_and_unlinked(disk: Disk) -> None:
    for name in ("b", "a", "c"):
        file = disk.fs.open(disk.root / name, create=True)
        write_all(file, [name.encode()], 0)
        file.close()
    disk.fs.mkdir(disk.root / "d")
    disk.fs.rename(disk.root / "a", disk.root / "b")
    disk.fs.unlink(disk.root / "c")
    disk.fs.fsync_dir(disk.root)
    assert disk.fs.listdir(disk.root) == ["b", "d"]
    file = disk.fs.open(disk.root / "b")
    assert file.pread(10, 0) == b"a"
    file.close()


def test_handle_stays_valid_when_its_file_is_renamed(disk: Disk) -> None:
    file = disk.fs.open(disk.root / "old", create=True)
    disk.fs.rename(disk.root / "old", disk.root / "new")
    write_all(file, [b"abc"], 0)
    file.close()
    again = disk.fs.open(disk.root / "new")
    assert again.pread(10, 0) == b"abc"
    again.close()


def make_file(fs: Fs, path: Path, content: bytes = b"") -> None:
    file = fs.open(path, create=True)
    write_all(file, [content], 0)
    file.close()


def test_file_or_directory_moves_between_directories(disk: Disk) -> None:
    orphans = disk.root / "orphans"
    for path in (orphans, disk.root / "topic"):
        disk.fs.mkdir(path)
    make_file(disk.fs, disk.root / "topic" / "segment", b"abc")
    make_file(disk.fs, disk.root / "file")
    disk.fs.rename(disk.root / "topic", orphans / "moved")
    disk.fs.rename(disk.root / "file", orphans / "file")
    assert disk.fs.listdir(disk.root) == ["orphans"]
    assert disk.fs.listdir(orphans) == ["file", "moved"]
    file = disk.fs.open(orphans / "moved" / "segment")
    assert file.pread(10, 0) == b"abc"
    file.close()


def test_move_replaces_a_file_or_an_empty_directory_only(disk: Disk) -> None:
    for name in ("a", "b", "full"):
        disk.fs.mkdir(disk.root / name)
    make_file(disk.fs, disk.root / "file")
    make_file(disk.fs, disk.root / "full" / "file")
    disk.fs.rename(disk.root / "a", disk.root / "b")
    assert disk.fs.listdir(disk.root) == ["b", "file", "full"]
    for old, new, code in (
        ("b", "full", errno.ENOTEMPTY),
        ("b", "file", errno.ENOTDIR),
        ("file", "b", errno.EISDIR),
        ("full", "full/deeper", errno.EINVAL),
    ):
        with pytest.raises(OSError, match=os.strerror(code)):
            disk.fs.rename(disk.root / old, disk.root / new)


def test_only_an_empty_directory_is_removed(disk: Disk) -> None:
    topic = disk.root / "topic"
    disk.fs.mkdir(topic)
    make_file(disk.fs, topic / "segment")
    for path, code in ((topic, errno.ENOTEMPTY), (topic / "segment", errno.ENOTDIR), (topic / "none", errno.ENOENT)):
        with pytest.raises(OSError, match=os.strerror(code)):
            disk.fs.rmdir(path)
    disk.fs.unlink(topic / "segment")
    disk.fs.rmdir(topic)
    assert not disk.fs.exists(topic)


def test_removal_of_a_directory_with_files_is_idempotent(disk: Disk) -> None:
    topic = disk.root / "topic"
    disk.fs.mkdir(topic)
    for name in ("a", "b"):
        make_file(disk.fs, topic / name)
    for _ in range(2):
        remove_directory(disk.fs, topic)
        assert disk.fs.listdir(disk.root) == []


def test_tree_of_any_shape_is_removed_and_a_missing_tree_is_no_error(disk: Disk) -> None:
    tree = disk.root / "tree"
    for directory in (tree, tree / "a", tree / "a" / "b", tree / "empty"):
        disk.fs.mkdir(directory)
    for path in (tree / "1", tree / "a" / "2", tree / "a" / "b" / "3"):
        make_file(disk.fs, path)
    make_file(disk.fs, disk.root / "file")
    for _ in range(2):
        remove_tree(disk.fs, tree)
        remove_tree(disk.fs, disk.root / "file")
        assert disk.fs.listdir(disk.root) == []


def test_link_in_a_removed_tree_is_removed_but_its_target_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(kept)
    remove_tree(RealFs(), tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_interrupted_removal_of_a_directory_is_completed_by_the_next() -> None:
    topic = Path("/topic")
    for crash_at in range(6, 20):
        fs = SimFs(crash_at=crash_at)
        try:
            fs.mkdir(topic)
            for name in ("a", "b"):
                fs.open(topic / name, create=True)
            fs.fsync_dir(topic)
            fs.fsync_dir(topic.parent)
            remove_directory(fs, topic)
        except Crashed:
            after = fs.reboot("power")
            remove_directory(after, topic)
            assert not after.reboot("power").exists(topic)
        else:
            return
    pytest.fail("the removal takes more calls than were swept")


def test_free_bytes_are_those_of_a_directory_that_exists(disk: Disk) -> None:
    assert disk.fs.free_bytes(disk.root) > 0
    with pytest.raises(FileNotFoundError):
        disk.fs.free_bytes(disk.root / "missing")


def test_free_bytes_of_the_simulated_disk_are_set_by_the_test() -> None:
    sim = SimFs()
    sim.free = 5
    faulty = FaultyFs(sim)
    assert faulty.free_bytes(Path("/")) == 5
    faulty.free = 3
    assert faulty.free_bytes(Path("/")) == 3
    faulty.next_fault("free_bytes", error=errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        faulty.free_bytes(Path("/"))


def test_mkdir_of_a_directory_that_exists_is_no_error(disk: Disk) -> None:
    disk.fs.mkdir(disk.root)
    file = disk.fs.open(disk.root / "file", create=True)
    file.close()
    with pytest.raises(FileExistsError):
        disk.fs.mkdir(disk.root / "file")


def test_second_lock_names_the_holder_until_it_is_released(disk: Disk) -> None:
    lock = disk.fs.lock(disk.root / "LOCK", b"store 7 on host")
    with pytest.raises(Locked, match="store 7 on host") as caught:
        disk.fs.lock(disk.root / "LOCK", b"another")
    assert caught.value.holder == "store 7 on host"
    lock.release()
    disk.fs.lock(disk.root / "LOCK", b"another").release()


def test_more_buffers_than_one_call_takes_are_all_written(disk: Disk) -> None:
    file = disk.fs.open(disk.root / "a", create=True)
    write_all(file, [b"%05d" % number for number in range(2 * BUFFERS_MAX + 1)], 3)
    assert file.size() == 3 + 5 * (2 * BUFFERS_MAX + 1)
    assert file.pread(5, 3 + 5 * 2 * BUFFERS_MAX) == b"%05d" % (2 * BUFFERS_MAX)
    file.close()


def test_short_writes_are_completed() -> None:
    fs = FaultyFs(SimFs(), [Fault("pwritev", 1, short=4), Fault("pwritev", 2, short=1)])
    file = fs.open(Path("/a"), create=True)
    write_all(file, [b"abc", b"", b"defg", b"h"], 0)
    assert file.pread(10, 0) == b"abcdefgh"
    assert fs.calls["pwritev"] == 3


def test_write_without_progress_is_an_error() -> None:
    file = FaultyFs(SimFs(), [Fault("pwritev", 1)]).open(Path("/a"), create=True)
    with pytest.raises(OSError, match="no progress"):
        write_all(file, [b"abc"], 0)


def test_fault_occurs_at_its_call_and_lasts_if_configured() -> None:
    fs = FaultyFs(SimFs(), [Fault("fsync", 2, errno.EIO), Fault("pwritev", 1, errno.ENOSPC, lasting=True)])
    file = fs.open(Path("/a"), create=True)
    file.fsync()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.fsync()
    file.fsync()
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.pwritev([b"a"], 0)


def test_real_lock_ends_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        RealFs().lock(tmp_path / "LOCK", b"child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    RealFs().lock(tmp_path / "LOCK", b"parent").release()


def test_real_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    fs, layout = RealFs(), Layout(tmp_path / "data")
    layout.make_directories(fs)
    fs.open(layout.identity, create=True).close()
    assert layout.data_dir.stat().st_mode & 0o777 == 0o700
    assert layout.identity.stat().st_mode & 0o777 == 0o600


def check_read_only(path: Path, *, new: Path) -> None:
    """Check that a file can be read but not written, and that `new` cannot be created."""
    fs = RealFs()
    file = fs.open(path)
    assert file.pread(4, 0) == b"kept"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.pwritev([b"lost"], 0)
    file.close()
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        fs.open(new, create=True)


def test_real_file_that_opens_read_only_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    kernel_open = os.open

    def open_read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return kernel_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_read_only)
    check_read_only(tmp_path / "file", new=tmp_path / "file")


def test_real_file_on_a_disk_that_became_read_only_is_readable(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here; the test above shows it without a mount")
    try:
        fs, path = RealFs(), tmp_path / "file"
        file = fs.open(path, create=True)
        file.pwritev([b"kept"], 0)
        file.close()
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        check_read_only(path, new=tmp_path / "new")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_directories_are_durable_when_made() -> None:
    fs, layout = SimFs(), Layout(Path("/data"))
    layout.make_directories(fs)
    layout.make_directories(fs)
    assert fs.reboot("power").exists(layout.wal_shard(0))


def test_only_wal_files_have_numbers() -> None:
    names = [wal_file(Path("/"), number).name for number in (2**64 - 1, 1, 0x2A)]
    bad_names = ["spare", "1.wal", "000000000000000A.wal", "0000000000000001.wal.tmp", "x0000000000000001.wal"]
    assert wal_numbers(names + bad_names) == [1, 0x2A, 2**64 - 1]
