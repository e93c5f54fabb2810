"""`eddyline delete`: records of a topic, by place, key or tag, for good."""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected, limit
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.confirm import add_yes, confirm
from eddyline.cli.terminal.progress import ProgressReporter
from eddyline.cli.terminal.units import pluralize
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import Kind
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.connect import Client
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.records.match import Match
    from eddyline.core.records.record import Record

_EXAMPLE: Final = """
eddyline delete access --before 5000
eddyline delete prices --key BTC --yes
eddyline delete access --tag-prefix user:17: --before 9000 --dry-run"""
_MORE: Final = """

Deletes records for good, and reports no gap; with a bound and a match, those of which both is true. Records that come later
are not touched. On a KV topic --before alone trims the log and leaves the live values; --key and --key-prefix erase the
keys' revisions with their live values, also those whose records were evicted, which are not counted; tags are matched on
logs only. The bytes leave the disk within the store's erase_within_h, or at once by `eddyline topic erase TOPIC`.

--dry-run deletes nothing and counts what the same delete would take now: it reads the records that match, or the whole topic
for --tag-prefix. For --before alone it says the bound without reading.

JSON (-o json): topic, deleted_count, earliest_seq, head_seq, epoch; of --dry-run topic, dry_run, would_delete_count,
is_exact (false = at most so many), earliest_seq, head_seq, epoch."""
_MATCHES: Final = {
    "key": ("KEY", "EQ"),
    "key_prefix": ("KEY", "PREFIX"),
    "tag": ("TAG", "EQ"),
    "tag_prefix": ("TAG", "PREFIX"),
}
"""By the arguments' names: members of MatchField and MatchKind."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "delete",
        what="Delete records of a topic, by place, key or tag; asks first on a terminal.",
        example=_EXAMPLE,
        run=run,
        more=_MORE,
    )
    parser.set_defaults(contradiction=contradiction)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--before", type=limit, default=0, metavar="SEQ", help="only below it (default: up to the head)"
    )
    match = parser.add_mutually_exclusive_group()
    match.add_argument("--key", help="only of this key")
    match.add_argument("--key-prefix", metavar="PREFIX", help="only of keys that start so; '' = any key")
    match.add_argument("--tag", help="only with this tag")
    match.add_argument("--tag-prefix", metavar="PREFIX", help="only with tags that start so; '' = any tag")
    parser.add_argument(
        "--dry-run", action="store_true", help="delete nothing, print how many records would be deleted"
    )
    add_yes(parser)


def contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction among the arguments; empty = none."""
    if not arguments.before and not any(getattr(arguments, name) is not None for name in _MATCHES):
        return "give what to delete: --before, --key, --key-prefix, --tag or --tag-prefix"
    if arguments.key == "" or arguments.tag == "":
        return "no record has an empty key or tag; --key-prefix '' is every record with a key"
    return ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    name, match = arguments.topic, _match_of(arguments)
    async with connected(arguments, context, topic=arguments.topic) as client:
        topic = await client.get_topic(name)
        if arguments.dry_run:
            return await _dry_run(client, topic, arguments.before, match, context)
        question = (
            f"delete {_what(arguments.before, match)} from {name}, {topic.kind.name}, "
            f"{pluralize(topic.record_count, 'record')}, {topic.earliest_seq} to {topic.head_seq}?"
        )
        await confirm(question, arguments)
        # Of the topic that was asked about, not of one made anew meanwhile.
        result = await client.delete_records(name, before_seq=arguments.before, match=match, epoch=topic.epoch)
    records = f"{pluralize(result.deleted_count, 'record')} of {name}"
    if topic.kind is Kind.KV and match is not None:
        # The count is of the log alone, and a live value outlives its record where that is evicted.
        records += ", and what live values matched"
    left = "its log" if topic.kind is Kind.KV else "it"
    context.output.print_result(
        f"deleted {records}; {left} now has {result.earliest_seq} to {result.head_seq}"
        if result.earliest_seq <= result.head_seq
        else f"deleted {records}; {left} is empty now, its head is {result.head_seq}",
        {
            "topic": name,
            "deleted_count": result.deleted_count,
            "earliest_seq": result.earliest_seq,
            "head_seq": result.head_seq,
            "epoch": result.epoch,
        },
    )
    return EXIT_OK


async def _dry_run(client: Client, topic: TopicInfo, before: int, match: Match | None, context: Context) -> int:
    """Say what a delete would take; nothing is changed, whatever the store's version."""
    end_seq = min(before or topic.head_seq + 1, topic.head_seq + 1)
    is_exact = match is not None or end_seq > topic.head_seq
    count = min(topic.record_count, max(end_seq - topic.earliest_seq, 0))
    if match is not None:
        count = await _count(client, topic, end_seq, match, ProgressReporter(context.clock))
    records = f"{'' if is_exact else 'at most '}{pluralize(count, 'record')} of {topic.name}"
    if topic.kind is Kind.KV and match is not None:
        records += ", and what live values match"
    context.output.print_result(
        f"would delete {records}; nothing was deleted",
        {
            "topic": topic.name,
            "dry_run": True,
            "would_delete_count": count,
            "is_exact": is_exact,
            "earliest_seq": topic.earliest_seq,
            "head_seq": topic.head_seq,
            "epoch": topic.epoch,
        },
    )
    return EXIT_OK


async def _count(client: Client, topic: TopicInfo, end_seq: int, match: Match, progress: ProgressReporter) -> int:
    """How many live records below `end_seq` match.

    Raises:
        InvalidArgument: tags on a KV topic, which the delete refuses too.
    """
    from eddyline.client.watch.events import Position, Records
    from eddyline.core.model.read import RecordFilter

    by_key = match.field.name == "KEY"
    if topic.kind is Kind.KV and not by_key:
        raise InvalidArgument("tags are matched on LOG topics only", field="match.field")
    if not topic.record_count or end_seq <= topic.earliest_seq:
        return 0
    keys = (match.value,) if by_key and match.value else ()
    tags = () if by_key or match.kind.name == "PREFIX" else (match.value.decode(errors="replace"),)
    stream = client.stream(
        topic.name,
        after=Position(topic.epoch, topic.earliest_seq - 1),
        end_seq=end_seq,
        record_filter=RecordFilter(key_prefixes=keys, tags=tags),
    )
    count = 0
    async with aclosing(stream) as events:
        async for event in events:
            if isinstance(event, Records):
                count += sum(match.covers(record.key if by_key else _tag_bytes(record)) for record in event.records)
                progress.tell(f"counting: {pluralize(count, 'record')} so far")
    return count


def _tag_bytes(record: Record) -> bytes | None:
    return None if record.tag is None else record.tag.encode()


def _match_of(arguments: argparse.Namespace) -> Match | None:
    # Here, because a match is applied with numpy, which the store alone does.
    from eddyline.core.records.match import Match, MatchField, MatchKind

    for name, (field, kind) in _MATCHES.items():
        value: str | None = getattr(arguments, name)
        if value is not None:
            return Match(MatchField[field], MatchKind[kind], os.fsencode(value))
    return None


def _what(before_seq: int, match: Match | None) -> str:
    below = f" below {before_seq}" if before_seq else ""
    if match is None:
        return f"all{below}"
    how = "is" if match.kind.name == "EQ" else "starts with"
    return f"what{below} has a {match.field.name.lower()} that {how} '{printable(match.value)}'"
