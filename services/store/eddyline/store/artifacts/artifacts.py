"""Artifact operations of a store: export, import, list. One export or import at a time.

Threading: event loop; `clean` before the store serves, blocking.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.errors import ArtifactInvalid, ArtifactNotFound
from eddyline.core.model.artifact import ARTIFACTS_LISTED_MAX
from eddyline.store.artifacts.manifest import decode_named_manifest, to_artifact
from eddyline.store.artifacts.store import require_artifact_store

if TYPE_CHECKING:
    from eddyline.core.model.artifact import Artifact
    from eddyline.store.artifacts.exporting import FoldExport
    from eddyline.store.artifacts.importing import FoldImport
    from eddyline.store.artifacts.store import ArtifactSettings, ArtifactStore
    from eddyline.store.runtime.workers import Worker


class Artifacts:
    """The artifacts of one store."""

    def __init__(
        self, *, exports: FoldExport, imports: FoldImport, settings: ArtifactSettings | None, worker: Worker
    ) -> None:
        self.exports = exports
        self.imports = imports
        self._settings = settings
        self._worker = worker

    async def list(self, topic: str) -> list[Artifact]:
        """Return the complete artifacts of a topic's name, newest first, at most `ARTIFACTS_LISTED_MAX`.

        Raises:
            ArtifactsNotConfigured, ArtifactsUnreachable.
        """
        return await self._worker.submit(partial(_list, require_artifact_store(self._settings), topic))


def clean(settings: ArtifactSettings) -> None:
    """Remove the remains of an interrupted export or import of this store."""
    shutil.rmtree(settings.staging, ignore_errors=True)


def _list(artifact_store: ArtifactStore, topic: str) -> list[Artifact]:
    try:
        pointer = artifact_store.pointer(topic)
    except ArtifactInvalid:
        pointer = None
    latest = pointer.name if pointer is not None else ""
    artifacts: list[Artifact] = []
    for name in sorted(artifact_store.names(topic), reverse=True)[:ARTIFACTS_LISTED_MAX]:
        try:
            manifest = decode_named_manifest(name, artifact_store.manifest(topic, name))
        except (ArtifactInvalid, ArtifactNotFound):
            continue  # an import of this name reports the error
        artifacts.append(to_artifact(name, manifest, is_latest=name == latest))
    return sorted(artifacts, key=lambda artifact: artifact.created_ms, reverse=True)
