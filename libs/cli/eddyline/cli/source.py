"""`eddyline source`: what ingest copies from NATS: create, get, list, delete, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import EXIT_FAILED, EXIT_OK
from eddyline.cli.output import Json, put_bytes, shown_bytes
from eddyline.cli.verb import add_group, add_verb, connected, whole_number
from eddyline.core.errors import SourceNotFound

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.connect import Client
    from eddyline.client.sources import Comparison, Source

_HEADER = ("NAME", "BUCKET", "TOPIC", "STATE", "POSITION", "LAST", "LAG", "HOLDER", "REASON")

SETTLE_MS_MAX: Final = 60_000
DIFFERENCES_MAX: Final = 10_000


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    verbs = add_group(subparsers, "source", what="Manage sources: NATS KV buckets that are copied into KV topics.")
    parser = add_verb(
        verbs,
        "create",
        what="Copy a KV bucket into a KV topic, which is made if missing.",
        example="eddyline source create certs --bucket certs",
        run=create,
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--bucket", default="", metavar="BUCKET", help="NATS KV bucket (default: NAME)")
    parser.add_argument("--topic", default="", metavar="TOPIC", help="topic to write (default: NAME)")
    parser = add_verb(verbs, "get", what="Show a source.", example="eddyline source get certs", run=get)
    parser.add_argument("name", metavar="NAME")
    add_verb(verbs, "list", what="List sources.", example="eddyline source list -o json", run=list_sources)
    parser = add_verb(
        verbs,
        "delete",
        what="Stop copying and forget the source; its topic stays.",
        example="eddyline source delete certs",
        run=delete,
    )
    parser.add_argument("name", metavar="NAME")
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
        "--limit", type=_differences, default=0, metavar="N", help="most differences to list (default: 100)"
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
            arguments.name, bucket=arguments.bucket or arguments.name, topic=arguments.topic
        )
    definition = source.definition
    what = f"bucket {definition.bucket} to topic {definition.topic}"
    text = f"{definition.name} exists already, unchanged: {what}" if was_there else f"created {definition.name}: {what}"
    context.output.say(text, {**source_fields(source), "created": not was_there})
    return EXIT_OK


async def get(arguments: argparse.Namespace, context: Context) -> int:
    """Show a source."""
    async with connected(arguments, context) as client:
        source = await client.sources.get(arguments.name)
    fields = source_fields(source)
    context.output.say("\n".join(f"{name}: {value}" for name, value in fields.items()), fields)
    return EXIT_OK


async def list_sources(arguments: argparse.Namespace, context: Context) -> int:
    """List sources."""
    async with connected(arguments, context) as client:
        sources = await client.sources.list()
    if not sources:
        context.output.say_text("no sources; make one with `eddyline source create NAME --bucket BUCKET`")
    context.output.table(_HEADER, [_row(source) for source in sources], [source_fields(source) for source in sources])
    return EXIT_OK


async def delete(arguments: argparse.Namespace, context: Context) -> int:
    """Delete a source."""
    async with connected(arguments, context) as client:
        await client.sources.delete(arguments.name)
    context.output.say(f"deleted {arguments.name}", {"name": arguments.name, "deleted": True})
    return EXIT_OK


async def compare(arguments: argparse.Namespace, context: Context) -> int:
    """Compare fold and bucket."""
    async with connected(arguments, context) as client:
        result = await client.sources.compare(arguments.name, settle_ms=arguments.settle_ms, limit=arguments.limit)
    context.output.say(comparison_text(arguments.name, result), _comparison_fields(arguments.name, result))
    return EXIT_OK if result.equal else EXIT_FAILED


async def _exists(client: Client, name: str) -> bool:
    try:
        await client.sources.get(name)
    except SourceNotFound:
        return False
    return True


def source_fields(source: Source) -> dict[str, Json]:
    """A source as a JSON object."""
    return {
        "name": source.definition.name,
        "bucket": source.definition.bucket,
        "topic": source.definition.topic,
        "state": source.status,
        "reason": source.reason,
        "position_revision": source.position_revision,
        "last_revision": source.last_revision,
        "lag": source.lag,
        "holder": source.holder,
        "reported_ms": source.reported_ms,
        "head_seq": source.head_seq,
    }


def comparison_text(name: str, result: Comparison) -> str:
    """A comparison for people."""
    verdict = "equal" if result.equal else f"{result.difference_count} keys differ"
    counts = f"bucket {result.bucket_count} keys, fold {result.fold_count}, at revision {result.position_revision}"
    lines = [f"{name}: {verdict} ({counts})"]
    for difference in result.differences:
        revisions = f"bucket {difference.bucket_revision}, fold {difference.fold_revision}"
        lines.append(f"  {difference.kind:<8} {shown_bytes(difference.key)}  {revisions}")
    return "\n".join(lines)


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
        "position_revision": result.position_revision,
        "differences": differences,
    }


def _row(source: Source) -> tuple[str, ...]:
    definition = source.definition
    return (
        definition.name,
        definition.bucket,
        definition.topic,
        source.status,
        str(source.position_revision),
        str(source.last_revision),
        str(source.lag),
        source.holder or "-",
        source.reason or "-",
    )
