"""The format is frozen: new bytes equal the golden files, and those are read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from eddyline.core.runtime.fs import write_all
from eddyline.store.storage.identity import Identity, decode_identity, encode_identity
from eddyline.store.storage.layout import wal_file
from eddyline.store.storage.wal.frame import FrameType
from tests.support.golden import golden
from tests.support.sim.fs import SimFs
from tests.support.storage.wal_frames import DIRECTORY, every_body, every_record, put, recover

IDENTITY = Identity(
    "local", 0, 1, instance=3, boot_id="b7f3a1d2-0000-4000-8000-000000000000", clean=True, wal_number=7, wal_bytes=4096
)


def fresh_wal() -> bytes:
    """File number 1: every frame type; the second half records that the first was synced."""
    fs = SimFs()
    wal = recover(fs).wal
    put(wal, every_body()[:4])
    put(wal, every_body()[4:])
    recover(fs)
    return fs.open(wal_file(DIRECTORY, 1)).pread(1 << 20, 0)


def test_fresh_wal_file_has_the_golden_bytes() -> None:
    assert fresh_wal() == golden("wal-1.wal")


def test_golden_wal_file_is_read_back() -> None:
    fs = SimFs()
    recover(fs)
    file = fs.open(wal_file(DIRECTORY, 1))
    write_all(file, [golden("wal-1.wal")], 0)
    frames = recover(fs).frames
    # A mark belongs to the WAL itself: it is checked, not passed on.
    expected = [body.type for body in every_body() if body.type is not FrameType.CHECKPOINT_MARK]
    assert [frame.type for frame in frames] == expected
    assert {frame.type for frame in frames} == set(FrameType) - {FrameType.CHECKPOINT_MARK}
    full = frames[2].batch
    assert full is not None
    assert [row._replace(seq=0, ts_ms=0) for row in full.to_rows()] == every_record()
    assert [mark.writer for mark in frames[2].marks] == ["", "writer-1", "writer-1"]
    assert frames[0].control == {"durability": "DISK", "kind": "KV", "name": "téléphone"}
    assert [frame.synced_to > 0 for frame in frames] == [False] * 4 + [True] * 7


def test_fresh_identity_has_the_golden_bytes() -> None:
    assert encode_identity(IDENTITY) == golden("identity-1")
    assert decode_identity(Path("/identity"), golden("identity-1")) == IDENTITY


def test_identity_of_a_run_with_a_written_mark_has_the_golden_bytes() -> None:
    marked = replace(IDENTITY, clean=False, wal_bytes=0, marked=True)
    assert encode_identity(marked) == golden("identity-1-marked")
    assert decode_identity(Path("/identity"), golden("identity-1-marked")) == marked
