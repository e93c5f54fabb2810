"""`eddyline source`: what ingest copies from NATS: create, get, list, pause, resume, resync, delete, compare."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_group, add_verb, connected, whole_number
from eddyline.cli.commands.sources import source_update
from eddyline.cli.commands.sources.difference import example_lines, listed
from eddyline.cli.commands.sources.source_fields import source_fields
from eddyline.cli.commands.sources.source_page import page, state_text, warning_text
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.cli.terminal.confirm import add_yes, confirm
from eddyline.cli.terminal.output import Json, print_error, put_bytes
from eddyline.cli.terminal.units import pluralize
from eddyline.core.errors import EddylineError, SourceNotFound
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.admin.sources import Comparison, Source
    from eddyline.client.connect import Client

_HEADER = ("NAME", "ORIGIN", "TOPIC", "STATE", "POSITION", "LAST", "LAG", "GAPS", "HOLDER", "NOTE")

_NOT_LOOKED_AT: Final = ("", "UNSPECIFIED", "CONNECTING")

LOOK_S_MAX: Final = 1.0
"""For a state to show after a create: a lease is taken at once, and NATS's answer is a round trip."""
LOOK_INTERVAL_S: Final = 0.05
SETTLE_MS_MAX: Final = 60_000
DIFFERENCES_MAX: Final = 10_000


_CREATE: Final = """

--key-prefix and --subject widen each other: a message is copied where any one of them matches, and every message where
none is given. A bucket or stream that NATS does not have yet is copied as soon as it has."""


_LIST: Final = """

GAPS are those since the store started. NOTE is the reason of a stop or a trouble, else how far the first copy is, else what
may be lost; `eddyline source get NAME` has all of it. While no ingest answers, the stores say what was reported last."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(subparsers, "source", what="Manage sources: copies of NATS buckets and streams into topics.")
    parser = add_verb(
        verbs,
        "create",
        what="Copy a KV bucket into a KV topic, or a stream into a LOG topic. Missing topics are created.",
        example="eddyline source create certs --bucket certs --key-prefix prod. --on-recreated resync",
        run=create,
        more=_CREATE,
    )
    _add_definition(parser)
    source_update.add(verbs)
    parser = add_verb(verbs, "get", what="Show a source.", example="eddyline source get certs", run=get)
    parser.add_argument("name", metavar="NAME")
    add_verb(
        verbs,
        "list",
        what="List sources.",
        example="eddyline source list -o json",
        run=list_sources,
        more=_LIST,
    )
    for name, run, what in (
        ("pause", pause, "Copy nothing until the source is resumed, over restarts too."),
        ("resume", resume, "Go on copying where the source was paused."),
        (
            "resync",
            resync,
            "Make a topic equal to its bucket or stream as it is now, for any reason of a stop.",
        ),
    ):
        parser = add_verb(verbs, name, what=what, example=f"eddyline source {name} certs", run=run)
        parser.add_argument("name", metavar="NAME")
    parser = add_verb(
        verbs,
        "delete",
        what="Stop copying and forget the source; its topic stays.",
        example="eddyline source delete certs",
        run=delete,
    )
    parser.add_argument("name", metavar="NAME")
    add_yes(parser)
    parser = add_verb(
        verbs,
        "compare",
        what="Compare fold and bucket, key by key; exit code 1 if they differ.",
        example="eddyline source compare certs",
        run=compare,
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--settle-ms", type=_settle_ms, default=0, metavar="MS", help="time for changes under way (default: 5000)"
    )
    parser.add_argument(
        "--limit", type=_differences, default=0, metavar="N", help="most differences to list (default: 10, of JSON 100)"
    )


def _add_definition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--bucket", default="", metavar="BUCKET", help="NATS KV bucket (default: NAME)")
    origin.add_argument("--stream", default="", metavar="STREAM", help="JetStream stream instead of a bucket")
    parser.add_argument("--topic", default="", metavar="TOPIC", help="topic to write (default: NAME)")
    parser.add_argument(
        "--key-prefix", action="append", default=[], metavar="TEXT", help="copy only keys that begin so (repeatable)"
    )
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="SUBJECT",
        help="copy only these keys or subjects, with `*` and `>` as NATS has them (repeatable)",
    )
    for policy, default, when in (
        ("--on-expired", "resync", "messages left, or were overwritten, before they were read"),
        ("--on-recreated", "stop", "the bucket or stream was deleted and made again"),
    ):
        parser.add_argument(
            policy, choices=("resync", "stop"), default=default, help=f"what to do where {when} (default: {default})"
        )
    parser.add_argument(
        "--dead-letter-topic",
        default="",
        metavar="TOPIC",
        help="LOG topic for messages that fit into no record (default: such a message stops the source)",
    )


def _settle_ms(text: str) -> int:
    return whole_number(text, 0, SETTLE_MS_MAX)


def _differences(text: str) -> int:
    return whole_number(text, 1, DIFFERENCES_MAX)


async def create(arguments: argparse.Namespace, context: Context) -> int:
    """Create a source."""
    async with connected(arguments, context) as client:
        # The contract answers an equal definition as done, and does not tell which it was.
        was_there = await _exists(client, arguments.name)
        source = await client.sources.create(
            arguments.name,
            bucket="" if arguments.stream else arguments.bucket or arguments.name,
            stream=arguments.stream,
            topic=arguments.topic,
            key_prefixes=[os.fsencode(prefix) for prefix in arguments.key_prefix],
            subjects=arguments.subject,
            on_expired=arguments.on_expired.upper(),
            on_recreated=arguments.on_recreated.upper(),
            dead_letter_topic=arguments.dead_letter_topic,
        )
        looked_at = await _looked_at(client, source, context)
    # What ingest saw at the call holds until the source's holder has looked.
    warnings = looked_at.detail.warnings or source.detail.warnings
    source = replace(looked_at, detail=replace(looked_at.detail, warnings=warnings))
    definition = source.definition
    what = f"{definition.origin} to topic {definition.topic}"
    text = f"{definition.name} exists already, unchanged: {what}" if was_there else f"created {definition.name}: {what}"
    text += "".join(f"\n  warning: {warning}" for warning in warnings)
    context.output.print_result(text, {**source_fields(source), "created": not was_there})
    if source.status == "SOURCE_LOST" and not context.output.is_json:
        waits = source.reason.startswith("NATS has no")
        print_error(f"{source.reason} yet: copying starts once it exists" if waits else source.reason)
    return EXIT_OK


async def _looked_at(client: Client, source: Source, context: Context) -> Source:
    """The source once somebody has looked whether it can be copied, or as it is where that takes long."""
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            while source.status in _NOT_LOOKED_AT:
                await sleep(context.clock, LOOK_INTERVAL_S)
                source = await client.sources.get(source.definition.name)
    except (EddylineError, TimeoutError):
        pass  # it is made, and that was asked
    return source


async def get(arguments: argparse.Namespace, context: Context) -> int:
    """Show a source."""
    async with connected(arguments, context) as client:
        source = await client.sources.get(arguments.name)
    context.output.print_result(page(source), source_fields(source))
    return EXIT_OK


async def list_sources(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context) as client:
        sources, warnings = await client.sources.listing()
    for warning in warnings:
        print_error(warning)
    if not sources:
        context.output.print_text("no sources; make one with `eddyline source create NAME --bucket BUCKET`")
    context.output.table(_HEADER, [_row(source) for source in sources], [source_fields(source) for source in sources])
    return EXIT_OK


async def pause(arguments: argparse.Namespace, context: Context) -> int:
    """Pause a source."""
    async with connected(arguments, context) as client:
        source = await client.sources.pause(arguments.name)
    context.output.print_result(
        f"paused {arguments.name} at revision {source.position_revision}", source_fields(source)
    )
    return EXIT_OK


async def resume(arguments: argparse.Namespace, context: Context) -> int:
    """Resume a source."""
    async with connected(arguments, context) as client:
        was_paused = (await client.sources.get(arguments.name)).paused
        source = await client.sources.resume(arguments.name)
    text = f"resumed {arguments.name} at revision {source.position_revision}"
    if not was_paused:
        text = f"{arguments.name} was not paused; it is {source.status}" + (
            f": {source.reason}" if source.reason else ""
        )
    context.output.print_result(text, source_fields(source))
    return EXIT_OK


async def resync(arguments: argparse.Namespace, context: Context) -> int:
    """Ask for a resync."""
    async with connected(arguments, context) as client:
        source = await client.sources.resync(arguments.name)
    text = f"{arguments.name} resyncs; `eddyline source get {arguments.name}` shows when it is done"
    context.output.print_result(text, source_fields(source))
    return EXIT_OK


async def delete(arguments: argparse.Namespace, context: Context) -> int:
    """Delete a source."""
    question = f"forget source {arguments.name}? Its topic stays, and takes no other source while it has records."
    await confirm(question, arguments)
    async with connected(arguments, context) as client:
        warnings = await client.sources.delete(arguments.name)
    context.output.print_result(
        f"deleted {arguments.name}", {"name": arguments.name, "deleted": True, "warnings": list(warnings)}
    )
    if not context.output.is_json:
        for warning in warnings:
            print_error(warning)
    return EXIT_OK


async def compare(arguments: argparse.Namespace, context: Context) -> int:
    """Compare fold and bucket."""
    async with connected(arguments, context) as client:
        limit = listed(arguments.limit, is_json=context.output.is_json)
        result = await client.sources.compare(arguments.name, settle_ms=arguments.settle_ms, limit=limit)
    context.output.print_result(comparison_text(arguments.name, result), _comparison_fields(arguments.name, result))
    return EXIT_OK if result.equal else EXIT_FAILED


async def _exists(client: Client, name: str) -> bool:
    try:
        await client.sources.get(name)
    except SourceNotFound:
        return False
    return True


def comparison_text(name: str, result: Comparison) -> str:
    """A comparison for people."""
    verdict = "equal" if result.equal else _differ(result.difference_count)
    counts = (
        f"bucket {pluralize(result.bucket_count, 'key')}, fold {pluralize(result.fold_count, 'key')}, "
        f"at revision {result.position_revision}"
    )
    if result.dead_letter_count:
        verdict += f", {result.dead_letter_count} more are dead letters"
    lines = [f"{name}: {verdict} ({counts})"]
    lines += example_lines(result.differences, result.difference_count + result.dead_letter_count)
    return "\n".join(lines)


def _differ(count: int) -> str:
    return f"{pluralize(count, 'key')} {'differs' if count == 1 else 'differ'}"


def _comparison_fields(name: str, result: Comparison) -> dict[str, Json]:
    differences: list[Json] = []
    for difference in result.differences:
        fields: dict[str, Json] = {"kind": difference.kind}
        put_bytes(fields, "key", difference.key)
        fields["bucket_revision"] = difference.bucket_revision
        fields["fold_revision"] = difference.fold_revision
        differences.append(fields)
    return {
        "name": name,
        "equal": result.equal,
        "bucket_count": result.bucket_count,
        "fold_count": result.fold_count,
        "difference_count": result.difference_count,
        "dead_letter_count": result.dead_letter_count,
        "position_revision": result.position_revision,
        "differences": differences,
    }


def _row(source: Source) -> tuple[str, ...]:
    definition = source.definition
    return (
        definition.name,
        definition.origin,
        definition.topic,
        state_text(source),
        str(source.position_revision),
        str(source.last_revision),
        str(source.lag),
        str(source.gap_count),
        source.holder or "-",
        warning_text(source) or "-",
    )
