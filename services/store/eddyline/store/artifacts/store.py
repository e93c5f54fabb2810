"""Artifact store interface: the same layout in a directory and in an object store. FORMAT.md has it.

    <topic key>/<artifact name>/MANIFEST.json, data/000000.sst, …      never changed once it exists
    <topic key>/latest                                                 the pointer, replaced as a whole

Two implementations, held to one conformance suite: `local_store.py` and `object_store.py`.
I1: an artifact that has a manifest is complete. I2: the pointer names an existing artifact, and never goes back to an
older one (`manifest.is_older`), even with concurrent exports.
Threading: any one thread at a time; blocking.
Failure: `ArtifactsUnreachable` is an error of a disk or a network, and leaves earlier artifacts unharmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eddyline.core.errors import ArtifactNotFound, ArtifactsNotConfigured
from eddyline.store.artifacts.manifest import Pointer, is_artifact_name, seq_in_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from eddyline.store.artifacts.job import ArtifactJob
    from eddyline.store.artifacts.manifest import ArtifactManifest

CHUNK_BYTES: Final = 1 << 20
"""Bytes read at a time."""
GRACE_MS: Final = 3_600_000
"""An artifact is kept for at least an hour after its creation, so that running reads and writes of it can end."""


class ArtifactStore(Protocol):
    """Artifacts by topic name; see the module's invariants."""

    def draft(self, topic: str) -> AbstractContextManager[Path]:
        """Create an empty directory on a local disk for the next artifact; its remains are removed at the end.

        Raises:
            TooManyScans: another process is writing one of this topic. ArtifactsUnreachable.
        """

    def publish(self, topic: str, draft: Path, manifest: ArtifactManifest, encoded: bytes, job: ArtifactJob) -> Pointer:
        """Store the artifact whose files are in `draft`, then point to it unless a newer one is the latest; return the
        final pointer.

        Raises:
            ArtifactsNotConfigured: the pointer cannot be replaced safely here. ArtifactsUnreachable. Stopped.
        """

    def pointer(self, topic: str) -> Pointer | None:
        """Return the pointer to the latest artifact; None if there is none.

        Raises:
            ArtifactInvalid, ArtifactsUnreachable.
        """

    def names(self, topic: str) -> list[str]:
        """Return the names of all artifacts of a topic, unordered; some may have no manifest.

        Raises:
            ArtifactsUnreachable.
        """

    def files(self, topic: str, name: str) -> list[str]:
        """Return the relative paths of all files in an artifact.

        Raises:
            ArtifactInvalid: it contains something that is no file. ArtifactsUnreachable.
        """

    def manifest(self, topic: str, name: str) -> bytes:
        """Return an artifact's manifest, unchecked.

        Raises:
            ArtifactNotFound, ArtifactInvalid (too large), ArtifactsUnreachable.
        """

    def chunks(self, topic: str, name: str, path: str) -> Iterator[bytes]:
        """Yield a file's bytes, unchecked.

        Raises:
            ArtifactInvalid: it does not exist. ArtifactsUnreachable.
        """

    def prune(self, topic: str, *, keep: int, now_ms: int) -> int:
        """Remove artifacts older than the pointer's, except the `keep` newest and those created within `GRACE_MS`; return
        their number. Without a readable pointer none is removed.

        Raises:
            ArtifactsUnreachable.
        """


class ArtifactSettings(NamedTuple):
    """A store's artifact store, None if not configured, and its staging directory, which is on the fold's disk and used
    by this store alone."""

    artifact_store: ArtifactStore | None
    staging: Path
    keep: int = 3


def require_artifact_store(settings: ArtifactSettings | None) -> ArtifactStore:
    """Return the configured artifact store.

    Raises:
        ArtifactsNotConfigured.
    """
    if settings is None or settings.artifact_store is None:
        raise ArtifactsNotConfigured(
            "this store has no location for artifacts: set EDDYLINE_STORE_ARTIFACTS to a directory or to the URL of an "
            "object store, and restart"
        )
    return settings.artifact_store


def prunable(names: Sequence[str], pointer: Pointer, keep: int) -> list[str]:
    """Return the artifacts that may be removed by their names: of lower seqs than the pointer's, except the newest
    `keep` of all."""
    ours = sorted(filter(is_artifact_name, names), reverse=True)
    kept = {pointer.name, *ours[:keep]}
    return [name for name in ours if name not in kept and seq_in_name(name) < pointer.seq]


def not_found(topic: str, name: str = "") -> ArtifactNotFound:
    """Return the error about a missing artifact."""
    which = f"no artifact {name}" if name else "no artifact"
    return ArtifactNotFound(f"topic {topic} has {which}", topic=topic, artifact=name)
