"""Round trips of deletes, erasure, look-ups and fold checks through protobuf."""

from __future__ import annotations

import pytest

from eddyline.core.codec.calls import (
    delete_result_from_pb,
    delete_result_to_pb,
    erase_progress_from_pb,
    erase_progress_to_pb,
    match_from_pb,
    match_to_pb,
    seq_found_from_pb,
    seq_found_to_pb,
    settled_from_pb,
    settled_to_pb,
    verify_step_from_pb,
    verify_step_to_pb,
)
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.deletion import DeleteResult, EraseProgress
from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
from eddyline.core.model.read import FoldState, SeqFound
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.v1 import fold_pb2, log_pb2


@pytest.mark.parametrize("field", MatchField)
@pytest.mark.parametrize("kind", MatchKind)
def test_matches_survive_a_round_trip(field: MatchField, kind: MatchKind) -> None:
    match = Match(field, kind, b"\0x")
    assert match_from_pb(match_to_pb(match)) == match


@pytest.mark.parametrize(
    ("match", "field"),
    [
        (log_pb2.RecordMatch(kind=log_pb2.MATCH_KIND_EQ), "match.field"),
        (log_pb2.RecordMatch(field=3, kind=log_pb2.MATCH_KIND_EQ), "match.field"),  # type: ignore[arg-type]
        (log_pb2.RecordMatch(field=log_pb2.MATCH_FIELD_TAG), "match.kind"),
        (log_pb2.RecordMatch(field=log_pb2.MATCH_FIELD_KEY, kind=3), "match.kind"),  # type: ignore[arg-type]
    ],
)
def test_a_match_without_a_known_field_and_kind_is_refused(match: log_pb2.RecordMatch, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        match_from_pb(match)
    assert raised.value.metadata["field"] == field


def test_results_of_deletes_and_look_ups_survive_a_round_trip() -> None:
    deleted = DeleteResult(3, 5, 9, 7)
    assert delete_result_from_pb(delete_result_to_pb(deleted)) == deleted
    progress = EraseProgress(10, 20, erased=True)
    assert erase_progress_from_pb(erase_progress_to_pb(progress)) == progress
    result = SeqFound(4, True, 9, 2, 7)
    assert seq_found_from_pb(seq_found_to_pb(result)) == result


@pytest.mark.parametrize(
    "step", [FoldCheckProgress(3, 9, 2), FoldVerdict(9, 4, 7, 2, ("key a differs", "key b is gone"))]
)
def test_steps_of_fold_checks_survive_a_round_trip(step: FoldCheckProgress | FoldVerdict) -> None:
    assert verify_step_from_pb(verify_step_to_pb(step)) == step


def test_a_step_of_a_newer_store_is_ignored() -> None:
    assert verify_step_from_pb(fold_pb2.VerifyFoldResponse()) is None


def test_settled_folds_survive_a_round_trip() -> None:
    settled = FoldSettled(True, 4, 6, FoldState(9, 7, "LIVE", 3))
    assert settled_from_pb(settled_to_pb(settled)) == settled
