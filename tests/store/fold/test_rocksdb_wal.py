"""The fold's RocksDB behind a cut or damaged WAL of its own: it is what the source gives up to the fold's own cursor."""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.store.fold.fold import WriterState
from eddyline.store.fold.rocksdb import RocksFold
from tests.support.storage import fold_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TAIL_BYTES = 64 << 10
RECORD_BLOCK_BYTES = 32 << 10
"""RocksDB's WAL is made of blocks of this size, at whose ends records are cut in two."""
SAMPLES = 40
LIVES = 8
PARTS = 8
STRIDE = 4
"""An open costs 4 ms, so that all 65 536 lengths would take 5 minutes."""


class Left:
    """A fold as a kill left it, all of it in its WAL of somewhat more than `TAIL_BYTES`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "left"
        fold = RocksFold(directory / "fold")
        seq = 0
        while _wal(directory / "fold").stat().st_size <= TAIL_BYTES:
            fold.apply(fold_writer.step(seq + 1))
            seq += fold_writer.FRAME
        shutil.copytree(directory / "fold", self.path)
        fold.close()
        self.last_seq = seq
        self.content = _wal(self.path).read_bytes()
        self.live = {at: fold_writer.live_at(at) for at in range(0, seq + 2 * fold_writer.FRAME, fold_writer.FRAME)}

    @property
    def size(self) -> int:
        return len(self.content)

    def put(self, content: bytes) -> None:
        """Have this in the WAL."""
        _wal(self.path).write_bytes(content)

    def flipped(self, at: int) -> bytes:
        """The WAL with one byte turned."""
        return self.content[:at] + bytes((self.content[at] ^ 0x5A,)) + self.content[at + 1 :]

    def look(self) -> int:
        """Open it without changing it, and check; the seq that it has applied."""
        fold = RocksFold(self.path, read_only=True)
        try:
            return self.check(fold)
        finally:
            fold.close()

    def check(self, fold: RocksFold) -> int:
        """Every topic, key and position is that of one seq; which."""
        applied = fold.applied(fold_writer.TOPICS[0])
        for topic_id in fold_writer.TOPICS:
            assert fold.applied(topic_id) == applied
            position = {"writer": WriterState(1, b"%d" % applied)} if applied else {}
            assert fold.writers(topic_id) == position
            view = fold.view(topic_id)
            rows = view.next_page(1_000, 1 << 20)
            view.close()
            assert {row.key: row.data for row in rows} == self.live[applied]
        return applied


def _wal(path: Path) -> Path:
    (wal,) = path.glob("*.log")
    return wal


def _cut_each(left: Left, lengths: Iterable[int]) -> None:
    """Longer ones have as much or more."""
    applied = 0
    for length in sorted(lengths):
        left.put(left.content[:length])
        found = left.look()
        assert found >= applied, f"cut to {length} of {left.size} bytes"
        applied = found


def test_wal_cut_anywhere_leaves_the_source_up_to_the_folds_own_cursor(tmp_path: Path) -> None:
    left, random = Left(tmp_path), Random(0)
    lengths = {random.randrange(left.size) for _ in range(SAMPLES)}
    lengths |= {
        block + near for block in range(RECORD_BLOCK_BYTES, left.size, RECORD_BLOCK_BYTES) for near in (-7, 0, 7)
    }
    _cut_each(left, {0, *lengths, left.size - 1})
    left.put(left.content)
    assert left.look() == left.last_seq


def test_flipped_byte_of_the_wal_is_told_or_leaves_the_source_up_to_the_folds_own_cursor(tmp_path: Path) -> None:
    left, random = Left(tmp_path), Random(1)
    for at in (random.randrange(left.size) for _ in range(SAMPLES)):
        left.put(left.flipped(at))
        try:
            found = left.look()
        except DataCorrupt:
            continue
        assert found < left.last_seq, f"byte {at} was read as if nothing were wrong"


def test_fold_that_went_on_behind_a_cut_or_damaged_wal_has_no_hole_after_the_next_kill(tmp_path: Path) -> None:
    left, random = Left(tmp_path), Random(2)
    shutil.copytree(left.path, tmp_path / "whole")
    for number in range(LIVES):
        at = random.randrange(left.size)
        left.put(left.flipped(at) if number % 2 else left.content[:at])
        fold = RocksFold(left.path)
        applied = left.check(fold)
        fold.apply(fold_writer.step(applied + 1))
        shutil.copytree(left.path, tmp_path / "killed")
        fold.close()
        again = RocksFold(tmp_path / "killed")
        assert left.check(again) == applied + fold_writer.FRAME, at
        again.close()
        shutil.rmtree(tmp_path / "killed")
        shutil.rmtree(left.path)
        shutil.copytree(tmp_path / "whole", left.path)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(PARTS))
def test_wal_cut_all_over_its_last_64_kib_leaves_the_source_up_to_the_folds_own_cursor(
    part: int, tmp_path: Path
) -> None:
    left = Left(tmp_path)
    share = TAIL_BYTES // PARTS
    first = left.size - TAIL_BYTES + part * share
    _cut_each(left, range(first, first + share, STRIDE))
