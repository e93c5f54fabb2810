"""The fold after its own WAL was truncated or damaged: it equals the source up to the fold's own cursor."""

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
"""Block size of RocksDB's WAL; records are split at the ends of blocks."""
SAMPLES = 40
LIVES = 8
PARTS = 8
STRIDE = 4
"""An open costs 4 ms, so all 65 536 lengths would take 5 minutes."""


class KilledFold:
    """A fold as a kill left it, all of it in its WAL of somewhat more than `TAIL_BYTES`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "copy"
        fold = RocksFold(directory / "fold")
        seq = 0
        while _wal(directory / "fold").stat().st_size <= TAIL_BYTES:
            fold.apply(fold_writer.step(seq + 1))
            seq += fold_writer.FRAME
        shutil.copytree(directory / "fold", self.path)
        fold.close()
        self.last_seq = seq
        self.content = _wal(self.path).read_bytes()
        seqs = range(0, seq + 2 * fold_writer.FRAME, fold_writer.FRAME)
        self.live = {seq: fold_writer.live_at(seq) for seq in seqs}

    @property
    def size(self) -> int:
        return len(self.content)

    def write_wal(self, content: bytes) -> None:
        """Replace the WAL's bytes."""
        _wal(self.path).write_bytes(content)

    def flipped(self, offset: int) -> bytes:
        """Return the WAL with one flipped byte."""
        return self.content[:offset] + bytes((self.content[offset] ^ 0x5A,)) + self.content[offset + 1 :]

    def open_and_check(self) -> int:
        """Open the fold read-only and check it; return its applied seq."""
        fold = RocksFold(self.path, read_only=True)
        try:
            return self.check(fold)
        finally:
            fold.close()

    def check(self, fold: RocksFold) -> int:
        """Check that every topic, key and position is of one seq; return it."""
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


def _cut_each(killed: KilledFold, lengths: Iterable[int]) -> None:
    """A longer WAL must give as much or more."""
    applied = 0
    for length in sorted(lengths):
        killed.write_wal(killed.content[:length])
        seq = killed.open_and_check()
        assert seq >= applied, f"cut to {length} of {killed.size} bytes"
        applied = seq


def test_wal_truncated_anywhere_leaves_the_source_up_to_the_folds_cursor(tmp_path: Path) -> None:
    killed, random = KilledFold(tmp_path), Random(0)
    lengths = {random.randrange(killed.size) for _ in range(SAMPLES)}
    lengths |= {
        block + near for block in range(RECORD_BLOCK_BYTES, killed.size, RECORD_BLOCK_BYTES) for near in (-7, 0, 7)
    }
    _cut_each(killed, {0, *lengths, killed.size - 1})
    killed.write_wal(killed.content)
    assert killed.open_and_check() == killed.last_seq


def test_flipped_byte_of_the_wal_raises_or_leaves_the_source_up_to_the_folds_cursor(tmp_path: Path) -> None:
    killed, random = KilledFold(tmp_path), Random(1)
    for offset in (random.randrange(killed.size) for _ in range(SAMPLES)):
        killed.write_wal(killed.flipped(offset))
        try:
            seq = killed.open_and_check()
        except DataCorrupt:
            continue
        assert seq < killed.last_seq, f"byte {offset} was read as if nothing were wrong"


def test_fold_that_continued_after_a_truncated_or_damaged_wal_has_no_gap_after_a_kill(tmp_path: Path) -> None:
    killed, random = KilledFold(tmp_path), Random(2)
    shutil.copytree(killed.path, tmp_path / "whole")
    for number in range(LIVES):
        offset = random.randrange(killed.size)
        killed.write_wal(killed.flipped(offset) if number % 2 else killed.content[:offset])
        fold = RocksFold(killed.path)
        applied = killed.check(fold)
        fold.apply(fold_writer.step(applied + 1))
        shutil.copytree(killed.path, tmp_path / "killed")
        fold.close()
        again = RocksFold(tmp_path / "killed")
        assert killed.check(again) == applied + fold_writer.FRAME, offset
        again.close()
        shutil.rmtree(tmp_path / "killed")
        shutil.rmtree(killed.path)
        shutil.copytree(tmp_path / "whole", killed.path)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(PARTS))
def test_wal_truncated_within_its_last_64_kib_leaves_the_source_up_to_the_folds_cursor(
    part: int, tmp_path: Path
) -> None:
    killed = KilledFold(tmp_path)
    share = TAIL_BYTES // PARTS
    first = killed.size - TAIL_BYTES + part * share
    _cut_each(killed, range(first, first + share, STRIDE))
