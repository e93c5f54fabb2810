"""One conformance suite for both artifact stores: pointer, pruning, and concurrent exporters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from eddyline.core.errors import ArtifactInvalid, ArtifactsNotConfigured, TooManyScans
from eddyline.core.runtime.fs import RealFs
from eddyline.store.artifacts.job import ArtifactJob
from eddyline.store.artifacts.local_store import LocalArtifactStore
from eddyline.store.artifacts.manifest import (
    ArtifactFile,
    ArtifactManifest,
    artifact_name,
    encode_manifest,
    hash_of,
    topic_dir_name,
)
from eddyline.store.artifacts.object_store import ObjectArtifactStore, open_remote
from eddyline.store.artifacts.store import GRACE_MS
from tests.support.manual_clock import START_MS, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.store.artifacts.manifest import Pointer
    from eddyline.store.artifacts.store import ArtifactStore

DATA = b"not a table, which no artifact store reads"
FAR = START_MS * 2
"""Later than any object's time, which is the real one."""


@pytest.fixture(params=["local", "remote"])
def artifact_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "local":
        return LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="the test")
    return ObjectArtifactStore(MemoryStore(), tmp_path / "draft")


def manifest_of(seq: int, *, epoch: int = 1, store_id: str = "one", topic: str = "kv") -> ArtifactManifest:
    files = (ArtifactFile("data/000000.sst", len(DATA), hash_of(DATA)),)
    return ArtifactManifest(topic, epoch, seq, 1, START_MS, START_MS, store_id, files)


def publish(artifact_store: ArtifactStore, manifest: ArtifactManifest) -> Pointer:
    with artifact_store.draft(manifest.topic) as draft:
        (draft / "data" / "000000.sst").write_bytes(DATA)
        return artifact_store.publish(
            manifest.topic, draft, manifest, encode_manifest(manifest), ArtifactJob(ManualClock())
        )


def name_of(manifest: ArtifactManifest) -> str:
    return artifact_name(manifest, encode_manifest(manifest))


def test_published_artifact_is_read_back_unchanged(artifact_store: ArtifactStore) -> None:
    assert artifact_store.pointer("kv") is None
    assert artifact_store.names("kv") == []
    manifest = manifest_of(5)
    pointer = publish(artifact_store, manifest)
    assert artifact_store.pointer("kv") == pointer
    name = name_of(manifest)
    assert (pointer.name, artifact_store.names("kv"), artifact_store.names("other")) == (name, [name], [])
    assert sorted(artifact_store.files("kv", name)) == ["MANIFEST.json", "data/000000.sst"]
    assert artifact_store.manifest("kv", name) == encode_manifest(manifest)
    assert b"".join(artifact_store.chunks("kv", name, "data/000000.sst")) == DATA
    with pytest.raises(ArtifactInvalid, match="missing"):
        list(artifact_store.chunks("kv", name, "data/000001.sst"))


def test_artifact_published_twice_exists_once(artifact_store: ArtifactStore) -> None:
    assert publish(artifact_store, manifest_of(5)) == publish(artifact_store, manifest_of(5))
    assert len(artifact_store.names("kv")) == 1


def test_older_artifact_is_kept_and_never_pointed_to(artifact_store: ArtifactStore) -> None:
    newer = publish(artifact_store, manifest_of(9))
    assert publish(artifact_store, manifest_of(5)) == newer
    assert publish(artifact_store, manifest_of(8, store_id="two", epoch=99)) == newer
    assert artifact_store.pointer("kv") == newer
    assert len(artifact_store.names("kv")) == 3
    made_anew = publish(artifact_store, manifest_of(1, epoch=2))
    assert made_anew.seq == 1
    assert artifact_store.pointer("kv") == made_anew


def test_abandoned_draft_leaves_nothing(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), artifact_store.draft("kv") as draft:
        (draft / "data" / "000000.sst").write_bytes(DATA)
        raise ZeroDivisionError
    assert artifact_store.names("kv") == []
    assert not list(tmp_path.rglob("*.sst"))


def test_prune_keeps_the_newest_the_pointers_and_the_recent_artifacts(artifact_store: ArtifactStore) -> None:
    for seq in (1, 2, 3, 4):
        publish(artifact_store, manifest_of(seq))
    names = {seq: name_of(manifest_of(seq)) for seq in range(1, 5)}
    assert artifact_store.prune("kv", keep=2, now_ms=START_MS + GRACE_MS - 1) == 0
    assert artifact_store.prune("kv", keep=2, now_ms=FAR) == 2
    assert set(artifact_store.names("kv")) == {names[3], names[4]}
    made_anew = publish(artifact_store, manifest_of(1, epoch=2))
    assert artifact_store.prune("kv", keep=1, now_ms=FAR) == 0, "nothing of a higher seq than the pointer's goes"
    assert made_anew.name in artifact_store.names("kv")
    assert artifact_store.prune("other", keep=1, now_ms=FAR) == 0


def test_second_exporter_to_a_directory_is_refused_with_a_delay(tmp_path: Path) -> None:
    one, two = (LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder=name) for name in ("one", "two"))
    with one.draft("kv"), pytest.raises(TooManyScans, match="one"), two.draft("kv"):
        raise AssertionError
    publish(two, manifest_of(3))
    assert one.pointer("kv") == two.pointer("kv")


def test_remains_of_a_crash_are_removed_by_the_next_export(tmp_path: Path) -> None:
    artifact_store = LocalArtifactStore(RealFs(), tmp_path / "artifacts", holder="")
    directory = tmp_path / "artifacts" / topic_dir_name("kv")
    for name in (".draft", ".gone"):
        (directory / name / "data").mkdir(parents=True)
        (directory / name / "data" / "000000.sst").write_bytes(DATA)
        (directory / name / "MANIFEST.json").write_bytes(b"half")
        for child in ("links", "tables"):  # as a read-back creates them
            (directory / name / "scratch" / child).mkdir(parents=True)
            (directory / name / "scratch" / child / "000000.sst").write_bytes(DATA)
    pointer = publish(artifact_store, manifest_of(5))
    assert {path.name for path in directory.iterdir()} == {".lock", "latest", pointer.name}


@pytest.mark.parametrize("theirs", [3, 7])
def test_concurrently_replaced_pointer_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: int
) -> None:
    store = MemoryStore()
    ours, other = ObjectArtifactStore(store, tmp_path / "one"), ObjectArtifactStore(store, tmp_path / "two")
    publish(ours, manifest_of(1))
    put: Callable[..., object] = obstore.put
    raced: list[str] = []

    def racing(where: object, path: str, *rest: object, **options: object) -> object:
        if path.endswith("/latest") and not raced:
            raced.append(path)
            publish(other, manifest_of(theirs, store_id="two"))
        return put(where, path, *rest, **options)

    monkeypatch.setattr(obstore, "put", racing)
    pointer = publish(ours, manifest_of(5))
    assert raced
    assert pointer.seq == max(5, theirs)
    assert ours.pointer("kv") == pointer


def test_object_store_without_conditional_puts_is_refused_before_any_write(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    artifact_store = ObjectArtifactStore(LocalStore(tmp_path / "objects"), tmp_path / "draft")
    with pytest.raises(ArtifactsNotConfigured, match="conditional"):
        publish(artifact_store, manifest_of(5))
    assert artifact_store.names("kv") == []
    assert artifact_store.pointer("kv") is None


def test_damaged_pointer_is_replaced(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    publish(artifact_store, manifest_of(9))
    if isinstance(artifact_store, ObjectArtifactStore):
        obstore.put(artifact_store._store, f"{topic_dir_name('kv')}/latest", b"junk")
    else:
        (tmp_path / "artifacts" / topic_dir_name("kv") / "latest").write_bytes(b"junk")
    with pytest.raises(ArtifactInvalid):
        artifact_store.pointer("kv")
    assert artifact_store.prune("kv", keep=1, now_ms=FAR) == 0
    assert publish(artifact_store, manifest_of(5)).seq == 5


@pytest.mark.parametrize("url", ["nothing", "zz://bucket/x", "http:"])
def test_url_of_no_object_store_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the URL"):
        open_remote(url, tmp_path)


def test_urls_of_object_stores_are_accepted(tmp_path: Path) -> None:
    for url in ("memory://", "s3://bucket/prefix", "gs://bucket/prefix"):
        assert isinstance(open_remote(url, tmp_path), ObjectArtifactStore)
