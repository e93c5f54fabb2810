"""Crash at every call of an artifact's publication: it is complete, or the next export removes its remains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.runtime.fs import remove_tree, write_all
from eddyline.store.artifacts.job import ArtifactJob
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.artifacts.manifest import (
    ArtifactFile,
    ArtifactManifest,
    decode_named_manifest,
    encode_manifest,
    hash_of,
    topic_dir_name,
)
from eddyline.store.artifacts.store import GRACE_MS
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.sim.fs import Crashed, SimFs

if TYPE_CHECKING:
    from eddyline.store.artifacts.manifest import Pointer
    from tests.support.sim.fs import CrashKind

pytestmark = pytest.mark.crash

ROOT: Final = Path("/data/artifacts")
DIRECTORY: Final = ROOT / topic_dir_name("kv")
OUTCOMES: Final[tuple[tuple[CrashKind, int], ...]] = (("kill", 0), ("power", 1), ("power", 2), ("power", 3))
DATA: Final = b"a table" * 100


def manifest_of(seq: int) -> ArtifactManifest:
    files = (ArtifactFile("data/000000.sst", len(DATA), hash_of(DATA)),)
    return ArtifactManifest("kv", 1, seq, 1, START_MS, START_MS, "one", files)


def read_back(fs: SimFs, scratch: Path) -> None:
    """Make and remove the links, directories and database with which an export reads its tables back."""
    for directory in (scratch, scratch / "links", scratch / "tables"):
        fs.mkdir(directory)
    for path in (scratch / "links" / "000000.sst", scratch / "tables" / "CURRENT"):
        fs.open(path, create=True).close()
    remove_tree(fs, scratch)


def export(fs: SimFs, seq: int) -> Pointer:
    """Publish an artifact as an export does, with a table of bytes."""
    artifact_store, manifest = LocalArtifactStore(fs, ROOT, holder=""), manifest_of(seq)
    with artifact_store.draft("kv") as draft:
        file = fs.open(draft / "data" / "000000.sst", create=True)
        try:
            write_all(file, [DATA], 0)
            file.fsync()
        finally:
            file.close()
        read_back(fs, draft / "scratch")
        pointer = artifact_store.publish("kv", draft, manifest, encode_manifest(manifest), ArtifactJob(ManualClock()))
    artifact_store.prune("kv", keep=1, now_ms=START_MS + GRACE_MS)
    return pointer


def begun(seed: int) -> SimFs:
    """Make a disk with two artifacts."""
    fs = SimFs(seed)
    fs.mkdir(ROOT.parent)
    fs.fsync_dir(ROOT.parent.parent)
    for seq in (1, 2):
        export(fs, seq)
    return fs


def check_whole(fs: SimFs, at_least: int) -> int:
    """Check that every named artifact is complete. Returns the seq of the latest one."""
    artifact_store = LocalArtifactStore(fs, ROOT, holder="")
    for name in artifact_store.names("kv"):
        manifest = decode_named_manifest(name, artifact_store.manifest("kv", name))
        for file in manifest.files:
            assert hash_of(b"".join(artifact_store.chunks("kv", name, file.path))) == file.blake3
    pointer = artifact_store.pointer("kv")
    assert pointer is not None
    assert pointer.name in artifact_store.names("kv")
    assert pointer.seq >= at_least
    return pointer.seq


def test_a_crash_at_every_call_leaves_a_complete_artifact_or_remains_for_the_next_export() -> None:
    fs = begun(0)
    first = fs.calls + 1
    export(fs, 3)
    seen = set[int]()
    for call in range(first, fs.calls + 1):
        stopped = begun(call)
        stopped.crash_at = call
        with pytest.raises(Crashed):
            export(stopped, 3)
        for crash, seed in OUTCOMES:
            disk = stopped.reboot(crash, seed=seed)
            seen.add(check_whole(disk, 2))
            assert export(disk, 4).seq == check_whole(disk, 4) == 4
            assert {name for name in disk.listdir(DIRECTORY) if name.startswith(".") or name.endswith(".tmp")} == {
                ".lock"
            }
    assert seen == {2, 3}
