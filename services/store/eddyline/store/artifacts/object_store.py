"""Artifacts in an object store (S3, GCS, Azure), by conditional puts.

Payload objects come first, then the manifest, then the pointer, by a put on the condition that it was not replaced since
it was read. An interrupted upload has no manifest, and pruning removes it.
I1: a store without conditional puts is refused before anything is written: in such a store the pointer could go back.
Threading: as `store.py` says; obstore releases the GIL while it waits.
Not promised: that credentials are valid before the first call; they are those of obstore's environment.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import MemoryStore, from_url

from eddyline.core.errors import ArtifactInvalid, ArtifactsNotConfigured, ArtifactsUnreachable
from eddyline.store.artifacts.manifest import (
    DATA_NAME,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    POINTER_NAME,
    artifact_name,
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

    from obstore.store import ObjectStore

    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.manifest import ArtifactManifest, Pointer

PART_BYTES: Final = 8 << 20
PARTS_AT_ONCE: Final = 2
"""Memory of an upload: 16 MiB. More parts would fill a faster line than one store's dump does."""
TRIES_MAX: Final = 8
"""Exporters that replace the pointer between our read and our put, one after the other. A ninth means that one of them
loops."""
CALL_S_MAX: Final = 30
RETRY_S_MAX: Final = 60
"""Timeouts of one call, and of all its retries: a region that is away for longer is reported to the caller."""
_PROBE: Final = ".conditional-put"


class ObjectArtifactStore:
    """`eddyline.store.artifacts.store.ArtifactStore` in an object store; `scratch` is a local directory of its own."""

    def __init__(self, store: ObjectStore, scratch: Path) -> None:
        self._store = store
        self._scratch = scratch
        self._is_checked = False

    @contextmanager
    def draft(self, topic: str) -> Iterator[Path]:
        self._check_conditional()
        shutil.rmtree(self._scratch, ignore_errors=True)
        try:
            (self._scratch / DATA_NAME).mkdir(parents=True, mode=0o700)
            yield self._scratch
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def publish(self, topic: str, draft: Path, manifest: ArtifactManifest, encoded: bytes, job: ArtifactJob) -> Pointer:
        prefix = f"{topic_dir_name(topic)}/{artifact_name(manifest, encoded)}"
        done = 0
        with _translated_errors():
            for file in manifest.files:
                job.report("upload", done, manifest.file_bytes)
                obstore.put(
                    self._store,
                    f"{prefix}/{file.path}",
                    draft / file.path,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )
                done += file.size
            job.report("upload", done, manifest.file_bytes)
            obstore.put(self._store, f"{prefix}/{MANIFEST_NAME}", encoded)
        return self._point(topic, manifest, encoded)

    def _point(self, topic: str, manifest: ArtifactManifest, encoded: bytes) -> Pointer:
        path, pointer = f"{topic_dir_name(topic)}/{POINTER_NAME}", pointer_to(manifest, encoded)
        for _ in range(TRIES_MAX):
            stored = self._get(path)
            if stored is not None:
                try:
                    current = decode_pointer(stored[0], topic)
                except ArtifactInvalid:
                    current = None  # a damaged pointer does not protect the artifact it named
                if current is not None and is_older(manifest, current):
                    return current
            with _translated_errors():
                try:
                    if stored is None:
                        obstore.put(self._store, path, encode_pointer(pointer), mode="create")
                    else:
                        obstore.put(self._store, path, encode_pointer(pointer), mode={"e_tag": stored[1]})
                except (AlreadyExistsError, PreconditionError):
                    continue
            return pointer
        raise ArtifactsUnreachable(
            f"the pointer of topic {topic} was replaced by other writers {TRIES_MAX} times", cause="PreconditionError"
        )

    def pointer(self, topic: str) -> Pointer | None:
        stored = self._get(f"{topic_dir_name(topic)}/{POINTER_NAME}")
        return None if stored is None else decode_pointer(stored[0], topic)

    def names(self, topic: str) -> list[str]:
        with _translated_errors():
            stored = obstore.list_with_delimiter(self._store, topic_dir_name(topic))
        names = [prefix.rstrip("/").rpartition("/")[2] for prefix in stored["common_prefixes"]]
        return [name for name in names if is_artifact_name(name)]

    def files(self, topic: str, name: str) -> list[str]:
        prefix = f"{topic_dir_name(topic)}/{name}/"
        return [path.removeprefix(prefix) for path in self._objects(prefix)]

    def manifest(self, topic: str, name: str) -> bytes:
        stored = self._get(f"{topic_dir_name(topic)}/{name}/{MANIFEST_NAME}")
        if stored is None:
            raise not_found(topic, name)
        return stored[0]

    def chunks(self, topic: str, name: str, path: str) -> Iterator[bytes]:
        with _translated_errors():
            try:
                stored = obstore.get(self._store, f"{topic_dir_name(topic)}/{name}/{path}")
            except FileNotFoundError as error:
                raise invalid(name, f"{path} is missing") from error
            for chunk in stored.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def prune(self, topic: str, *, keep: int, now_ms: int) -> int:
        try:
            pointer = self.pointer(topic)
        except ArtifactInvalid:
            return 0
        if pointer is None:
            return 0
        count = 0
        for name in prunable(self.names(topic), pointer, keep):
            prefix = f"{topic_dir_name(topic)}/{name}/"
            objects = self._objects(prefix)
            if not objects or now_ms - max(objects.values()) < GRACE_MS:
                continue
            # The manifest goes first: an interrupted removal leaves no artifact.
            paths = sorted(objects, key=lambda path: not path.endswith(MANIFEST_NAME))
            with _translated_errors():
                for path in paths:
                    obstore.delete(self._store, path)
            count += 1
        return count

    def _objects(self, prefix: str) -> dict[str, int]:
        """Return paths below a prefix, with the times of their last change in ms."""
        with _translated_errors():
            return {
                str(stored["path"]): round(stored["last_modified"].timestamp() * 1000)
                for page in obstore.list(self._store, prefix)
                for stored in page
            }

    def _get(self, path: str) -> tuple[bytes, str | None] | None:
        """Return a small object and its etag; None if it does not exist."""
        with _translated_errors():
            try:
                stored = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            if stored.meta["size"] > MANIFEST_BYTES_MAX:
                raise invalid(path, f"it has more than {MANIFEST_BYTES_MAX} bytes")
            return bytes(stored.bytes()), stored.meta["e_tag"]

    def _check_conditional(self) -> None:
        """Raise ArtifactsNotConfigured if the store ignores the condition of a put."""
        if self._is_checked:
            return
        with _translated_errors():
            first = obstore.put(self._store, _PROBE, b"1")
            try:
                obstore.put(self._store, _PROBE, b"2", mode={"e_tag": first["e_tag"]})
                obstore.put(self._store, _PROBE, b"3", mode={"e_tag": first["e_tag"]})
            except PreconditionError:
                self._is_checked = True
        if not self._is_checked:
            raise no_conditional_put()


def open_remote(url: str, scratch: Path) -> ObjectArtifactStore:
    """Open the object store of a URL, with credentials from the environment, without a call.

    Raises:
        ValueError: it is no URL of an object store.
    """
    if url.startswith("memory:"):
        return ObjectArtifactStore(MemoryStore(), scratch)
    try:
        store = from_url(
            url,
            client_options={"timeout": timedelta(seconds=CALL_S_MAX)},
            retry_config={"retry_timeout": timedelta(seconds=RETRY_S_MAX)},
        )
    except (BaseError, ValueError, TypeError) as error:
        raise ValueError(f"{url} is not the URL of an object store: {str(error).splitlines()[0]}") from error
    return ObjectArtifactStore(store, scratch)


def no_conditional_put() -> ArtifactsNotConfigured:
    """Return the refusal of a store in which the pointer could go back."""
    return ArtifactsNotConfigured(
        "the object store has no conditional put, so the pointer to the latest artifact could move back: use another "
        "object store, or a directory"
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate obstore's errors to the contract's errors."""
    try:
        yield
    except (NotImplementedError, NotSupportedError) as error:
        raise no_conditional_put() from error
    except (AlreadyExistsError, PreconditionError):
        raise
    except (BaseError, OSError) as error:
        cause = type(error).__name__
        raise ArtifactsUnreachable(f"artifacts: {cause}: {str(error).splitlines()[0]}", cause=cause) from error
