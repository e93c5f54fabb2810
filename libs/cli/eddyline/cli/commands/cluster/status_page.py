"""A cluster as people read it: what is wrong first, then roles, sources, and figures of disk, folds and watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.commands.cluster.status_facts import ClusterState, reason_text, role_state, troubles
from eddyline.cli.commands.sources.source_page import age_text, state_text, warning_text
from eddyline.cli.local_cluster.away import role_name
from eddyline.cli.terminal.columns import fitted, wrapped
from eddyline.cli.terminal.progress import share
from eddyline.cli.terminal.units import format_bytes, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.client.admin.sources import Source
    from eddyline.client.admin.status import RoleStatus

    Figures = dict[str, int | bool | str]

_ROLES: Final = ("ROLE", "ADDRESS", "STATE", "UP", "VERSION", "PID", "METRICS")
_ROLES_OPTIONAL: Final = ("METRICS", "PID", "VERSION")
_SOURCES: Final = ("SOURCE", "COPIES", "STATE", "POSITION", "LAG", "GAPS", "CHANGED")
_SOURCES_OPTIONAL: Final = ("COPIES",)
_LABEL: Final = 10
"""Characters of the longest label of a figure, with two spaces."""


def status_lines(facts: ClusterState, *, width: int) -> list[str]:
    """The page, in lines of at most `width` columns but for words that are longer."""
    lines = _verdict(facts, width)
    lines += ["", *_roles(facts, width)]
    if facts.sources is None:
        lines += ["", *wrapped(f"sources: {facts.sources_reason}", width=width)]
    elif facts.sources:
        lines += ["", *_sources(facts.sources, width)]
    for role in facts.roles:
        figures = [line for label, text in _figures(role) for line in _labelled(label, text, width)]
        if figures:
            lines += ["", _title(role, facts), *figures]
    return lines


def _title(role: RoleStatus, facts: ClusterState) -> str:
    """A role's name; of several replicas with the address."""
    name = role_name(role, facts.stores)
    is_one_of_several = sum(role_name(other, facts.stores) == name for other in facts.roles) > 1
    return f"{name.upper()} {role.address}" if is_one_of_several else name.upper()


def _many(number: int, what: str) -> str:
    """A number of things, its thousands apart."""
    return pluralize(number, what).replace(str(number), f"{number:,}", 1)


def _verdict(facts: ClusterState, width: int) -> list[str]:
    found = troubles(facts)
    if not found:
        roles = pluralize(len(facts.roles), "role")
        sources = "sources unknown" if facts.sources is None else pluralize(len(facts.sources), "source")
        return [f"all is well: {roles}, {sources}"]
    lines = [f"{pluralize(len(found), 'trouble')}:"]
    for trouble in found:
        lines += wrapped(trouble, width=width, indent="  ! ", hanging="    ")
    return lines


def _roles(facts: ClusterState, width: int) -> list[str]:
    rows, notes = [], []
    for role in facts.roles:
        rows.append(
            (
                role_name(role, facts.stores),
                role.address,
                role_state(role, len(facts.stores)),
                age_text(role.uptime_ms) if role.reachable else "-",
                role.version or "-",
                str(role.pid or "-"),
                role.metrics_address or "-",
            )
        )
        reason = reason_text(role, len(facts.stores))
        notes.append([reason] if reason else [])
    return fitted(_ROLES, rows, notes, width=width, optional=_ROLES_OPTIONAL)


def _sources(sources: tuple[Source, ...], width: int) -> list[str]:
    rows, notes = [], []
    for source in sources:
        rows.append(
            (
                source.definition.name,
                f"{source.definition.origin} to {source.definition.topic}",
                state_text(source),
                f"{source.position_revision} of {source.last_revision}",
                str(source.lag),
                str(source.gap_count),
                f"{age_text(source.changed_ms)} ago" if source.changed_ms >= 0 else "-",
            )
        )
        note = warning_text(source)
        notes.append([note] if note else [])
    lines = fitted(_SOURCES, rows, notes, width=width, optional=_SOURCES_OPTIONAL)
    return [*lines, *wrapped("gaps and changes are since the store started", width=width)]


def _labelled(label: str, text: str, width: int) -> list[str]:
    return wrapped(text, width=width, indent=f"  {label:<{_LABEL}}", hanging=" " * (_LABEL + 2))


def _figures(role: RoleStatus) -> Iterator[tuple[str, str]]:
    figures = dict(role.figures)
    if not figures:
        return
    since = f"since the start {age_text(role.uptime_ms)} ago"
    match role.role:
        case "store":
            yield from _store(figures, since)
        case "ingest":
            nats = "connected" if figures["nats_connected"] else "NOT connected"
            yield "copies", f"{pluralize(int(figures['source_count']), 'source')}; NATS {nats}"
            done, keys = int(figures["verification_count"]), int(figures["drifted_key_count"])
            yield "totals", f"{since}: {pluralize(done, 'verification')}, {pluralize(keys, 'key')} differed"
        case "delivery":
            yield from _delivery(figures, since)


def _store(figures: Figures, since: str) -> Iterator[tuple[str, str]]:
    def size(name: str) -> str:
        return format_bytes(int(figures[f"{name}_bytes"]))

    def number(name: str) -> int:
        return int(figures[f"{name}_count"])

    if "total_bytes" in figures:
        done, total = int(figures["replayed_bytes"]), int(figures["total_bytes"])
        yield "recovery", f"{share(done, total)}, {size('replayed')} of {size('total') if total else '…'} replayed"
        return
    segments = f"{pluralize(number('segment'), 'segment')} {size('segment')}"
    disk = f"{size('disk_free')} free; write-ahead log {size('wal')}, {segments}"
    yield "disk", f"{disk}, {size('unsegmented')} of records in no segment yet"
    yield "memory", f"{size('memory')} of the budget held"
    lost = f"{number('lost_fold')} of them LOST" if number("lost_fold") else "none lost"
    folds = f"{pluralize(number('fold'), 'fold')}{f', {lost}' if number('fold') else ''}"
    yield "topics", f"{pluralize(number('topic'), 'topic')}, {pluralize(number('source'), 'source')}; {folds}"
    yield "upkeep", f"{str(figures['maintenance_stage']).lower()}, checkpoint {figures['checkpoint']}"
    if figures["apply_lag_bytes"]:
        yield "behind", f"{size('apply_lag')} written and not applied yet"
    totals = [f"{_many(number('appended'), 'record')} appended"]
    if number("dropped_key"):
        totals.append(f"{pluralize(number('dropped_key'), 'idempotency key')} dropped early")
    if number("corrupt"):
        totals.append(f"{pluralize(number('corrupt'), 'piece')} of files found CORRUPT, see the log")
    yield "totals", f"{since}: {', '.join(totals)}"


def _delivery(figures: Figures, since: str) -> Iterator[tuple[str, str]]:
    draining = "; DRAINING" if figures["draining"] else ""
    watches, topics = pluralize(int(figures["watch_count"]), "watch"), pluralize(int(figures["topic_count"]), "topic")
    yield "watches", f"{watches}, {topics} followed; {format_bytes(int(figures['buffered_bytes']))} held{draining}"
    step = str(figures["pressure_step"])
    text = f"{figures['pressure_percent']} %"
    if step not in ("REST", "UNSPECIFIED"):
        text += f", {step.lower()} for {age_text(int(figures['pressure_step_ms']))} ({figures['pressure_reason']})"
        text += f"; ready topics by band {figures['ready_topic_counts']}, longest wait {figures['longest_wait_ms']} ms"
    yield "pressure", text
    yield "totals", f"{since}: {_many(int(figures['delivered_count']), 'record')} sent"
