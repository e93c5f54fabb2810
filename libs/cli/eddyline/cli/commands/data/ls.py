"""`eddyline ls`: live keys of a KV topic, in byte order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from eddyline.cli.command import add_verb, connected, limit
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.output import print_error, record_fields
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "ls",
        what="List the live keys of a KV topic, in byte order, all at one point.",
        example="eddyline ls routes co. --limit 20\neddyline ls routes --values",
        run=run,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only keys that start so")
    parser.set_defaults(optional=("prefix", ""))
    parser.add_argument("--after", default="", metavar="KEY", help="only keys after this one")
    parser.add_argument("--limit", type=limit, default=0, metavar="N", help="most keys (default: all)")
    parser.add_argument("--values", action="store_true", help="show the values too (JSON has them always)")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    is_empty = True
    async with connected(arguments, context, topic=arguments.topic) as client:
        async for record in client.range(
            arguments.topic,
            key_prefix=os.fsencode(arguments.prefix),
            after_key=os.fsencode(arguments.after),
            limit=arguments.limit,
        ):
            is_empty = False
            key = printable(record.key)
            text = f"{key}  {printable(record.data, 200)}" if arguments.values else key
            context.output.print_result(text, record_fields(record))
    if is_empty:
        prefix = f" that begins with {arguments.prefix!r}" if arguments.prefix else ""
        after = f" after {arguments.after!r}" if arguments.after else ""
        print_error(f"{arguments.topic} has no live key{prefix}{after}")
    return EXIT_OK
