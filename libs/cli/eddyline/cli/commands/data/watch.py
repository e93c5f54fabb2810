"""`eddyline watch`: topics as they change, across restarts of every role, until Ctrl-C."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_epoch, add_verb, connected, count, limit
from eddyline.cli.errors import EXIT_OK, CommandError
from eddyline.cli.local_cluster.away import describe_error
from eddyline.cli.local_cluster.outage import Outage
from eddyline.cli.terminal.units import commit_time_ns
from eddyline.core.model.topic import Kind

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.connect import Client
    from eddyline.client.watch.plan import Start

_EXAMPLE: Final = """
eddyline watch certs routes
eddyline watch access --start earliest -o json
eddyline watch certs --key-prefix eu/ --on-gap heal --exclude-node me
eddyline watch access --after 1200 --epoch 3 --explain
eddyline watch access --at-time 2026-11-28T09:30:00Z --metadata-only"""
_MORE: Final = """

JSON (-o json): a record as `eddyline read` has it, with topic and in_snapshot (and data_bytes in place of data with
--metadata-only), and batch_end: true where no append lies on both sides of it; a gap likewise, with topic; or an event:
  {"topic", "event": "batch_end"}                    the records before it are whole appends; the filters hid their end
  {"topic", "event": "snapshot_begin", "fold_seq"}   current values follow: forget what you have of the topic
  {"topic", "event": "snapshot_resume", "fold_seq", "after_key"}   it broke off and goes on: forget its keys above
                     after_key; records in it that are no PUT take a key away
  {"topic", "event": "snapshot_end", "fold_seq", "count"}
  {"event": "caught_up"}
  {"topic", "event": "topic_deleted"}
  {"topic", "event": "cost", "after_seq", "head_seq", "snapshot", "record_count", "record_bytes", "gap"}   with --explain,
  {"topic", "event": "open_watch", "delivery", "watch_id", "peer", "seq", "head_seq", "standing", "next", …}   likewise
  {"event": "reconnecting", "reason", "message"}, later {"event": "resumed"}   what was lost meanwhile follows as gaps"""
_STARTS: Final[dict[str, Start]] = {"snapshot": "snapshot", "tail": "tail", "earliest": "earliest"}


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "watch",
        what="Watch topics: current values first (KV), then every change, across restarts.",
        example=_EXAMPLE,
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
    parser.add_argument("--after", type=count, metavar="SEQ", help="start after this seq instead (of one topic)")
    add_epoch(parser)
    parser.add_argument(
        "--at-time",
        type=commit_time_ns,
        metavar="TIME",
        help="begin at the first record appended at or after it: RFC 3339, or ms since the Unix epoch",
    )
    parser.add_argument(
        "--from-revision",
        type=limit,
        metavar="N",
        help="begin at the first record of this version or a later one (a source's: NATS's revision)",
    )
    parser.add_argument("--key-prefix", action="append", default=[], metavar="PREFIX", help="repeatable")
    parser.add_argument("--tag", action="append", default=[], help="only records with it; repeatable")
    parser.add_argument(
        "--exclude-node",
        action="append",
        default=[],
        metavar="NODE",
        help="skip records that this node wrote; repeatable",
    )
    parser.add_argument("--ignore-deletes", action="store_true", help="no deletes and purges")
    parser.add_argument("--metadata-only", action="store_true", help="no data, only how large it is")
    parser.add_argument("--updates-only", action="store_true", help="no current values, only changes from now on")
    parser.add_argument(
        "--on-gap",
        choices=("tell", "heal"),
        default="tell",
        help="heal = a gap in a KV topic is followed by its current values (default: tell)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the cost of this watch and the state of the open ones; then exit",
    )


def contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction among the arguments; empty = none."""
    starts = {
        "--start": arguments.start,
        "--after": arguments.after,
        "--at-time": arguments.at_time,
        "--from-revision": arguments.from_revision,
    }
    given = [name for name, value in starts.items() if value is not None]
    if len(given) > 1:
        return f"{given[0]} and {given[1]} both set the start: give one"
    if arguments.epoch and arguments.after is None:
        return "--epoch needs --after: give both"
    if arguments.updates_only and given and arguments.start not in ("tail", "snapshot"):
        return f"--updates-only starts at the head: it does not go with {given[0]}"
    for name in ("--after", "--from-revision"):
        if starts[name] is not None and len(set(arguments.topics)) > 1:
            return f"{name} sets the start of one topic; watch the others with another command"
    return ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    # Here, because the client's watch needs gRPC and numpy.
    from eddyline.cli.commands.data.explain import explain
    from eddyline.cli.commands.data.watch_event import print_event
    from eddyline.client.watch.plan import WatchTopic

    outage = Outage(context.output.print_notice)
    async with context.output.until_reader_leaves(), connected(arguments, context) as client:
        outage.describe = partial(describe_error, topology=client.topology)
        wanted = [
            WatchTopic(
                name,
                await _start_of(client, name, arguments, outage),
                tuple(os.fsencode(prefix) for prefix in arguments.key_prefix),
                tags=tuple(arguments.tag),
                exclude_nodes=tuple(arguments.exclude_node),
                ignore_deletes=arguments.ignore_deletes,
                metadata_only=arguments.metadata_only,
                updates_only=arguments.updates_only,
                heals=arguments.on_gap == "heal",
            )
            for name in arguments.topics
        ]
        if arguments.explain:
            outage.over()
            await explain(client, wanted, context.output)
            return EXIT_OK
        async with client.watch(wanted, resume_snapshots=True, on_retry=outage.failed, on_resume=outage.over) as events:
            async for event in events:
                outage.over()
                print_event(event, context.output)
    return EXIT_OK


async def _start_of(client: Client, name: str, arguments: argparse.Namespace, outage: Outage) -> Start:
    from eddyline.client.watch.events import Position
    from eddyline.client.watch.plan import AtRevision, AtTime

    if arguments.after is not None:
        epoch = arguments.epoch or (await client.get_topic(name, on_retry=outage.failed)).epoch
        return Position(epoch, arguments.after)
    if arguments.at_time is not None:
        # Up to the next whole millisecond: a record of the one before is older than the time.
        return AtTime(-(-arguments.at_time // 1_000_000))
    if arguments.from_revision is not None:
        return AtRevision(arguments.from_revision)
    if arguments.updates_only:
        return "tail"
    if arguments.start in ("tail", "earliest"):
        return _STARTS[arguments.start]
    if (await client.get_topic(name, on_retry=outage.failed)).kind is Kind.KV:
        return "snapshot"
    if arguments.start is not None:
        raise CommandError(f"{name} is a log, which has no current values", "give --start tail or --start earliest")
    return "tail"
