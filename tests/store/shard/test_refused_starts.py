"""Refused starts: exit code 1, one line with the reason and the operator's action, and nothing changed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rocksdict import Options, Rdict
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt
from eddyline.store.catalog.codec import HEAD_KEY
from eddyline.store.recovery.orphans import ForeignFile
from eddyline.store.shard.lifecycle import IdentityMismatch
from eddyline.store.shard.startup_errors import startup_error_text
from eddyline.store.storage.layout import Layout, wal_file, wal_numbers
from eddyline.store.storage.wal.frame import HEADER, FrameType, control_body, seal
from tests.store.test_process import append, refused_start
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.storage.changed_frames import reseal
from tests.support.store.served import served_store
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

DATA_DIR = Path("/somewhere/store")
CLUSTER = {"EDDYLINE_COMMON_CLUSTER_ID": "test"}
READS_ALL = "-dac_override,-dac_read_search"
BOUND_BY_MODES = ("setpriv", f"--bounding-set={READS_ALL}", f"--inh-caps={READS_ALL}") if os.geteuid() == 0 else ()
"""Starts a program to which a file's mode says what it says to everybody, though it is root's."""


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """The directory of a store that ran twice, with frames of both runs."""
    data_dir = tmp_path / "store"
    for run in ("1", "2"):
        async with served_store(data_dir) as store:
            await store.log.AppendRecords(append("a", run.encode()))
            await store.log.AppendRecords(append(f"new-{run}", b"which syncs all before it"))
    return data_dir


def refused(data_dir: Path, **changes: str) -> str:
    """A refused start that changes nothing of ours; what it says."""
    before = dict(content(data_dir))
    said = refused_start(data_dir, **{**CLUSTER, **changes})
    assert dict(content(data_dir)) == before
    return said


def content(data_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Every file but what RocksDB and the lock write at each open."""
    for path in sorted(data_dir.rglob("*")):
        relative = str(path.relative_to(data_dir))
        if path.is_file() and not relative.startswith(("catalog/", "fold/", "LOCK")):
            yield relative, path.read_bytes()


def test_missing_catalog_is_refused(filled: Path) -> None:
    shutil.rmtree(filled / "catalog")
    said = refused(filled)
    assert f"CATALOG_LOST: the catalog {filled}/catalog is missing" in said
    assert "put back this directory's catalog, or restore the directory from a copy" in said


def test_emptied_catalog_is_refused(filled: Path) -> None:
    for path in (filled / "catalog").iterdir():
        path.unlink()
    assert f"CATALOG_LOST: the catalog {filled}/catalog is missing" in refused(filled)


async def test_older_catalog_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    async with served_store(data_dir) as store:
        await store.log.AppendRecords(append("a", b"1"))
    shutil.copytree(data_dir / "catalog", tmp_path / "copy")
    for number in range(2):
        async with served_store(data_dir) as store:
            await store.log.AppendRecords(append("a", b"%d" % number))
    shutil.rmtree(data_dir / "catalog")
    shutil.copytree(tmp_path / "copy", data_dir / "catalog")
    said = refused(data_dir)
    assert "CATALOG_LOST" in said
    assert "the catalog is an older one" in said


def test_catalog_of_a_later_format_is_refused(filled: Path) -> None:
    database = Rdict(str(filled / "catalog"), Options(raw_mode=True))
    head: bytes = database[HEAD_KEY]  # type: ignore[assignment]  # it is there
    body = re.sub(rb'"format":\d+', b'"format":3', head[:-8])
    database[HEAD_KEY] = body + xxh3_64_intdigest(body, xxh3_64_intdigest(HEAD_KEY)).to_bytes(8, "little")
    database.close()
    said = refused(filled)
    assert "NEWER_FORMAT" in said
    assert "has format 3, this version reads 2: start the version that wrote it, or a later one" in said


def test_identity_of_a_later_format_is_refused(filled: Path) -> None:
    path = Layout(filled).identity
    line = json.dumps({**json.loads(path.read_text().splitlines()[0]), "format": 2}, sort_keys=True).encode()
    path.write_bytes(line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n")
    said = refused(filled)
    assert f"NEWER_FORMAT: {path} has format 2" in said
    assert "start the version that wrote it" in said


@pytest.mark.parametrize(("at", "value", "words"), [(8, 31, "frame type 31"), (9, 2, "frame version 2")])
def test_wal_frame_of_a_later_version_is_refused(filled: Path, at: int, value: int, words: str) -> None:
    directory = Layout(filled).wal_shard(0)
    number = wal_numbers([path.name for path in directory.iterdir()])[-1]
    path = wal_file(directory, number)
    data = bytearray(path.read_bytes())
    end = HEADER.unpack_from(data)[1] if data[:4] == b"EDYF" else 0
    while data[end : end + 4] == b"EDYF":
        end += HEADER.unpack_from(data, end)[1]
    body = control_body(FrameType.TOPIC_DELETE, 1, {"name": "a"}, ts_ms=1)
    sealed = seal(body, shard=0, file_number=number, offset=end, synced_to=0)
    later = reseal(sealed, at=at, changed=bytes((value,)), shard=0, file_number=number, offset=end)
    path.write_bytes(bytes(data[:end]) + later)
    said = refused(filled)
    assert f"NEWER_FORMAT: {path}, offset {end}: {words}" in said
    assert "start the version that wrote it" in said


def test_wal_file_missing_in_the_middle_is_refused(filled: Path) -> None:
    directory = Layout(filled).wal_shard(0)
    numbers = wal_numbers([path.name for path in directory.iterdir()])
    assert len(numbers) == 2
    for number in numbers:
        path = wal_file(directory, number)
        kept = path.rename(filled.parent / path.name)
        said = refused(filled)
        assert f"DATA_CORRUPT: {path} is corrupt at offset 0: the file is missing" in said
        assert f"`eddyline fsck {filled}`" in said
        kept.rename(path)


def test_directory_of_another_cluster_is_refused(filled: Path) -> None:
    said = refused(filled, EDDYLINE_COMMON_CLUSTER_ID="other")
    assert "set that cluster (EDDYLINE_COMMON_CLUSTER_ID), or set another directory" in said


def test_directory_of_others_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"dear")
    said = refused(tmp_path)
    assert f"{tmp_path}/photo.jpg does not belong to the store: move it out of the data directory" in said
    assert os.listdir(tmp_path) == ["photo.jpg"]


def test_file_in_the_place_of_a_directory_is_refused(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "set another directory" in refused_start(tmp_path / "file")
    assert "set another directory" in refused_start(tmp_path / "file" / "store")
    shutil.rmtree(filled / "wal")
    (filled / "wal").touch()
    said = refused(filled)
    assert str(filled / "wal") in said
    assert "a file" in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errno.EACCES, f"give the store's user (uid {os.geteuid()}) read and write access"),
        (errno.EROFS, "its file system is read-only: mount it for writing"),
        (errno.ENOTDIR, "set another directory"),
        (errno.ENOSPC, "free space"),
        (errno.EIO, "the disk has errors"),
    ],
)
@pytest.mark.parametrize("operation", ["open", "listdir", "mkdir", "fsync_dir", "rename"])
async def test_file_system_errors_name_the_operators_action(operation: str, error: int, words: str) -> None:
    fs = FaultyFs(SimFs(), [Fault(operation, 1, error=error)])
    with pytest.raises((OSError, DataCorrupt)) as refusal:
        async with sim_store(fs):
            pass
    said = startup_error_text(refusal.value, DATA_DIR)
    assert said.startswith(f"the data directory {DATA_DIR} cannot be used: ")
    assert words in said


def test_unreadable_file_and_directory_are_refused(filled: Path) -> None:
    directory = Layout(filled).wal_shard(0)
    for path in (next(directory.glob("*.wal")), directory, Layout(filled).identity, filled):
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            assert f"uid {os.geteuid()}" in refused_start(filled, BOUND_BY_MODES, **CLUSTER)
        finally:
            path.chmod(mode)


@pytest.mark.parametrize(
    "error",
    [
        ForeignFile(Path("/x/README")),
        IdentityMismatch("two\nlines"),
        DataCorrupt("a\n  file", file="f", offset=0),
        OSError(errno.EACCES, "Permission denied", "/x"),
    ],
)
def test_reason_is_one_line(error: Exception) -> None:
    assert "\n" not in startup_error_text(error, DATA_DIR)
