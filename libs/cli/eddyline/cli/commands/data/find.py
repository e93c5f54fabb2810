"""`eddyline find`: where in a topic's log a point in time lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.cli.terminal.units import commit_time_ns, source_time_ns

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers

_EXAMPLE: Final = """
eddyline find access --time 2026-11-28T09:30:00Z
eddyline find access --source-time 2026-11-28T10:30:00.25+01:00 -o json"""
_MORE: Final = """

JSON (-o json): topic, seq (head_seq + 1 where there is none yet), found, head_seq, earliest_seq, epoch."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "find",
        what="Find the first record at or after a time; exit code 1 if the newest one is older.",
        example=_EXAMPLE,
        run=run,
        more=_MORE,
    )
    parser.add_argument("topic", metavar="TOPIC")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument(
        "--time", type=commit_time_ns, metavar="TIME", help="of the append: RFC 3339, or ms since the Unix epoch"
    )
    times.add_argument(
        "--source-time",
        type=source_time_ns,
        metavar="TIME",
        help="at the source, where records have one: RFC 3339, or ns since the Unix epoch",
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    # Up to the next whole millisecond: a record of the one before is older than the time.
    commit_time_ms = None if arguments.time is None else -(-arguments.time // 1_000_000)
    async with connected(arguments, context, topic=arguments.topic) as client:
        found = await client.find_seq(
            arguments.topic, commit_time_ms=commit_time_ms, source_time_ns=arguments.source_time
        )
    has = "has a source time" if commit_time_ms is None else "is"
    text = (
        f"{found.seq}: `eddyline read {arguments.topic} --after {found.seq - 1}` starts with it"
        if found.found
        else f"none yet: no record {has} that late; the next seq is {found.seq}"
    )
    context.output.print_result(
        text,
        {
            "topic": arguments.topic,
            "seq": found.seq,
            "found": found.found,
            "head_seq": found.head_seq,
            "earliest_seq": found.earliest_seq,
            "epoch": found.epoch,
        },
    )
    return EXIT_OK if found.found else EXIT_FAILED
