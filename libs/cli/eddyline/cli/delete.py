"""`eddyline delete`: records of a topic, by place, key or tag, for good."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from eddyline.cli.confirm import add_yes, confirm
from eddyline.cli.failure import EXIT_OK
from eddyline.cli.quantity import counted
from eddyline.cli.verb import add_verb, connected, limit
from eddyline.core.shown import shown_bytes
from eddyline.core.topic import Kind

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.core.match import Match

_EXAMPLE: Final = """
eddyline delete access --before 5000
eddyline delete prices --key BTC --yes
eddyline delete access --tag-prefix user:17: --before 9000"""
_MORE: Final = """

Deletes records for good, and tells no gap; with a bound and a match, those of which both is true. Records that come later
are not touched. On a KV topic --before alone trims the log and leaves the live values; --key and --key-prefix erase the
keys' revisions with their live values, also those whose records were evicted, which are not counted; tags are matched on
logs only. The bytes leave the disk within the store's erase_within_h, or at once by `eddyline topic erase TOPIC`.

JSON (-o json): topic, deleted_count, earliest_seq, head_seq, epoch."""
_MATCHES: Final = {
    "key": ("KEY", "EQ"),
    "key_prefix": ("KEY", "PREFIX"),
    "tag": ("TAG", "EQ"),
    "tag_prefix": ("TAG", "PREFIX"),
}
"""By the arguments' names: members of MatchField and MatchKind."""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
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
    add_yes(parser)


def contradiction(arguments: argparse.Namespace) -> str:
    """What the arguments say against each other; empty = nothing."""
    if not arguments.before and not any(getattr(arguments, name) is not None for name in _MATCHES):
        return "say what to delete: --before, --key, --key-prefix, --tag or --tag-prefix"
    if arguments.key == "" or arguments.tag == "":
        return "no record has an empty key or tag; --key-prefix '' is every record with a key"
    return ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Delete."""
    name, match = arguments.topic, _match_of(arguments)
    async with connected(arguments, context, topic=arguments.topic) as client:
        topic = await client.get_topic(name)
        question = (
            f"delete {_what(arguments.before, match)} from {name}, {topic.kind.name}, "
            f"{counted(topic.record_count, 'record')}, {topic.earliest_seq} to {topic.head_seq}?"
        )
        await confirm(question, arguments)
        # Of the topic that was asked about, not of one made anew meanwhile.
        result = await client.delete_records(name, before_seq=arguments.before, match=match, epoch=topic.epoch)
    records = f"{counted(result.deleted_count, 'record')} of {name}"
    if topic.kind is Kind.KV and match is not None:
        # The count is of the log alone, and a live value outlives its record where that is evicted.
        records += ", and what live values matched"
    left = "its log" if topic.kind is Kind.KV else "it"
    context.output.say(
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


def _match_of(arguments: argparse.Namespace) -> Match | None:
    # Here, because a match is applied with numpy, which the store alone does.
    from eddyline.core.match import Match, MatchField, MatchKind

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
    return f"what{below} has a {match.field.name.lower()} that {how} '{shown_bytes(match.value)}'"
