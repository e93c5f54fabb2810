"""The live view: counts, positions, lag, and the newest changes. Redrawn on a terminal, else a line a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.cli.terminal.output import aligned, format_time, op_name
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.cli.demo.subscriber import Change, DemoSubscriber
    from eddyline.cli.terminal.output import Json, Output
    from eddyline.client.admin.sources import Source

_HEADER = ("SOURCE", "STATE", "KEYS AT THE SUBSCRIBER", "POSITION", "LAST REVISION", "LAG")


@dataclass(frozen=True, slots=True)
class ViewFigures:
    """The figures of one view; `trouble` replaces the sources if the call for them failed."""

    ts_ms: int
    sources: Sequence[Source]
    trouble: str
    changes_each_s: float
    events: Sequence[str]


class DemoView:
    """Shows one moment after the other."""

    def __init__(self, output: Output, subscriber: DemoSubscriber) -> None:
        self._output = output
        self._subscriber = subscriber
        self._drawn = 0

    def show(self, moment: ViewFigures) -> None:
        """Show a moment in the place of the one before it, where that can be."""
        if not self._output.is_terminal:
            self._output.print_result(self._line(moment), self._fields(moment))
            return
        lines = self._screen(moment)
        self._output.redraw(lines, over=self._drawn)
        self._drawn = len(lines)

    def _screen(self, moment: ViewFigures) -> list[str]:
        subscriber = self._subscriber
        rows = [
            (
                source.definition.name,
                source.status,
                str(len(subscriber.live.get(source.definition.topic, {}))),
                str(source.position_revision),
                str(_last_revision(source)),
                str(source.lag),
            )
            for source in moment.sources
        ]
        lines = ["", *aligned([_HEADER, *rows])] if rows else ["", f"waiting: {moment.trouble}"]
        lines.append(
            f"changes seen: {subscriber.change_count} ({moment.changes_each_s:.0f}/s)   "
            f"resumes: {subscriber.resume_count}   gaps: {subscriber.gap_count}"
        )
        lines += ["", "newest changes, as a subscriber gets them:"]
        lines += [f"  {change_text(change)}" for change in subscriber.newest]
        lines += [f"  ! {event}" for event in moment.events]
        # A line that wraps would count as one and be drawn as two.
        return [line[: self._output.width] for line in lines]

    def _line(self, moment: ViewFigures) -> str:
        subscriber = self._subscriber
        pieces = [
            f"{source.definition.name} {len(subscriber.live.get(source.definition.topic, {}))} keys, "
            f"position {source.position_revision}/{_last_revision(source)}, lag {source.lag}"
            for source in moment.sources
        ]
        if moment.trouble:
            pieces.append(moment.trouble)
        pieces.append(f"{moment.changes_each_s:.0f} changes/s")
        if subscriber.newest:
            pieces.append(change_text(subscriber.newest[-1])[:80])
        return f"{format_time(moment.ts_ms)[11:19]}  " + " | ".join(pieces)

    def _fields(self, moment: ViewFigures) -> dict[str, Json]:
        subscriber = self._subscriber
        sources: list[Json] = [
            {
                "name": source.definition.name,
                "state": source.status,
                "keys": len(subscriber.live.get(source.definition.topic, {})),
                "position_revision": source.position_revision,
                "last_revision": _last_revision(source),
                "lag": source.lag,
            }
            for source in moment.sources
        ]
        return {
            "event": "moment",
            "ts_ms": moment.ts_ms,
            "sources": sources,
            "trouble": moment.trouble,
            "changes": subscriber.change_count,
            "resumes": subscriber.resume_count,
            "gaps": subscriber.gap_count,
        }


def change_text(change: Change) -> str:
    """A change for people."""
    record = change.record
    value = "" if record.data is None else printable(record.data, 60)
    return f"{change.topic:<7} {record.seq:>7}  {op_name(record.op):<6} {printable(record.key, 40)}  {value}".rstrip()


def _last_revision(source: Source) -> int:
    # The last revision is as of the holder's last report, the position as of now.
    return max(source.last_revision, source.position_revision)
