"""Artifacts of folds to and from protobuf. Only the `rpc`, link and client modules import this."""

from __future__ import annotations

from eddyline.core.codec.state import fold_state_from_pb, fold_state_to_pb
from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
from eddyline.v1 import fold_pb2


def artifact_to_pb(artifact: Artifact) -> fold_pb2.Artifact:
    """An artifact."""
    return fold_pb2.Artifact(
        name=artifact.name,
        topic=artifact.topic,
        epoch=artifact.epoch,
        fold_seq=artifact.fold_seq,
        entry_count=artifact.entry_count,
        file_bytes=artifact.file_bytes,
        created_ms=artifact.created_ms,
        store_id=artifact.store_id,
        source=artifact.source,
        source_position=artifact.source_position,
        is_latest=artifact.is_latest,
    )


def artifact_from_pb(artifact: fold_pb2.Artifact) -> Artifact:
    """An artifact."""
    return Artifact(
        name=artifact.name,
        topic=artifact.topic,
        epoch=artifact.epoch,
        fold_seq=artifact.fold_seq,
        entry_count=artifact.entry_count,
        file_bytes=artifact.file_bytes,
        created_ms=artifact.created_ms,
        store_id=artifact.store_id,
        source=artifact.source,
        source_position=artifact.source_position,
        is_latest=artifact.is_latest,
    )


def export_step_to_pb(step: ArtifactProgress | FoldExported) -> fold_pb2.ExportFoldResponse:
    """How far an export is, or what it wrote."""
    if isinstance(step, ArtifactProgress):
        return fold_pb2.ExportFoldResponse(progress=_progress_to_pb(step))
    result = fold_pb2.FoldExport(artifact=artifact_to_pb(step.artifact), superseded=step.superseded, latest=step.latest)
    return fold_pb2.ExportFoldResponse(result=result)


def export_step_from_pb(answer: fold_pb2.ExportFoldResponse) -> ArtifactProgress | FoldExported | None:
    """How far an export is, or what it wrote; None = a step that this version does not know."""
    match answer.WhichOneof("step"):
        case "progress":
            return _progress_from_pb(answer.progress)
        case "result":
            result = answer.result
            return FoldExported(artifact_from_pb(result.artifact), result.superseded, result.latest)
        case _:
            return None


def import_step_to_pb(step: ArtifactProgress | FoldImported) -> fold_pb2.ImportFoldResponse:
    """How far an import is, or what it became."""
    if isinstance(step, ArtifactProgress):
        return fold_pb2.ImportFoldResponse(progress=_progress_to_pb(step))
    result = fold_pb2.FoldImport(
        artifact=artifact_to_pb(step.artifact), position_set=step.position_set, state=fold_state_to_pb(step.state)
    )
    return fold_pb2.ImportFoldResponse(result=result)


def import_step_from_pb(answer: fold_pb2.ImportFoldResponse) -> ArtifactProgress | FoldImported | None:
    """How far an import is, or what it became; None = a step that this version does not know."""
    match answer.WhichOneof("step"):
        case "progress":
            return _progress_from_pb(answer.progress)
        case "result":
            result = answer.result
            return FoldImported(
                artifact_from_pb(result.artifact), result.position_set, fold_state_from_pb(result.state)
            )
        case _:
            return None


def _progress_to_pb(progress: ArtifactProgress) -> fold_pb2.ArtifactProgress:
    return fold_pb2.ArtifactProgress(
        stage=progress.stage, done_count=progress.done_count, total_count=progress.total_count
    )


def _progress_from_pb(progress: fold_pb2.ArtifactProgress) -> ArtifactProgress:
    return ArtifactProgress(progress.stage, progress.done_count, progress.total_count)
