"""The directory that jobs write into: whole files or none, and one plan for one place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import InvalidArgument
from eddyline.export.out_dir import OutDir, absolute

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.fixture(params=["path", "uri"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> OutDir:
    return OutDir(absolute(str(tmp_path / "out") if request.param == "path" else (tmp_path / "out").as_uri()))


def test_a_file_that_is_written_again_is_replaced(out: OutDir) -> None:
    out.write("a/b/file", b"one")
    out.write("a/b/file", b"two")
    assert out.read("a/b/file") == b"two"
    assert out.files("") == out.files("a") == ["a/b/file"]
    assert out.sizes(["a/b/file", "a/none"]) == [3, None]


def test_a_write_that_fails_leaves_what_was_there(out: OutDir) -> None:
    out.write("file", b"one")
    with pytest.raises(RuntimeError), out.writing("file") as file:
        file.write(b"half of tw")
        raise RuntimeError
    assert out.read("file") == b"one"
    assert out.files("") == ["file"]


def test_one_of_many_creates_a_file(out: OutDir) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: out.create("state/plan", b"%d" % number), range(32)))
    assert made.count(True) == 1
    assert out.read("state/plan") == b"%d" % made.index(True)
    assert out.files("") == ["state/plan"]


def test_what_is_missing_is_nothing(out: OutDir) -> None:
    assert out.files("nowhere") == []
    assert not out.exists("nowhere")
    out.remove("nowhere")


def test_a_scheme_that_is_unknown_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="ftp://x"):
        OutDir("ftp://x/y")
