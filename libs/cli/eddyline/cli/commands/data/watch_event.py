"""An event of a watch as `eddyline watch` says it: to people as a line, to programs as an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from eddyline.cli.terminal.output import gap_fields, gap_line, put_bytes, record_fields, record_line
from eddyline.client.watch.events import (
    CaughtUp,
    Lost,
    Records,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotResumed,
    TopicGone,
)
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    from eddyline.cli.terminal.output import Json, Output
    from eddyline.client.watch.events import WatchEvent


def print_event(event: WatchEvent, output: Output) -> None:
    """Say one event."""
    match event:
        case Records():
            sizes = event.data_bytes or (None,) * len(event.records)
            if not event.records and event.batch_end:
                output.print_result(f"-- {event.topic}: the append ends", {"topic": event.topic, "event": "batch_end"})
            last = len(event.records) - 1
            for index, (record, size) in enumerate(zip(event.records, sizes, strict=True)):
                output.print_result(
                    f"{event.topic}  {record_line(record)}{'' if size is None else f'  ({size} bytes)'}",
                    {
                        "topic": event.topic,
                        **record_fields(record),
                        **({} if size is None else {"data_bytes": size}),
                        "in_snapshot": event.in_snapshot,
                        **({"batch_end": True} if event.batch_end and index == last else {}),
                    },
                )
        case Lost():
            output.print_result(
                f"{event.topic}  {gap_line(event.gap)}", {"topic": event.topic, **gap_fields(event.gap)}
            )
        case SnapshotBegan():
            output.print_result(
                f"-- {event.topic}: current values at {event.fold_seq}",
                {"topic": event.topic, "event": "snapshot_begin", "fold_seq": event.fold_seq},
            )
        case SnapshotResumed():
            fields: dict[str, Json] = {
                "topic": event.topic,
                "event": "snapshot_resume",
                "fold_seq": event.fold_seq,
            }
            put_bytes(fields, "after_key", event.after_key)
            output.print_result(f"-- {event.topic}: current values continue after {printable(event.after_key)}", fields)
        case SnapshotEnded():
            output.print_result(
                f"-- {event.topic}: {event.count} current value{'' if event.count == 1 else 's'}; changes follow",
                {"topic": event.topic, "event": "snapshot_end", "fold_seq": event.fold_seq, "count": event.count},
            )
        case CaughtUp():
            output.print_result("-- caught up", {"event": "caught_up"})
        case TopicGone():
            output.print_result(f"-- {event.topic}: deleted", {"topic": event.topic, "event": "topic_deleted"})
        case _:
            assert_never(event)
