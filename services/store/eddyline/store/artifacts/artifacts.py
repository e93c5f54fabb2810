"""All that a store does with artifacts: export, import, list. One export or import at a time.

Threading: event loop; `clean` before anything is served, blocking.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.errors import ArtifactInvalid, ArtifactNotFound
from eddyline.core.model.artifact import ARTIFACTS_LISTED_MAX
from eddyline.store.artifacts.manifest import check_named, described
from eddyline.store.artifacts.store import shelf_of

if TYPE_CHECKING:
    from eddyline.core.model.artifact import Artifact
    from eddyline.store.artifacts.exporting import FoldExport
    from eddyline.store.artifacts.importing import FoldImport
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.runtime.workers import Worker


class Artifacts:
    """The artifacts of one store."""

    def __init__(
        self, *, exports: FoldExport, imports: FoldImport, place: ArtifactSettings | None, worker: Worker
    ) -> None:
        self.exports = exports
        self.imports = imports
        self._place = place
        self._worker = worker

    async def list(self, topic: str) -> list[Artifact]:
        """The artifacts of a topic's name, newest first, at most `ARTIFACTS_LISTED_MAX`; those that are whole.

        Raises:
            ArtifactsNotConfigured, ArtifactsUnreachable.
        """
        return await self._worker.submit(partial(_listed, shelf_of(self._place), topic))


def clean(place: ArtifactSettings) -> None:
    """Remove what an export or import that died has left of this store's own."""
    shutil.rmtree(place.staging, ignore_errors=True)


def _listed(shelf: ArtifactStore, topic: str) -> list[Artifact]:
    try:
        pointer = shelf.pointer(topic)
    except ArtifactInvalid:
        pointer = None
    latest = pointer.name if pointer is not None else ""
    found: list[Artifact] = []
    for name in sorted(shelf.names(topic), reverse=True)[:ARTIFACTS_LISTED_MAX]:
        try:
            manifest = check_named(name, shelf.manifest(topic, name))
        except (ArtifactInvalid, ArtifactNotFound):
            continue  # an import that names it is told why
        found.append(described(name, manifest, is_latest=name == latest))
    return sorted(found, key=lambda artifact: artifact.created_ms, reverse=True)
