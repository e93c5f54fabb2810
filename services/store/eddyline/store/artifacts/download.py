"""Download of an artifact as a verified dump: files are hashed while they are copied, then read back in order.

    manifest, compared with the pointer's hash      before any file is read
    each file's size and BLAKE3                     while it is copied to this store's disk
    every block's checksum, the order of keys, each entry's form and seq, the number of entries     while it is read

I1: the copy is read, so the data cannot change between check and use. I2: a file that the manifest does not name is never
read, and its presence is a refusal.
Threading: any one thread; blocking.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from eddyline.core.errors import ArtifactInvalid, DataCorrupt, MalformedColumns
from eddyline.core.runtime.fs import write_all
from eddyline.store.artifacts.manifest import (
    DATA_NAME,
    MANIFEST_NAME,
    decode_named_manifest,
    hash_of,
    invalid,
    is_artifact_name,
)
from eddyline.store.artifacts.store import not_found
from eddyline.store.fold.dump import check_dump
from eddyline.store.fold.entries import entries_to_batch
from eddyline.store.fold.rocksdb_sst import read_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.manifest import ArtifactFile, ArtifactManifest
    from eddyline.store.artifacts.store import ArtifactStore
    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.fold.fold import FoldTables


class ArtifactDownload:
    """An artifact with a valid manifest."""

    def __init__(self, artifact_store: ArtifactStore, topic: str, name: str) -> None:
        """Find the artifact of this name; "" = the latest.

        Raises:
            ArtifactNotFound, ArtifactInvalid, ArtifactsUnreachable.
        """
        self._artifact_store = artifact_store
        self._topic = topic
        expected = ""
        if not name:
            pointer = artifact_store.pointer(topic)
            if pointer is None:
                raise not_found(topic)
            name, expected = pointer.name, pointer.manifest
        elif not is_artifact_name(name):
            raise not_found(topic, name[:64])
        encoded = artifact_store.manifest(topic, name)
        if expected and hash_of(encoded) != expected:
            raise invalid(name, "the hash of its manifest differs from the pointer")
        self.name = name
        self.is_latest = bool(expected) or _latest(artifact_store, topic) == name
        self.manifest: ArtifactManifest = decode_named_manifest(name, encoded)
        if self.manifest.topic != topic:
            raise invalid(name, f"it is of topic {self.manifest.topic}, not of {topic}")

    def fetch(self, fs: Fs, directory: Path, job: ArtifactJob) -> list[Path]:
        """Copy all files into an existing directory, with checks; return their paths.

        Raises:
            ArtifactInvalid, ArtifactsUnreachable. OSError: of this store's own disk.
        """
        declared = {MANIFEST_NAME, *(file.path for file in self.manifest.files)}
        if undeclared := sorted(set(self._artifact_store.files(self._topic, self.name)) - declared):
            raise invalid(self.name, f"{undeclared[0]} is not in its manifest")
        done, total = 0, self.manifest.file_bytes
        paths: list[Path] = []
        for file in self.manifest.files:
            path = directory / file.path.removeprefix(f"{DATA_NAME}/")
            self._copy(fs, file, path, partial(_report_fetched, job, done, total))
            done += file.size
            paths.append(path)
        return paths

    def _copy(self, fs: Fs, file: ArtifactFile, path: Path, report: Callable[[int], None]) -> None:
        digest, size = blake3(), 0
        target = fs.open(path, create=True)
        try:
            for chunk in self._artifact_store.chunks(self._topic, self.name, file.path):
                if size + len(chunk) > file.size:
                    raise invalid(self.name, f"{file.path} has more than {file.size} bytes")
                write_all(target, [chunk], size)
                digest.update(chunk)
                size += len(chunk)
                report(size)
        finally:
            target.close()
        if size != file.size:
            raise invalid(self.name, f"{file.path} has {size} bytes, not {file.size}")
        if digest.hexdigest() != file.blake3:
            raise invalid(self.name, f"{file.path} fails its checksum")

    def batches(self, paths: Sequence[Path], scratch: Path, job: ArtifactJob) -> Iterator[Batch]:
        """Yield the entries of fetched files in order of keys, with checks; check their number at the end.

        Raises:
            ArtifactInvalid. FoldFailed: of this store's own disk.
        """
        manifest, count, last_key = self.manifest, 0, None
        try:
            for entries in read_tables(paths, scratch):
                if not entries.keys[0]:
                    raise invalid(self.name, "an entry has no key")
                batch = entries_to_batch(entries.keys, entries.values)
                last_key = check_dump(0, batch, last_key, manifest.seq)
                count += batch.count
                job.report("load", count, manifest.entry_count)
                yield batch
        except (DataCorrupt, MalformedColumns) as error:
            raise invalid(self.name, error.message) from error
        if count != manifest.entry_count:
            raise invalid(self.name, f"it has {count} entries, not {manifest.entry_count}")


def _report_fetched(job: ArtifactJob, done: int, total: int, size: int) -> None:
    job.report("fetch", done + size, total)


def _latest(artifact_store: ArtifactStore, topic: str) -> str:
    """Return the name of the latest artifact; "" if the pointer is missing or damaged."""
    try:
        pointer = artifact_store.pointer(topic)
    except ArtifactInvalid:
        return ""
    return pointer.name if pointer is not None else ""


class StagedArtifact(NamedTuple):
    """A complete, verified artifact. `base_path` is the final path of the base's file, now a temporary; None = no
    entries."""

    name: str
    is_latest: bool
    manifest: ArtifactManifest
    tables: FoldTables
    base: BaseEntry
    base_path: Path | None
    next_generation: int
