"""`eddyline source update`: change what a source does by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.commands.sources.source_fields import source_fields
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.terminal.output import print_error

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.core.model.source import Policy, SourceDefinition

_MORE: Final = """

Topic, bucket, stream and filters are settled when a source is made: delete the source (its topic stays), and make another
one with a topic of its own. Where a sources file names the source, change it there too: the next start of ingest sets
what the file says.
"""


def add(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "update",
        what="Change a source's policies; options that are not given keep their values. A stopped source resumes if the new "
        "policies allow it.",
        example="eddyline source update certs --dead-letter-topic misfits\n"
        "eddyline source update certs --on-expired stop --no-dead-letter-topic",
        run=update,
        more=_MORE,
    )
    parser.set_defaults(contradiction=_changes_nothing)
    parser.add_argument("name", metavar="NAME")
    for policy, when in (
        ("--on-expired", "messages left, or were overwritten, before they were read"),
        ("--on-recreated", "the bucket or stream was deleted and made again"),
    ):
        parser.add_argument(policy, choices=("resync", "stop"), help=f"what to do where {when}")
    letters = parser.add_mutually_exclusive_group()
    letters.add_argument(
        "--dead-letter-topic",
        metavar="TOPIC",
        help="LOG topic for messages that fit into no record; created if it is missing",
    )
    letters.add_argument(
        "--no-dead-letter-topic", action="store_true", help="a message that fits into no record stops the source"
    )


def _changes_nothing(arguments: argparse.Namespace) -> str:
    if arguments.dead_letter_topic == "":
        return "the topic's name is empty; --no-dead-letter-topic removes the topic"
    changes = arguments.on_expired, arguments.on_recreated, arguments.dead_letter_topic
    return "" if any(changes) or arguments.no_dead_letter_topic else "give a setting to change"


async def update(arguments: argparse.Namespace, context: Context) -> int:
    """Change a source."""
    async with connected(arguments, context) as client:
        source = await client.sources.update(
            arguments.name,
            on_expired=_policy(arguments.on_expired),
            on_recreated=_policy(arguments.on_recreated),
            dead_letter_topic="" if arguments.no_dead_letter_topic else arguments.dead_letter_topic,
        )
    context.output.print_result(f"updated {arguments.name}: {_settings_text(source.definition)}", source_fields(source))
    if source.detail.file_drift and not context.output.is_json:
        print_error(source.detail.file_drift)
    return EXIT_OK


def _policy(choice: str | None) -> Policy | None:
    if choice is None:
        return None
    return "STOP" if choice == "stop" else "RESYNC"


def _settings_text(definition: SourceDefinition) -> str:
    """A source's policies, as text."""
    misfits = f"go to topic {definition.dead_letter_topic}" if definition.dead_letter_topic else "stop it"
    return (
        f"on-expired {definition.on_expired.lower()}, on-recreated {definition.on_recreated.lower()}, "
        f"messages that fit into no record {misfits}"
    )
