"""`eddyline watch --explain`: what a watch would cost, and where those that are open stand; nothing is opened."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from eddyline.cli.commands.cluster.status import duration_text
from eddyline.cli.terminal.output import gap_fields, gap_line
from eddyline.cli.terminal.units import format_bytes
from eddyline.client.watch.explain import explain_watch, open_watches
from eddyline.core.errors import EddylineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.cli.terminal.output import Json, Output
    from eddyline.client.connect import Client
    from eddyline.client.watch.explain import OpenWatch, TopicStanding, WatchBacklog, WatchCost
    from eddyline.client.watch.plan import WatchTopic


async def explain(client: Client, wanted: Sequence[WatchTopic], output: Output) -> None:
    """Say both for each topic."""
    for cost in await explain_watch(client, wanted):
        _say_cost(cost, output)
        for address, watches in (await open_watches(client, cost.topic)).items():
            if isinstance(watches, EddylineError):
                line = f"{address} does not list its streams: {watches.message}"
                output.print_notice(line, {"event": "not_told", "delivery": address, "reason": watches.reason})
                continue
            for watch in watches:
                _say_watch(address, cost.topic, watch, output)


def _say_cost(cost: WatchCost, output: Output) -> None:
    fields: dict[str, Json] = {
        "topic": cost.topic,
        "event": "cost",
        "epoch": cost.start.epoch,
        "after_seq": cost.start.seq,
        "head_seq": cost.head_seq,
        "snapshot": cost.snapshot,
        "record_count": cost.records,
        "record_bytes": cost.nbytes,
        "deleted": cost.deleted,
    }
    if cost.gap is not None:
        fields["gap"] = gap_fields(cost.gap)
    if cost.deleted:
        line = "deleted: the watch reports the deletion only"
    elif cost.snapshot:
        line = f"the current values, then the changes after {cost.head_seq}"
    elif not cost.records and cost.gap is None:
        line = f"nothing to read: caught up at {cost.start.seq}"
    else:
        place = f"after {cost.start.seq}, head {cost.head_seq}"
        line = f"{place}: at most {cost.records} records, about {format_bytes(cost.nbytes)}"
    output.print_result(f"{cost.topic}  {line}", fields)
    if cost.gap is not None and not output.is_json:
        output.print_result(f"{cost.topic}  {gap_line(cost.gap)}", {})


def _say_watch(address: str, topic: str, watch: OpenWatch, output: Output) -> None:
    (stand,) = [one for one in watch.topics if one.topic == topic]
    fields: dict[str, Json] = {"topic": topic, "event": "open_watch", "delivery": address}
    told = asdict(watch)
    told.pop("topics")
    fields |= told
    fields |= {
        "seq": stand.position.seq,
        "epoch": stand.position.epoch,
        "head_seq": stand.head_seq,
        "standing": stand.standing,
        "band": stand.band,
        "turn_wait_ms": stand.turn_wait_ms,
        "next": stand.next,
    }
    sent = f"{watch.sent_count} records sent, the last frame {duration_text(watch.last_send_ms)} ago"
    under_way = f", {format_bytes(watch.queued_bytes)} not taken yet" if watch.queued_bytes else ""
    slow = ", a slow reader" if watch.slow else ""
    output.print_result(
        f"{topic}  open at {address}: stream {watch.watch_id} of {watch.peer}, for {duration_text(watch.open_ms)}:"
        f" {_place(stand)}; {sent}{under_way}{slow}; {backlog_text(watch.backlog)}",
        fields,
    )


def backlog_text(backlog: WatchBacklog | None) -> str:
    """What the reader's window shows of its program."""
    if backlog is None:
        return "whether its program reads is not visible"
    parts = [
        f"{format_bytes(nbytes)} {where}, for {duration_text(age_ms)}"
        for nbytes, age_ms, where in (
            (backlog.queued_bytes, backlog.queued_ms, "waits for its window"),
            (backlog.unread_bytes, backlog.unread_ms, "at most is sent and not read"),
        )
        if nbytes
    ]
    return "; ".join(parts) or "its program has read all"


def _place(stand: TopicStanding) -> str:
    lag = stand.head_seq - stand.position.seq
    behind = f"{lag} behind {stand.head_seq}" if lag else f"at {stand.position.seq}"
    turn = f" (B{stand.band}, for {duration_text(stand.turn_wait_ms)})" if stand.standing == "WAITING_TURN" else ""
    return f"{behind}, {stand.standing}{turn}: {stand.next}"
