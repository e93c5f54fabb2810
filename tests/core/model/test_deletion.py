"""Checks of a delete's request."""

from __future__ import annotations

import pytest

from eddyline.core.errors import InvalidArgument
from eddyline.core.model.deletion import check_delete
from eddyline.core.model.topic import Kind
from eddyline.core.records.match import Match, MatchField, MatchKind

BY_TAG = Match(MatchField.TAG, MatchKind.EQ, b"t")


@pytest.mark.parametrize(
    ("before_seq", "match", "kind"),
    [
        (1, None, None),
        (0, Match(MatchField.KEY, MatchKind.PREFIX, b""), Kind.KV),
        (5, Match(MatchField.KEY, MatchKind.EQ, bytes(1_024)), Kind.LOG),
        (0, BY_TAG, Kind.LOG),
        (0, BY_TAG, None),
        (0, Match(MatchField.TAG, MatchKind.PREFIX, b"t" * 256), Kind.LOG),
    ],
)
def test_a_bound_a_match_or_both_are_accepted(before_seq: int, match: Match | None, kind: Kind | None) -> None:
    check_delete(before_seq, match, kind)


@pytest.mark.parametrize(
    ("match", "kind", "field"),
    [
        (None, Kind.LOG, "before_seq"),
        (BY_TAG, Kind.KV, "match.field"),
        (Match(MatchField.KEY, MatchKind.EQ, bytes(1_025)), Kind.KV, "match.value"),
        (Match(MatchField.TAG, MatchKind.EQ, b"t" * 257), Kind.LOG, "match.value"),
        (Match(MatchField.TAG, MatchKind.PREFIX, "é".encode()[:1]), Kind.LOG, "match.value"),
    ],
)
def test_a_delete_without_a_condition_or_with_an_invalid_one_is_refused(
    match: Match | None, kind: Kind, field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_delete(0, match, kind)
    assert raised.value.metadata["field"] == field
