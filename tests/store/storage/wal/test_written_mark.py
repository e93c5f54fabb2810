"""The written mark: the next run reads the last run's, and ignores any other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from eddyline.store.storage.wal.written_mark import MappedMark, WrittenEnd, run_name

if TYPE_CHECKING:
    from pathlib import Path

RUN = run_name("boot", 3)
BEGUN = [WrittenEnd(7, 0, 0), WrittenEnd(9, 64, 64)]


def dead_mark(path: Path) -> MappedMark:
    """A mark of a dead process."""
    mark = MappedMark(path)
    mark.begin(RUN, BEGUN)
    mark.put(0, WrittenEnd(8, 4096, 512))
    mark.close()
    return MappedMark(path)


def test_mark_of_a_run_is_read_back_by_shard(tmp_path: Path) -> None:
    mark = dead_mark(tmp_path / "mark")
    assert mark.read(RUN, 2) == [WrittenEnd(8, 4096, 512), BEGUN[1]]
    assert mark.read(RUN, 1) == [WrittenEnd(8, 4096, 512)]


def test_mark_of_another_run_or_boot_or_with_fewer_shards_is_ignored(tmp_path: Path) -> None:
    mark = dead_mark(tmp_path / "mark")
    assert mark.read(run_name("boot", 4), 2) is None
    assert mark.read(run_name("other", 3), 2) is None
    assert mark.read(RUN, 3) is None


def test_missing_damaged_short_or_special_mark_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    assert MappedMark(path).read(RUN, 1) is None
    mark = dead_mark(path)
    whole = path.read_bytes()
    for offset in (0, 64, 80, 95):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        assert mark.read(RUN, 1) is None
    path.write_bytes(whole[:200])
    assert mark.read(RUN, 1) is None
    path.unlink()
    os.mkfifo(path)
    assert mark.read(RUN, 1) is None
    path.unlink()
    path.symlink_to("other")
    assert mark.read(RUN, 1) is None


def test_begin_replaces_an_existing_mark_and_remove_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    dead_mark(path)
    path.with_name("mark.tmp").symlink_to("elsewhere")
    mark = MappedMark(path)
    mark.begin(run_name("boot", 4), BEGUN)
    assert (mark.read(run_name("boot", 4), 2), mark.read(RUN, 2)) == (BEGUN, None)
    mark.remove()
    mark.put(0, WrittenEnd(1, 1, 1))
    assert list(tmp_path.iterdir()) == []


def test_missing_directory_of_the_mark_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MappedMark(tmp_path / "none" / "mark").begin(RUN, BEGUN)
