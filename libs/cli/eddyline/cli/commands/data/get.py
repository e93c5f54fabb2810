"""`eddyline get`: values by key, as they are or as they were."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from eddyline.cli.command import add_verb, connected, count
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.cli.terminal.output import print_error, record_fields
from eddyline.cli.terminal.units import commit_time_ns
from eddyline.core.model.read import EntryPage
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.connect import Client


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "get",
        what="Show the live values of keys of a KV topic, or those of a point that is past; exit code 1 if one is not live.",
        example="eddyline get routes co.uk\neddyline get certs KEY -o json\n"
        "eddyline get prices BTC --at-time 2026-11-28T09:30:00Z\n"
        "eddyline get images logo --raw > logo.png",
        run=run,
    )
    parser.set_defaults(contradiction=contradiction)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("keys", metavar="KEY", nargs="+")
    parser.set_defaults(repeatable="keys")
    parser.add_argument("--min-seq", type=count, default=0, metavar="SEQ", help="wait until the fold contains this seq")
    add_raw(parser)
    point = parser.add_mutually_exclusive_group()
    point.add_argument("--at-seq", type=count, metavar="SEQ", help="as they were after this record")
    point.add_argument(
        "--at-time",
        type=commit_time_ns,
        metavar="TIME",
        help="as they were then: RFC 3339, or ms since the Unix epoch",
    )


def contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction among the arguments; empty = none."""
    if trouble := raw_contradiction(arguments):
        return trouble
    past = arguments.at_seq is not None or arguments.at_time is not None
    return "--min-seq does not go with --at-seq or --at-time: give one of them" if past and arguments.min_seq else ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context, topic=arguments.topic) as client:
        keys = [os.fsencode(key) for key in arguments.keys]
        page = await _page(client, arguments, keys)
    missing = 0
    past = arguments.at_seq is not None or arguments.at_time is not None
    verb, when = ("had", f" after record {page.state.fold_seq}") if past else ("has", "")
    for key, record in zip(arguments.keys, page.entries, strict=True):
        if record is None:
            missing += 1
            advice = shlex.join(["eddyline", *(("history", arguments.topic, key) if past else ("ls", arguments.topic))])
            lists = "prints its revisions" if past else "lists keys"
            print_error(f"KEY_NOT_FOUND: {arguments.topic} {verb} no value for key {key!r}{when} (`{advice}` {lists})")
            continue
        if arguments.raw:
            context.output.raw(record.data or b"")
            continue
        value = value_text(record.data)
        text = value if len(keys) == 1 else f"{printable(os.fsencode(key))}  {value}"
        fields = record_fields(record)
        fields["fold_seq"] = page.state.fold_seq
        context.output.print_result(text, fields)
    return EXIT_FAILED if missing else EXIT_OK


async def _page(client: Client, arguments: argparse.Namespace, keys: list[bytes]) -> EntryPage:
    """The keys' entries at one point. A point that is past is the same for every call."""
    topic, at_seq = arguments.topic, arguments.at_seq
    if at_seq is None and arguments.at_time is None:
        return await client.get_many(topic, keys, min_seq=arguments.min_seq)
    at_time_ms = None if arguments.at_time is None else arguments.at_time // 1_000_000
    pages = [await client.get_at(topic, key, at_seq=at_seq, at_time_ms=at_time_ms) for key in keys]
    return EntryPage(pages[-1].state, tuple(page.entries[0] for page in pages))


def add_raw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", action="store_true", help="write the value's bytes as they are, with no line end; of one KEY"
    )


def raw_contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction between --raw and other arguments; empty = none."""
    if not arguments.raw:
        return ""
    if arguments.output == "json":
        return "--raw writes bytes, -o json objects: give one of them"
    return "--raw writes one value: give one KEY" if len(getattr(arguments, "keys", ())) > 1 else ""


def value_text(data: bytes | None) -> str:
    """A value for people. One of several lines is shown as it is, where it is text."""
    if data is None or b"\n" not in data:
        return printable(data)
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        return printable(data)
