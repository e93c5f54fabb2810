"""`eddyline read`: a topic's log from a place to its head, or on and on."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_epoch, add_verb, connected, count, limit
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.local_cluster.away import describe_error
from eddyline.cli.local_cluster.outage import Outage
from eddyline.cli.terminal.output import gap_fields, gap_line, print_error, record_fields, record_line
from eddyline.core.model.read import RecordFilter
from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers


_MORE: Final = """

JSON (-o json), an object a record; what is absent is left out:
  seq, ts_ms, op   place, time of the append in ms, APPEND, PUT, DELETE or PURGE
  key, data        text, or as key_base64 and data_base64 where they are not UTF-8
  tag, node        text
  meta             [{"name": "n", "value": "v"}] (or value_base64)
  version          number: the seq, of a source NATS's revision; hex where a writer gave one that is not 8 bytes
  source_ts_ns     time at the source, where a source brought it
or, for what was lost: gap (the reason), first_seq, last_seq; old_epoch and new_epoch, source_first and source_last
(0 = not known) where they apply."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "read",
        what="Read a topic's log; losses appear as gaps in their places.",
        example="eddyline read prices --after 100 --limit 10\neddyline read prices --follow -o json",
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--after", type=count, default=0, metavar="SEQ", help="start after this seq (default: 0)")
    add_epoch(parser)
    parser.add_argument("--limit", type=limit, default=0, metavar="N", help="most records (default: all)")
    parser.add_argument("--follow", action="store_true", help="continue with new records, until Ctrl-C")
    parser.add_argument("--key-prefix", action="append", default=[], metavar="PREFIX", help="repeatable")
    parser.add_argument("--tag", action="append", default=[], help="repeatable")
    parser.add_argument("--exclude-node", action="append", default=[], metavar="NODE", help="repeatable")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    wanted = RecordFilter(
        key_prefixes=tuple(os.fsencode(prefix) for prefix in arguments.key_prefix),
        tags=tuple(arguments.tag),
        exclude_nodes=tuple(arguments.exclude_node),
    )
    from eddyline.client.watch.events import Position

    is_empty = True
    # On stderr for programs too: standard output is what `eddyline append --json` takes.
    outage = Outage(lambda text, _fields: print_error(text))
    async with context.output.until_reader_leaves(), connected(arguments, context, topic=arguments.topic) as client:
        outage.describe = partial(describe_error, topology=client.topology)
        async for item in client.read(
            arguments.topic,
            after=Position(arguments.epoch, arguments.after),
            limit=arguments.limit,
            follow=arguments.follow,
            record_filter=wanted,
            on_retry=outage.failed,
            on_resume=outage.over,
        ):
            is_empty = False
            if isinstance(item, Gap):
                context.output.print_result(gap_line(item), gap_fields(item))
            else:
                context.output.print_result(record_line(item), record_fields(item))
    if is_empty:
        matching = " that these filters select" if wanted != RecordFilter() else ""
        after = f" after record {arguments.after}" if arguments.after else ""
        print_error(f"the log of {arguments.topic} keeps no record{matching}{after}")
    return EXIT_OK
