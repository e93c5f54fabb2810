"""`eddyline history`: the revisions of one key of a KV topic, oldest first."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_epoch, add_verb, connected, count, limit
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.output import gap_fields, gap_line, print_error, record_fields, record_line
from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers

_MORE: Final = """

Of a source's topic a line has NATS's revision and time too: the first time is that of the append here.
What the log lost stands in its place as a gap: it may have held revisions of the key. If the log has none, a
line on stderr says so.
JSON (-o json), an object a revision or a gap, as `eddyline read` has it; of a source version is NATS's revision, and
source_ts_ns its time."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "history",
        what="Show the revisions of a key that the log of its KV topic still has, oldest first.",
        example="eddyline history prices BTC\neddyline history prices BTC --after 100 --limit 10 -o json",
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--after", type=count, default=0, metavar="SEQ", help="start after this seq (default: 0)")
    add_epoch(parser, otherwise="is refused")
    parser.add_argument("--limit", type=limit, default=0, metavar="N", help="most revisions (default: all)")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the history."""
    from eddyline.client.watch.events import Position

    async with connected(arguments, context, topic=arguments.topic) as client:
        revisions = client.history(
            arguments.topic,
            os.fsencode(arguments.key),
            after=Position(arguments.epoch, arguments.after),
            limit=arguments.limit,
        )
        is_empty = True
        async with aclosing(revisions) as items:
            async for item in items:
                is_empty = False
                if isinstance(item, Gap):
                    context.output.print_result(gap_line(item), gap_fields(item))
                else:
                    context.output.print_result(record_line(item, of_source=True), record_fields(item))
    if is_empty:
        after = f" after record {arguments.after}" if arguments.after else ""
        print_error(f"the log of {arguments.topic} keeps no record of key {arguments.key!r}{after}")
    return EXIT_OK
