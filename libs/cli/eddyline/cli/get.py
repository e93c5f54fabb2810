"""`eddyline get`: live values by key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from eddyline.cli.failure import EXIT_FAILED, EXIT_OK
from eddyline.cli.output import record_fields, shown_bytes
from eddyline.cli.verb import add_verb, connected, count

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "get",
        what="Show the live values of keys of a KV topic; exit code 1 if one is not live.",
        example="eddyline get routes co.uk\neddyline get certs KEY -o json",
        run=run,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("keys", metavar="KEY", nargs="+")
    parser.set_defaults(repeatable="keys")
    parser.add_argument("--min-seq", type=count, default=0, metavar="SEQ", help="wait until the fold has it")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Get."""
    async with connected(arguments, context) as client:
        keys = [key.encode() for key in arguments.keys]
        page = await client.get_many(arguments.topic, keys, min_seq=arguments.min_seq)
    missing = 0
    for key, record in zip(arguments.keys, page.entries, strict=True):
        if record is None:
            missing += 1
            print(f"eddyline: KEY_NOT_FOUND: {key!r} is not live in {arguments.topic}", file=sys.stderr)
            continue
        value = shown_bytes(record.data) if record.data is None or b"\n" not in record.data else _lines(record.data)
        text = value if len(keys) == 1 else f"{key}  {value}"
        fields = record_fields(record)
        fields["fold_seq"] = page.state.fold_seq
        context.output.say(text, fields)
    return EXIT_FAILED if missing else EXIT_OK


def _lines(data: bytes) -> str:
    """A value of several lines is shown as it is, where it is text."""
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        return shown_bytes(data)
