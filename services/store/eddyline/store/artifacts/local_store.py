"""Artifacts in a directory of a local disk, or of a mounted one.

    <root>/<topic key>/.lock      held while an artifact of this topic is written
                      .draft/     the next artifact, until it is renamed to its name
                      .gone/      one that is being removed
                      latest.tmp  the next pointer, until it is renamed

I1: a file is durable before the manifest that names it is written, the manifest before the artifact has its name, and that
before the pointer. So a crash leaves a complete artifact, or names that begin with a dot; the next export removes those
with all their content, including directories of the export's own tools.
Threading: as `store.py` says.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import ArtifactInvalid, ArtifactsUnreachable, TooManyScans
from eddyline.core.runtime.fs import Locked, remove_tree, write_all
from eddyline.store.artifacts.manifest import (
    DATA_NAME,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    POINTER_NAME,
    artifact_name,
    decode_named_manifest,
    decode_pointer,
    encode_pointer,
    invalid,
    is_artifact_name,
    is_older,
    pointer_to,
    topic_dir_name,
)
from eddyline.store.artifacts.store import CHUNK_BYTES, GRACE_MS, not_found, prunable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.manifest import ArtifactManifest, Pointer

_LOCK: Final = ".lock"
_DRAFT: Final = ".draft"
_GONE: Final = ".gone"
_RETRY_AFTER_MS: Final = 60_000


class LocalArtifactStore:
    """`eddyline.store.artifacts.store.ArtifactStore` below one directory, whose parent exists."""

    def __init__(self, fs: Fs, root: Path, *, holder: str) -> None:
        self._fs = fs
        self._root = root
        self._holder = holder

    @contextmanager
    def draft(self, topic: str) -> Iterator[Path]:
        directory = self._directory(topic)
        with _translated_errors():
            for path in (self._root, directory):
                if not self._fs.exists(path):
                    self._fs.mkdir(path)
                    self._fs.fsync_dir(path.parent)
        try:
            with _translated_errors():
                lock = self._fs.lock(directory / _LOCK, self._holder.encode())
        except Locked as error:
            raise TooManyScans(
                f"an artifact of topic {topic} is being written by {error.holder}; one at a time",
                scansMax=1,
                retryAfterMs=_RETRY_AFTER_MS,
            ) from error
        draft = directory / _DRAFT
        try:
            with _translated_errors():
                remove_tree(self._fs, directory / _GONE)
                remove_tree(self._fs, draft)
                self._fs.mkdir(draft)
                self._fs.mkdir(draft / DATA_NAME)
            try:
                yield draft
            finally:
                with _translated_errors():
                    remove_tree(self._fs, draft)
        finally:
            lock.release()

    def publish(self, topic: str, draft: Path, manifest: ArtifactManifest, encoded: bytes, job: ArtifactJob) -> Pointer:
        directory = self._directory(topic)
        target = directory / artifact_name(manifest, encoded)
        with _translated_errors():
            if not self._fs.exists(target):
                self._write(draft / MANIFEST_NAME, encoded)
                self._fs.fsync_dir(draft / DATA_NAME)
                self._fs.fsync_dir(draft)
                self._fs.rename(draft, target)
                self._fs.fsync_dir(directory)
        try:
            current = self.pointer(topic)
        except ArtifactInvalid:
            current = None  # a damaged pointer does not protect the artifact it named
        if current is not None and is_older(manifest, current):
            return current
        pointer = pointer_to(manifest, encoded)
        temporary = directory / f"{POINTER_NAME}.tmp"
        with _translated_errors():
            self._write(temporary, encode_pointer(pointer))
            self._fs.rename(temporary, directory / POINTER_NAME)
            self._fs.fsync_dir(directory)
        return pointer

    def pointer(self, topic: str) -> Pointer | None:
        path = self._directory(topic) / POINTER_NAME
        with _translated_errors():
            if not self._fs.exists(path):
                return None
            return decode_pointer(self._read(path), topic)

    def names(self, topic: str) -> list[str]:
        directory = self._directory(topic)
        with _translated_errors():
            files = self._fs.listdir(directory) if self._fs.exists(directory) else []
        return [name for name in files if is_artifact_name(name)]

    def files(self, topic: str, name: str) -> list[str]:
        artifact = self._directory(topic) / name
        data = artifact / DATA_NAME
        with _translated_errors():
            files = [MANIFEST_NAME, *(f"{DATA_NAME}/{file}" for file in self._fs.listdir(data))]
            files += set(self._fs.listdir(artifact)) - {MANIFEST_NAME, DATA_NAME}
            for path in (artifact, data, *(artifact / file for file in files)):
                if path.is_symlink():
                    raise invalid(name, f"{path.name} is a link")
        return files

    def manifest(self, topic: str, name: str) -> bytes:
        artifact = self._directory(topic) / name
        with _translated_errors():
            if not self._fs.exists(artifact / MANIFEST_NAME):
                raise not_found(topic, name)
            return self._read(artifact / MANIFEST_NAME)

    def chunks(self, topic: str, name: str, path: str) -> Iterator[bytes]:
        with _translated_errors():
            try:
                file = self._fs.open(self._directory(topic) / name / path)
            except FileNotFoundError as error:
                raise invalid(name, f"{path} is missing") from error
            try:
                offset = 0
                while chunk := file.pread(CHUNK_BYTES, offset):
                    yield chunk
                    offset += len(chunk)
            finally:
                file.close()

    def prune(self, topic: str, *, keep: int, now_ms: int) -> int:
        directory = self._directory(topic)
        try:
            pointer = self.pointer(topic)
        except ArtifactInvalid:
            return 0
        if pointer is None:
            return 0
        count = 0
        for name in prunable(self.names(topic), pointer, keep):
            try:
                created_ms = decode_named_manifest(name, self.manifest(topic, name)).created_ms
            except ArtifactInvalid:
                continue  # keep it for the operator
            if now_ms - created_ms < GRACE_MS:
                continue
            with _translated_errors():
                self._fs.rename(directory / name, directory / _GONE)
                self._fs.fsync_dir(directory)
                remove_tree(self._fs, directory / _GONE)
            count += 1
        return count

    def _directory(self, topic: str) -> Path:
        return self._root / topic_dir_name(topic)

    def _read(self, path: Path) -> bytes:
        file = self._fs.open(path)
        try:
            if file.size() > MANIFEST_BYTES_MAX:
                raise invalid(path.parent.name, f"{path.name} has more than {MANIFEST_BYTES_MAX} bytes")
            return file.pread(MANIFEST_BYTES_MAX, 0)
        finally:
            file.close()

    def _write(self, path: Path, encoded: bytes) -> None:
        file = self._fs.open(path, create=True)
        try:
            file.truncate(0)
            write_all(file, [encoded], 0)
            file.fsync()
        finally:
            file.close()


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate disk errors to the contract's errors."""
    try:
        yield
    except OSError as error:
        raise ArtifactsUnreachable(f"artifacts: {error}", cause=type(error).__name__) from error
