"""Verifications as messages of the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.codec.source import status_to_pb
from eddyline.ingest.verify.compare import VerifyProgress
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.ingest.verify.compare import Difference
    from eddyline.ingest.verify.verify import VerifyResult


def step_to_pb(step: VerifyProgress | VerifyResult) -> source_pb2.VerifySourceResponse:
    """Convert progress or the result of a verification."""
    if isinstance(step, VerifyProgress):
        return source_pb2.VerifySourceResponse(
            progress=source_pb2.SourceVerifyProgress(
                stage=source_pb2.VerifyStage.ValueType(step.stage),
                bucket_read=step.bucket_read,
                bucket_total=step.bucket_total,
                fold_read=step.fold_read,
                fold_total=step.fold_total,
                suspect_count=step.suspect_count,
            )
        )
    comparison = step.comparison
    return source_pb2.VerifySourceResponse(
        verdict=source_pb2.SourceVerdict(
            bucket_count=comparison.bucket_count,
            fold_count=comparison.fold_count,
            difference_count=comparison.difference_count,
            differences=differences_to_pb(comparison.differences),
            prefixes=[
                source_pb2.PrefixDrift(
                    prefix=drift.prefix,
                    bucket_count=drift.bucket_count,
                    fold_count=drift.fold_count,
                    difference_count=drift.difference_count,
                )
                for drift in comparison.prefixes
            ],
            position_revision=comparison.position_revision,
            unsettled_count=comparison.unsettled_count,
            unexamined_count=comparison.unexamined_count,
            unconfirmed_count=comparison.unconfirmed_count,
            repaired=step.repaired,
            repair_trouble=step.trouble,
            left_count=step.left_count,
            left=differences_to_pb(step.left.differences) if step.left is not None else [],
            source_status=status_to_pb(step.report.state),
            source_reason=step.report.reason,
            dead_letter_count=(step.left or comparison).dead_letter_count,
            left_bucket_count=step.left.bucket_count if step.left is not None else 0,
            left_fold_count=step.left.fold_count if step.left is not None else 0,
            missing_count=comparison.missing_count,
            surplus_count=comparison.surplus_count,
            value_count=comparison.value_count,
        )
    )


def differences_to_pb(differences: Iterable[Difference]) -> list[source_pb2.Difference]:
    """Convert keys that differ."""
    return [
        source_pb2.Difference(
            key=difference.key,
            kind=source_pb2.DifferenceKind.ValueType(difference.kind),
            bucket_revision=difference.bucket_revision,
            fold_revision=difference.fold_revision,
        )
        for difference in differences
    ]
