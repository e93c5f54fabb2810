"""Rebuild replaces a damaged fold's file or an empty one, and no other file."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from eddyline.client.local_fold.local_fold import may_rebuild, open_fold
from eddyline.core.errors import DataCorrupt, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.client.local_fold.local_fold import LocalFoldState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.fold"


def opened(path: Path, *, rebuild: bool) -> LocalFoldState:
    """Return the state of an opened fold."""

    async def open_and_close() -> LocalFoldState:
        async with open_fold(path, "t", rebuild=rebuild) as fold:
            return fold.state()

    with asyncio.Runner() as runner:
        return runner.run(open_and_close())


@pytest.mark.parametrize("content", [b"root:x:0:0", b"EDYLFOL", b"\0" * 64])
def test_a_file_that_is_not_a_folds_is_never_replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(b"somebody's")
    with pytest.raises(DataCorrupt, match="not a local fold's file"):
        opened(path, rebuild=True)
    assert not may_rebuild(path)
    assert path.read_bytes() == content
    assert beside.read_bytes() == b"somebody's"


@pytest.mark.parametrize("content", [b"", b"EDYLFOLD", b"EDYLFOLD" + b"\1" * 64])
def test_rebuild_replaces_a_folds_file_and_an_empty_one(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert may_rebuild(path)
    with pytest.raises(DataCorrupt):
        opened(path, rebuild=False)
    assert opened(path, rebuild=True).entry_count == 0
    assert path.read_bytes() == content, "it is left until there is something to take its place"


def test_a_device_is_no_file_to_keep_a_fold_in(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidArgument, match="not a regular file"):
        opened(pipe, rebuild=True)
    assert pipe.is_fifo()
    assert not may_rebuild(pipe)
