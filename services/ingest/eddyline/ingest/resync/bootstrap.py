"""Bootstrap of a source without a position from the newest artifact of its topic, where the store has one.

The source then follows NATS from the artifact's position. An artifact of another stream, or of one that was rolled back
since, is skipped: the source reads NATS's messages from the first one on, as without an artifact. An artifact whose store
does not answer is skipped too: it only saves time.
Threading: event loop.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import (
    ArtifactInvalid,
    ArtifactMismatch,
    ArtifactNotFound,
    ArtifactsNotConfigured,
    ArtifactsUnreachable,
    EddylineError,
    InvalidArgument,
    TopicNotEmpty,
)
from eddyline.core.model.artifact import ArtifactProgress
from eddyline.core.runtime.logging import fields
from eddyline.ingest.copy.position import decode_position
from eddyline.ingest.copy.stopped import SourceStopped
from eddyline.ingest.resync.resume_check import check_resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.artifact import Artifact
    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.jetstream import JetStream

log = logging.getLogger(__name__)

_LEFT_ALONE: Final = (
    ArtifactInvalid,
    ArtifactMismatch,
    ArtifactNotFound,
    ArtifactsUnreachable,
    InvalidArgument,
    SourceStopped,
    TopicNotEmpty,
)


async def bootstrap(
    link: StoreLink, jetstream: JetStream, definition: SourceDefinition, *, tell: Callable[[str], None]
) -> str:
    """Import the newest artifact of the source's topic, which has no record, and return a description; "" = no import.

    `tell` is called with progress texts. The position is then the artifact's; the caller reads it from the store.

    Raises:
        BucketNotFound, NatsUnreachable, and what the store's calls raise: nothing was imported.
    """
    if not definition.bucket:
        return ""
    try:
        latest = next((one for one in await link.list_artifacts(definition.topic) if one.is_latest), None)
        if latest is None or not latest.source_position:
            return ""
        await check_resume(jetstream, definition, decode_position(latest.source_position))
        await _import(link, definition, latest, tell)
    except ArtifactsNotConfigured:
        return ""
    except _LEFT_ALONE as error:
        reason = error.message if isinstance(error, EddylineError) else str(error)
        log.warning("artifact left alone", extra=fields(source=definition.name, reason=reason))
        return ""
    return f"began with artifact {latest.name}, {latest.entry_count} keys"


async def _import(
    link: StoreLink, definition: SourceDefinition, artifact: Artifact, tell: Callable[[str], None]
) -> None:
    async with aclosing(link.import_fold(definition.topic, artifact=artifact.name)) as steps:
        async for step in steps:
            if isinstance(step, ArtifactProgress):
                total = f" of {step.total_count}" if step.total_count else ""
                tell(f"artifact {artifact.name}: {step.stage} {step.done_count}{total}")
    tell("")
