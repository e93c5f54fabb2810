"""A polled file: every replacement is seen, whenever it happens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.watched_file import FileSetWatcher, FileTooLarge, FileWatcher
from tests.support.certificates import replace

if TYPE_CHECKING:
    from pathlib import Path


def watched(path: Path) -> FileWatcher:
    return FileWatcher(str(path), bytes_max=10)


def test_changed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"first")
    file = watched(path)
    assert file.read() == b"first"
    assert file.poll() is None
    replace(path, b"second")
    assert file.poll() == b"second"
    assert file.poll() is None


def test_file_replaced_while_it_is_opened_is_seen_at_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace(path, b"first")
    file, real = watched(path), os.fstat

    def late(opened: int) -> os.stat_result:
        replace(path, b"second")
        return real(opened)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", late)
        assert file.read() == b"first"
    assert file.poll() == b"second"


def test_volume_that_is_swapped_as_kubernetes_does_is_seen(tmp_path: Path) -> None:
    def mount(name: str, content: bytes) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(content)
        (tmp_path / "..draft").symlink_to(name)
        (tmp_path / "..draft").rename(tmp_path / "..data")

    mount("..1", b"first")
    (tmp_path / "file").symlink_to("..data/file")
    file = watched(tmp_path / "file")
    assert file.read() == b"first"
    mount("..2", b"other")
    assert file.poll() == b"other"
    assert file.poll() is None


def test_file_that_is_gone_or_too_large_is_polled_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"first")
    file = watched(path)
    file.read()
    path.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            file.poll()
    replace(path, b"x" * 11)
    with pytest.raises(FileTooLarge):
        file.poll()
    replace(path, b"last")
    assert file.poll() == b"last"


def test_files_are_due_together_until_they_are_marked_read(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        replace(path, b"a")
    files = FileSetWatcher(str(first), "", str(second), str(first), bytes_max=10)
    assert files.poll()
    assert files.poll()
    files.mark_read()
    assert not files.poll()
    replace(second, b"b")
    assert files.poll()
    files.mark_read()
    first.unlink()
    for _ in range(3):
        assert files.poll()
        files.mark_read()
    replace(first, b"far too large")
    assert files.poll()
    replace(first, b"c")
    assert files.poll()
    files.mark_read()
    assert not files.poll()


def test_no_files_are_due_once() -> None:
    files = FileSetWatcher("", "", bytes_max=10)
    assert not files
    assert files.poll()
    files.mark_read()
    assert not files.poll()
