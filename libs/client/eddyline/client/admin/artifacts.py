"""Folds out of a store and into one, as artifacts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once, domain_errors, kv_topic_wanted
from eddyline.client.transport.items import read_once
from eddyline.core.codec.calls import artifact_from_pb, export_step_from_pb, import_step_from_pb
from eddyline.v1 import fold_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub

ARTIFACT_TIMEOUT_S: Final = 86_400.0
"""A dump of 1e9 entries and its way to an object store take hours, never a day. The caller gets progress each
second."""


@read_once("export_fold")
async def export_fold(
    stub: FoldServiceStub, topic: str, *, if_epoch: int
) -> AsyncGenerator[ArtifactProgress | FoldExported, None]:
    """Yield how far an export is, then what it wrote. A caller that stops early closes it; the export then leaves
    nothing.

    Raises:
        EddylineError: TopicNotFound, NotKv, EpochMismatch, InvalidArgument, FoldLost, ArtifactsNotConfigured,
            ArtifactsUnreachable, TooManyScans, DataCorrupt, and a store that went away.
    """
    request = fold_pb2.ExportFoldRequest(topic=topic, if_epoch=if_epoch)
    call = stub.ExportFold(request, timeout=ARTIFACT_TIMEOUT_S)
    try:
        with kv_topic_wanted(), domain_errors():
            async for answer in call:
                step = export_step_from_pb(answer)
                if step is not None:
                    yield step
    finally:
        call.cancel()


@read_once("import_fold")
async def import_fold(
    stub: FoldServiceStub, topic: str, *, from_topic: str, artifact: str, if_epoch: int
) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
    """Yield how far an import is, then what it became. A caller that stops early closes it; the topic's head then shows
    the outcome.

    Raises:
        EddylineError: TopicNotFound, NotKv, EpochMismatch, TopicNotEmpty, ArtifactInvalid, ArtifactNotFound,
            ArtifactMismatch, ArtifactsNotConfigured, ArtifactsUnreachable, TooManyScans, DiskFloor, ReadOnly,
            CommitUnknown, and a store that went away.
    """
    request = fold_pb2.ImportFoldRequest(topic=topic, from_topic=from_topic, artifact=artifact, if_epoch=if_epoch)
    call = stub.ImportFold(request, timeout=ARTIFACT_TIMEOUT_S)
    try:
        with kv_topic_wanted(), domain_errors():
            async for answer in call:
                step = import_step_from_pb(answer)
                if step is not None:
                    yield step
    finally:
        call.cancel()


async def list_artifacts(stub: FoldServiceStub, topic: str) -> list[Artifact]:
    """Artifacts of a topic's name, newest first.

    Raises:
        EddylineError: InvalidName, ArtifactsNotConfigured, ArtifactsUnreachable.
    """
    request = fold_pb2.ListArtifactsRequest(topic=topic)
    answer = await call_once(stub.ListArtifacts(request, timeout=CALL_TIMEOUT_S))
    return [artifact_from_pb(artifact) for artifact in answer.artifacts]
