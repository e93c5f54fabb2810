"""Protobuf of deletes, erasure, look-ups by time, checks of folds and fold artifacts.

A request is checked here if one field alone is wrong; `eddyline.core.model.deletion` checks combinations of fields.
Only the `rpc`, link and client modules import this: protobuf stays at the edge.
"""

from __future__ import annotations

from eddyline.core.codec.state import fold_state_from_pb, fold_state_to_pb
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
from eddyline.core.model.deletion import DeleteResult, EraseProgress
from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
from eddyline.core.model.read import SeqFound
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.v1 import fold_pb2, log_pb2, topic_pb2


def match_to_pb(match: Match) -> log_pb2.RecordMatch:
    """Encode the match of a delete."""
    return log_pb2.RecordMatch(
        field=match.field.value,  # type: ignore[arg-type]  # the stub asks for its own enum, the class takes numbers
        kind=match.kind.value,  # type: ignore[arg-type]  # as above
        value=match.value,
    )


def match_from_pb(match: log_pb2.RecordMatch) -> Match:
    """Decode the match of a delete.

    Raises:
        InvalidArgument: the field or the kind is unset, or none of the contract's.
    """
    try:
        field = MatchField(match.field)
    except ValueError as error:
        message = f"a match must be by key or by tag, not by field {match.field}"
        raise InvalidArgument(message, field="match.field", matchField=match.field) from error
    try:
        kind = MatchKind(match.kind)
    except ValueError as error:
        message = f"a match must be EQ or PREFIX, not kind {match.kind}"
        raise InvalidArgument(message, field="match.kind", matchKind=match.kind) from error
    return Match(field, kind, match.value)


def delete_result_to_pb(result: DeleteResult) -> log_pb2.DeleteRecordsResponse:
    """Encode the result of a delete."""
    return log_pb2.DeleteRecordsResponse(
        deleted_count=result.deleted_count,
        earliest_seq=result.earliest_seq,
        head_seq=result.head_seq,
        epoch=result.epoch,
    )


def delete_result_from_pb(answer: log_pb2.DeleteRecordsResponse) -> DeleteResult:
    """Decode the result of a delete."""
    return DeleteResult(answer.deleted_count, answer.earliest_seq, answer.head_seq, answer.epoch)


def erase_progress_to_pb(progress: EraseProgress) -> topic_pb2.EraseTopicResponse:
    """Encode the progress of an erasure."""
    return topic_pb2.EraseTopicResponse(
        done_bytes=progress.done_bytes, total_bytes=progress.total_bytes, erased=progress.erased
    )


def erase_progress_from_pb(answer: topic_pb2.EraseTopicResponse) -> EraseProgress:
    """Decode the progress of an erasure."""
    return EraseProgress(answer.done_bytes, answer.total_bytes, answer.erased)


def seq_found_to_pb(result: SeqFound) -> log_pb2.FindSeqResponse:
    """Encode the answer of FindSeq."""
    return log_pb2.FindSeqResponse(
        seq=result.seq,
        found=result.found,
        head_seq=result.head_seq,
        earliest_seq=result.earliest_seq,
        epoch=result.epoch,
    )


def seq_found_from_pb(answer: log_pb2.FindSeqResponse) -> SeqFound:
    """Decode the answer of FindSeq."""
    return SeqFound(answer.seq, answer.found, answer.head_seq, answer.earliest_seq, answer.epoch)


def verify_step_to_pb(step: FoldCheckProgress | FoldVerdict) -> fold_pb2.VerifyFoldResponse:
    """Encode a step of a fold check: its progress, or its verdict."""
    if isinstance(step, FoldCheckProgress):
        progress = fold_pb2.VerifyProgress(
            replayed_seq=step.replayed_seq, target_seq=step.target_seq, compared_count=step.compared_count
        )
        return fold_pb2.VerifyFoldResponse(progress=progress)
    verdict = fold_pb2.FoldVerdict(
        fold_seq=step.fold_seq,
        base_seq=step.base_seq,
        entry_count=step.entry_count,
        differing_count=step.differing_count,
        findings=step.findings,
    )
    return fold_pb2.VerifyFoldResponse(verdict=verdict)


def verify_step_from_pb(answer: fold_pb2.VerifyFoldResponse) -> FoldCheckProgress | FoldVerdict | None:
    """Decode a step of a fold check; None = a step that this version does not know."""
    match answer.WhichOneof("step"):
        case "progress":
            progress = answer.progress
            return FoldCheckProgress(progress.replayed_seq, progress.target_seq, progress.compared_count)
        case "verdict":
            verdict = answer.verdict
            return FoldVerdict(
                verdict.fold_seq,
                verdict.base_seq,
                verdict.entry_count,
                verdict.differing_count,
                tuple(verdict.findings),
            )
        case _:
            return None


def settled_to_pb(settled: FoldSettled) -> fold_pb2.SettleFoldResponse:
    """Encode the result of SettleFold."""
    return fold_pb2.SettleFoldResponse(
        settled=settled.settled,
        base_seq=settled.base_seq,
        log_first_seq=settled.log_first_seq,
        state=fold_state_to_pb(settled.state),
    )


def settled_from_pb(answer: fold_pb2.SettleFoldResponse) -> FoldSettled:
    """Decode the result of SettleFold."""
    return FoldSettled(answer.settled, answer.base_seq, answer.log_first_seq, fold_state_from_pb(answer.state))


def artifact_to_pb(artifact: Artifact) -> fold_pb2.Artifact:
    """Encode an artifact."""
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
    """Decode an artifact."""
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
    """Encode a step of an export: its progress, or the artifact that it wrote."""
    if isinstance(step, ArtifactProgress):
        return fold_pb2.ExportFoldResponse(progress=_progress_to_pb(step))
    result = fold_pb2.FoldExport(artifact=artifact_to_pb(step.artifact), superseded=step.superseded, latest=step.latest)
    return fold_pb2.ExportFoldResponse(result=result)


def export_step_from_pb(answer: fold_pb2.ExportFoldResponse) -> ArtifactProgress | FoldExported | None:
    """Decode a step of an export; None = a step that this version does not know."""
    match answer.WhichOneof("step"):
        case "progress":
            return _progress_from_pb(answer.progress)
        case "result":
            result = answer.result
            return FoldExported(artifact_from_pb(result.artifact), result.superseded, result.latest)
        case _:
            return None


def import_step_to_pb(step: ArtifactProgress | FoldImported) -> fold_pb2.ImportFoldResponse:
    """Encode a step of an import: its progress, or its result."""
    if isinstance(step, ArtifactProgress):
        return fold_pb2.ImportFoldResponse(progress=_progress_to_pb(step))
    result = fold_pb2.FoldImport(
        artifact=artifact_to_pb(step.artifact), position_set=step.position_set, state=fold_state_to_pb(step.state)
    )
    return fold_pb2.ImportFoldResponse(result=result)


def import_step_from_pb(answer: fold_pb2.ImportFoldResponse) -> ArtifactProgress | FoldImported | None:
    """Decode a step of an import; None = a step that this version does not know."""
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
