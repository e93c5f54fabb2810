"""A source as people read it: its state in words, how far it is, what may be lost, what was decided last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.terminal.units import pluralize
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.client.admin.sources import Source
    from eddyline.core.model.source import SourceDefinition

STANDING: Final = ("SOURCE_LOST", "CURSOR_EXPIRED", "STREAM_RECREATED", "CURSOR_AHEAD", "OVERSIZE", "PAUSED")
"""States in which a source does not copy until something is done about it."""
_WORDS: Final = {
    "UNSPECIFIED": "no ingest has reported since the store started",
    "CONNECTING": "connects to NATS and checks the bucket or stream",
    "SNAPSHOT": "makes the first copy",
    "RESYNCING": "makes the topic equal to the bucket or stream as it is now",
    "CATCHING_UP": "reads from its position to the end",
    "LIVE": "copies changes as they come",
    "RECOVERING": "retries from its position",
    "PAUSED": "copies nothing until `eddyline source resume`",
    "SOURCE_LOST": "stopped: there is nothing to copy, or it cannot be copied; checked again every 5 s",
    "STREAM_RECREATED": "stopped: the stream was deleted and created again",
    "CURSOR_AHEAD": "stopped: the stream was rolled back",
    "CURSOR_EXPIRED": "stopped by its policy: messages were removed before they were read",
    "OVERSIZE": "stopped: a message does not fit",
}
_LABEL_CHARS: Final = 10


def age_text(milliseconds: int) -> str:
    """A duration for people, in its two largest units at most."""
    seconds = milliseconds // 1000
    for unit, size, below in (("d", 86_400, "h"), ("h", 3_600, "min"), ("min", 60, "s")):
        if seconds >= size:
            rest = seconds % size // {"h": 3_600, "min": 60, "s": 1}[below]
            return f"{seconds // size} {unit} {rest} {below}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def state_text(source: Source) -> str:
    """Its state in a word or two: "LIVE"; "not copied (was LIVE)" where no ingest holds it."""
    if source.holder:
        return source.status
    return "not copied yet" if source.status == "UNSPECIFIED" else f"not copied (was {source.status})"


def pace_text(source: Source) -> str:
    """How far what is being read is: "90000 revisions left, 12000 a second, about 8 s"; "" where nothing is being read."""
    if source.status not in ("SNAPSHOT", "CATCHING_UP") or not source.lag:
        return ""
    parts = [f"{pluralize(source.lag, 'revision')} left"]
    if source.detail.revisions_per_s:
        parts.append(f"{source.detail.revisions_per_s} a second")
    if source.detail.remaining_ms >= 0:
        parts.append(f"about {age_text(source.detail.remaining_ms)}")
    return ", ".join(parts)


def warning_text(source: Source) -> str:
    """The one thing to know of it in a list; "" = all is well."""
    warnings = source.detail.warnings
    if not source.holder and source.status != "UNSPECIFIED":
        return (
            f"no ingest holds it, reported {age_text(source.reported_ms)} ago"
            if source.reported_ms >= 0
            else source.reason
        )
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    first = warnings[0] + more if warnings else ""
    return source.reason or pace_text(source) or source.detail.file_drift or first


def page(source: Source) -> str:
    """The source on a page."""
    lines = [source.definition.name]
    for label, text in _lines(source):
        lines.append(f"  {label:<{_LABEL_CHARS}} {text}")
    return "\n".join(lines)


def _lines(source: Source) -> Iterator[tuple[str, str]]:
    detail, definition = source.detail, source.definition
    since = f" for {age_text(detail.state_ms)}" if detail.state_ms and source.holder else ""
    words = _WORDS.get(source.status, "a state of a newer version")
    if not source.holder and source.status not in ("UNSPECIFIED", *STANDING):
        words = "no ingest holds it; this page shows its last report"
    yield "state", f"{state_text(source)}{since}: {words}"
    if source.reason:
        yield "reason", source.reason
    if source.paused and source.status != "PAUSED":
        yield "", "paused: stops within a third of a lease"
    if source.resync_pending:
        yield "", "a resync was requested and is not done"
    pace = pace_text(source)
    if pace:
        yield "progress", pace
    yield "copies", f"{definition.origin} to topic {definition.topic} (epoch {source.epoch}), {_filters(definition)}"
    yield "position", f"revision {source.position_revision} of {source.last_revision}, lag {source.lag}"
    changed = f"last change {age_text(source.changed_ms)} ago" if source.changed_ms >= 0 else "no change"
    yield "topic", f"head {source.head_seq}, {changed}{'' if source.changed_ms >= 0 else ' since the store started'}"
    yield "gaps", _gaps(source)
    if detail.decision:
        yield "decided", f"{age_text(detail.decision_ms)} ago: {detail.decision}"
    yield "verified", _verified(source)
    letters = definition.dead_letter_topic
    misfits = f"goes to topic {letters}" if letters else "stops it"
    policies = f"on-expired {definition.on_expired.lower()}, on-recreated {definition.on_recreated.lower()}"
    yield "policies", f"{policies}, what fits into no record {misfits}"
    yield "copied by", _holder(source)
    for warning in detail.warnings:
        yield "warning", warning
    if detail.file_drift:
        yield "warning", detail.file_drift


def _filters(definition: SourceDefinition) -> str:
    filters = [f"{printable(prefix)}…" for prefix in definition.key_prefixes] + list(definition.subjects)
    return f"only {', '.join(filters)}" if filters else "everything in it"


def _gaps(source: Source) -> str:
    if not source.gap_count:
        return "none since the store started"
    return f"{source.gap_count} since the store started, the last {age_text(source.gap_ms)} ago"


def _verified(source: Source) -> str:
    detail = source.detail
    if detail.verified_ms < 0:
        return "not under this lease" if source.definition.bucket else "a stream has no fold to compare"
    found = f"{pluralize(detail.drift_count, 'key')} differed" if detail.drift_count else "equal"
    return f"{age_text(detail.verified_ms)} ago, {found}"


def _holder(source: Source) -> str:
    reported = f"reported {age_text(source.reported_ms)} ago" if source.reported_ms >= 0 else "nothing reported yet"
    if source.from_store:
        return f"{source.holder or 'no ingest'}, {reported}; no ingest answers, this page is from the store"
    return f"{source.holder}, {reported}" if source.holder else f"no ingest now, last {reported}"
