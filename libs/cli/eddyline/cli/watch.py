"""`eddyline watch`: topics as they change, across restarts of every role, until Ctrl-C."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, assert_never

from eddyline.cli.failure import EXIT_OK, CommandError
from eddyline.cli.outage import Outage
from eddyline.cli.output import gap_fields, gap_line, record_fields, record_line
from eddyline.cli.verb import add_verb, connected, count
from eddyline.client.events import CaughtUp, Lost, Position, Records, SnapshotBegan, SnapshotEnded, TopicGone
from eddyline.client.watch_plan import WatchTopic
from eddyline.core.topic import Kind

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.output import Output
    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.connect import Client
    from eddyline.client.events import WatchEvent
    from eddyline.client.watch_plan import Start

_MORE: Final = """

JSON (-o json): a record as `eddyline read` has it, with topic and in_snapshot; a gap likewise, with topic; or an event:
  {"topic", "event": "snapshot_begin", "fold_seq"}   current values follow: forget what you have of the topic
  {"topic", "event": "snapshot_end", "fold_seq", "count"}
  {"event": "caught_up"}
  {"topic", "event": "topic_deleted"}
  {"event": "reconnecting", "reason", "message"}, later {"event": "resumed"}   nothing is missed in between"""
_STARTS: Final[dict[str, Start]] = {"snapshot": "snapshot", "tail": "tail", "earliest": "earliest"}


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "watch",
        what="Watch topics: current values first (KV), then every change, across restarts.",
        example="eddyline watch certs routes\neddyline watch access --start earliest -o json",
        run=run,
        more=_MORE,
    )
    parser.set_defaults(contradiction=contradiction)
    parser.add_argument("topics", metavar="TOPIC", nargs="+")
    parser.set_defaults(repeatable="topics")
    parser.add_argument(
        "--start",
        choices=tuple(_STARTS),
        help="where to begin (default: snapshot for KV topics, tail for logs)",
    )
    parser.add_argument("--after", type=count, metavar="SEQ", help="begin behind this seq instead (of one topic)")
    parser.add_argument("--key-prefix", action="append", default=[], metavar="PREFIX", help="repeatable")


def contradiction(arguments: argparse.Namespace) -> str:
    """What the arguments say against each other; empty = nothing."""
    if arguments.after is not None and arguments.start is not None:
        return "--after and --start both say where to begin"
    if arguments.after is not None and len(set(arguments.topics)) > 1:
        return "--after is a seq of one topic; watch the others with another command"
    return ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Watch."""
    prefixes = tuple(os.fsencode(prefix) for prefix in arguments.key_prefix)
    async with connected(arguments, context) as client:
        wanted = [
            WatchTopic(name, await _start_of(client, name, arguments), prefixes)
            for name in dict.fromkeys(arguments.topics)
        ]
        outage = Outage(context.output.say_aside)
        async with client.watch(wanted, on_retry=outage.failed, on_resume=outage.over) as events:
            async for event in events:
                _say(event, context.output)
    return EXIT_OK


async def _start_of(client: Client, name: str, arguments: argparse.Namespace) -> Start:
    if arguments.after is not None:
        return Position((await client.get_topic(name)).epoch, arguments.after)
    if arguments.start in ("tail", "earliest"):
        return _STARTS[arguments.start]
    if (await client.get_topic(name)).kind is Kind.KV:
        return "snapshot"
    if arguments.start is not None:
        raise CommandError(f"{name} is a log, which has no current values", "give --start tail or --start earliest")
    return "tail"


def _say(event: WatchEvent, output: Output) -> None:
    match event:
        case Records():
            for record in event.records:
                output.say(
                    f"{event.topic}  {record_line(record)}",
                    {"topic": event.topic, **record_fields(record), "in_snapshot": event.in_snapshot},
                )
        case Lost():
            output.say(f"{event.topic}  {gap_line(event.gap)}", {"topic": event.topic, **gap_fields(event.gap)})
        case SnapshotBegan():
            output.say(
                f"-- {event.topic}: current values at {event.fold_seq}",
                {"topic": event.topic, "event": "snapshot_begin", "fold_seq": event.fold_seq},
            )
        case SnapshotEnded():
            output.say(
                f"-- {event.topic}: {event.count} current value{'' if event.count == 1 else 's'}; changes follow",
                {"topic": event.topic, "event": "snapshot_end", "fold_seq": event.fold_seq, "count": event.count},
            )
        case CaughtUp():
            output.say("-- caught up", {"event": "caught_up"})
        case TopicGone():
            output.say(f"-- {event.topic}: deleted", {"topic": event.topic, "event": "topic_deleted"})
        case _:
            assert_never(event)
