"""Where artifacts are kept: the same layout in a directory and in an object store. FORMAT.md shows it.

    <topic key>/<artifact name>/MANIFEST.json, data/000000.sst, …      never changed once it is there
    <topic key>/latest                                                 the pointer, replaced as a whole

Two implementations, held to one conformance suite: `local.py` and `remote.py`.
I1: an artifact whose manifest is there is whole. I2: the pointer names an artifact that is there, and never goes back to an
older one (`manifest.is_older`), whoever exports at the same time.
Threading: any one thread at a time; blocking.
Failure: `ArtifactsUnreachable` is of a disk or a network, and nothing that was there before is harmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eddyline.core.errors import ArtifactNotFound, ArtifactsNotConfigured
from eddyline.store.artifacts.manifest import Pointer, is_artifact_name, seq_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from eddyline.store.artifacts.job import Job
    from eddyline.store.artifacts.manifest import Manifest

CHUNK_BYTES: Final = 1 << 20
"""What is read of an artifact at a time."""
GRACE_MS: Final = 3_600_000
"""An artifact is removed an hour after it was made at the earliest: whoever began to read it, or to write it, is done."""


class ArtifactStore(Protocol):
    """Artifacts by their topics' names; see the module's invariants."""

    def draft(self, topic: str) -> AbstractContextManager[Path]:
        """An empty directory on a local disk for the next artifact; what is left of it at the end is removed.

        Raises:
            TooManyScans: somebody else is about to write one of this topic. ArtifactsUnreachable.
        """

    def publish(self, topic: str, draft: Path, manifest: Manifest, encoded: bytes, job: Job) -> Pointer:
        """Keep the artifact whose files `draft` holds, then point to it unless a newer one is the latest: the pointer as it
        is at the end.

        Raises:
            ArtifactsNotConfigured: the pointer cannot be replaced safely here. ArtifactsUnreachable. Stopped.
        """

    def pointer(self, topic: str) -> Pointer | None:
        """The pointer to the latest; None = there is none.

        Raises:
            ArtifactInvalid, ArtifactsUnreachable.
        """

    def names(self, topic: str) -> list[str]:
        """Names of all artifacts of a topic, in no order; of some there may be no manifest.

        Raises:
            ArtifactsUnreachable.
        """

    def files(self, topic: str, name: str) -> list[str]:
        """Paths of all files that lie in an artifact, relative to it.

        Raises:
            ArtifactInvalid: something that is no file lies there. ArtifactsUnreachable.
        """

    def manifest(self, topic: str, name: str) -> bytes:
        """An artifact's manifest, unchecked.

        Raises:
            ArtifactNotFound, ArtifactInvalid (too large), ArtifactsUnreachable.
        """

    def chunks(self, topic: str, name: str, path: str) -> Iterator[bytes]:
        """A file's bytes, unchecked.

        Raises:
            ArtifactInvalid: it is not there. ArtifactsUnreachable.
        """

    def prune(self, topic: str, *, keep: int, now_ms: int) -> int:
        """Remove artifacts that are older than the pointer's, but the `keep` newest and those made within `GRACE_MS`; how
        many. Without a readable pointer none is removed.

        Raises:
            ArtifactsUnreachable.
        """


class ArtifactSettings(NamedTuple):
    """Where a store's artifacts go, and where it has room for one on its way: `staging` is on the fold's disk, and the
    store's alone. No shelf = nobody configured one."""

    shelf: ArtifactStore | None
    staging: Path
    keep: int = 3


def shelf_of(place: ArtifactSettings | None) -> ArtifactStore:
    """The shelf.

    Raises:
        ArtifactsNotConfigured.
    """
    if place is None or place.shelf is None:
        raise ArtifactsNotConfigured(
            "this store has no place for artifacts: set EDDYLINE_STORE_ARTIFACTS to a directory or to the URL of an object "
            "store, and restart"
        )
    return place.shelf


def prunable(names: Sequence[str], pointer: Pointer, keep: int) -> list[str]:
    """Artifacts that may go as far as their names tell: of lower seqs than the pointer's, but the newest `keep` of all."""
    ours = sorted(filter(is_artifact_name, names), reverse=True)
    kept = {pointer.name, *ours[:keep]}
    return [name for name in ours if name not in kept and seq_of(name) < pointer.seq]


def not_found(topic: str, name: str = "") -> ArtifactNotFound:
    """The error about an artifact that is not there."""
    which = f"no artifact {name}" if name else "no artifact"
    return ArtifactNotFound(f"there is {which} of topic {topic}", topic=topic, artifact=name)
