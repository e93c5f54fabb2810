"""`eddyline kv get`: a bucket's key as the topics that copy the bucket have it, with NATS's revision and time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.commands.data.get import add_raw, raw_contradiction, value_text
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.terminal.output import Json, print_error, record_fields

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers

_LIVE: Final = "LIVE"
_MORE: Final = """

Read from the store, not from NATS: a source that copies the bucket must be there. One that is behind or stopped is
reported on stderr. Of several that have the key the one with the highest revision is shown. Exit code 1 if the key is
not live.

JSON (-o json): bucket, source, topic, revision (NATS's), time_ns (NATS's, since the Unix epoch), source_state, and the
record as `eddyline get` has it."""


def add(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "get",
        what="Show a key's value as the topics that copy the bucket have it.",
        example="eddyline kv get certs a.example.org\neddyline kv get certs a.example.org --raw > a.pem",
        run=get,
        more=_MORE,
    )
    parser.set_defaults(contradiction=raw_contradiction)
    parser.add_argument("bucket", metavar="BUCKET", help="NATS KV bucket")
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("--source", default="", metavar="NAME", help="the copy of this source (default: any)")
    add_raw(parser)


async def get(arguments: argparse.Namespace, context: Context) -> int:
    bucket, key = arguments.bucket, os.fsencode(arguments.key)
    async with connected(arguments, context) as client:
        sources = [
            source
            for source in await client.sources.list()
            if source.definition.bucket == bucket and arguments.source in ("", source.definition.name)
        ]
        if not sources:
            which = f"no source {arguments.source}" if arguments.source else "no source"
            raise CommandError(
                f"BUCKET_NOT_COPIED: {which} copies bucket {bucket}",
                f"list them with `eddyline source list`, make one with `eddyline source create NAME --bucket {bucket}`",
            )
        pages = [await client.get_many(source.definition.topic, [key]) for source in sources]
    for source in sources:
        if source.status != _LIVE or source.lag:
            behind = f", {source.lag} revisions behind" if source.lag else ""
            print_error(
                f"source {source.definition.name} is {source.status}{behind}: the bucket may have a newer value"
            )
    found = [
        (int.from_bytes(record.version, "big"), record, source)
        for page, source in zip(pages, sources, strict=True)
        for record in page.entries
        if record is not None
    ]
    if not found:
        topics = ", ".join(source.definition.topic for source in sources)
        advice = "`eddyline ls TOPIC` lists keys"
        print_error(f"KEY_NOT_FOUND: {arguments.key!r} of bucket {bucket} has no value in {topics} ({advice})")
        return EXIT_FAILED
    revision, record, source = max(found, key=lambda one: one[0])
    if arguments.raw:
        context.output.raw(record.data or b"")
        return EXIT_OK
    fields: dict[str, Json] = {
        "bucket": bucket,
        "source": source.definition.name,
        "topic": source.definition.topic,
        "revision": revision,
        "time_ns": record.source_ts_ns,
        "source_state": source.status,
    }
    context.output.print_result(value_text(record.data), fields | record_fields(record))
    return EXIT_OK
