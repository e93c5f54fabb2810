"""A source as people read it: one page, one line in a list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eddyline.cli.commands.sources.source_page import age_text, pace_text, page, state_text, warning_text
from eddyline.client.admin.source_reads import Source
from eddyline.core.model.source import SourceDefinition, SourceDetail

DETAIL = SourceDetail(
    state_ms=3_700_000,
    decision="key sets compared: 2 deletes, resumed at 7",
    decision_ms=3_700_000,
    warnings=("may miss revisions: it keeps 1 revision of a key; the maximum is 64",),
    drift_count=0,
    verified_ms=60_000,
)
LIVE = Source(
    SourceDefinition("certs", "certs", "certs", key_prefixes=(b"prod.",), dead_letter_topic="misfits"),
    status="LIVE",
    reason="",
    position_revision=1234,
    last_revision=1240,
    lag=6,
    holder="one:7702",
    reported_ms=900,
    head_seq=1200,
    epoch=3,
    gap_count=2,
    gap_ms=180_000,
    changed_ms=2_000,
    detail=DETAIL,
)
PAGE = """\
certs
  state      LIVE for 1 h 1 min: copies changes as they come
  copies     bucket certs to topic certs (epoch 3), only prod.…
  position   revision 1234 of 1240, lag 6
  topic      head 1200, last change 2 s ago
  gaps       2 since the store started, the last 3 min ago
  decided    1 h 1 min ago: key sets compared: 2 deletes, resumed at 7
  verified   1 min ago, equal
  policies   on-expired resync, on-recreated stop, what fits into no record goes to topic misfits
  copied by  one:7702, reported 0 s ago
  warning    may miss revisions: it keeps 1 revision of a key; the maximum is 64"""


def test_a_source_reads_like_a_page() -> None:
    assert page(LIVE) == PAGE


def test_stopped_source_prints_time_and_reason_first() -> None:
    why = "bucket certs was rolled back: its last revision is 470, 500 was applied"
    lines = page(replace(LIVE, status="CURSOR_AHEAD", reason=why)).splitlines()
    assert lines[1:3] == [
        "  state      CURSOR_AHEAD for 1 h 1 min: stopped: the stream was rolled back",
        f"  reason     {why}",
    ]


def test_source_without_ingest_is_not_printed_as_live() -> None:
    away = replace(LIVE, holder="", reported_ms=35_000, from_store=True)
    assert state_text(away) == "not copied (was LIVE)"
    assert "  state      not copied (was LIVE): no ingest holds it; this page shows its last report\n" in page(away)
    assert warning_text(away) == "no ingest holds it, reported 35 s ago"
    assert "copied by  no ingest, reported 35 s ago; no ingest answers, this page is from the store" in page(away)
    new = replace(away, status="UNSPECIFIED", reported_ms=-1, detail=SourceDetail(), from_store=False)
    assert state_text(new) == "not copied yet"
    assert "verified   not under this lease" in page(new)


def test_first_copy_prints_rate_and_time_left() -> None:
    detail = replace(DETAIL, revisions_per_s=12_000, remaining_ms=8_000)
    copying = replace(LIVE, status="SNAPSHOT", lag=90_000, detail=detail)
    assert pace_text(copying) == warning_text(copying) == "90000 revisions left, 12000 a second, about 8 s"
    assert "  progress   90000 revisions left, 12000 a second, about 8 s\n" in page(copying)
    assert pace_text(replace(copying, detail=DETAIL)) == "90000 revisions left"
    assert pace_text(replace(copying, status="LIVE")) == ""


def test_the_note_is_the_gravest_thing() -> None:
    assert warning_text(LIVE) == DETAIL.warnings[0]
    two = replace(DETAIL, warnings=("a", "b", "c"))
    assert warning_text(replace(LIVE, detail=two)) == "a (and 2 more)"
    assert warning_text(replace(LIVE, detail=replace(two, file_drift="differs"))) == "differs"
    assert warning_text(replace(LIVE, detail=two, reason="because")) == "because"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (61_000, "1 min 1 s"),
        (7_200_000, "2 h"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_spans_have_two_units_at_most(milliseconds: int, text: str) -> None:
    assert age_text(milliseconds) == text
