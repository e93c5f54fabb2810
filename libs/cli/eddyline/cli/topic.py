"""`eddyline topic`: create, get, list, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.failure import EXIT_OK
from eddyline.cli.output import Json, shown_time
from eddyline.cli.verb import add_group, add_verb, connected, count
from eddyline.core.topic import IDEMPOTENCY_WINDOW_MS_DEFAULT, Durability, Kind, TopicConfig

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.core.topic import TopicInfo

_HEADER = ("NAME", "KIND", "DURABILITY", "RECORDS TO", "SOURCE", "CREATED")


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    verbs = add_group(subparsers, "topic", what="Create, look at, list and delete topics.")
    parser = add_verb(
        verbs, "create", what="Create a topic.", example="eddyline topic create prices --kind kv", run=create
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--kind",
        type=str.lower,
        choices=("log", "kv"),
        default="log",
        help="kv = a live value per key (default: log)",
    )
    parser.add_argument(
        "--durability",
        type=str.lower,
        choices=("disk", "fsync"),
        default="disk",
        help="acknowledge when the kernel has it, or when the disk has it (default: disk)",
    )
    parser.add_argument(
        "--idempotency-window-ms",
        type=count,
        default=IDEMPOTENCY_WINDOW_MS_DEFAULT,
        metavar="MS",
        help="how long idempotency keys are remembered (default: 120000)",
    )
    parser = add_verb(verbs, "get", what="Show a topic.", example="eddyline topic get prices -o json", run=get)
    parser.add_argument("name", metavar="NAME")
    parser = add_verb(verbs, "list", what="List topics by name.", example="eddyline topic list pri", run=list_topics)
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start so")
    parser = add_verb(
        verbs, "delete", what="Delete a topic with all it has.", example="eddyline topic delete prices", run=delete
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--if-empty", action="store_true", help="only if it has no records")
    parser.add_argument("--if-epoch", type=count, default=0, metavar="EPOCH", help="only if it is still this one")


async def create(arguments: argparse.Namespace, context: Context) -> int:
    """Create a topic."""
    config = TopicConfig(Durability[arguments.durability.upper()], arguments.idempotency_window_ms)
    async with connected(arguments, context) as client:
        topic = await client.create_topic(arguments.name, Kind[arguments.kind.upper()], config)
    context.output.say(f"created {topic.name} ({topic.kind.name}, epoch {topic.epoch})", topic_fields(topic))
    return EXIT_OK


async def get(arguments: argparse.Namespace, context: Context) -> int:
    """Show a topic."""
    async with connected(arguments, context) as client:
        topic = await client.get_topic(arguments.name)
    fields = topic_fields(topic)
    context.output.say("\n".join(f"{name}: {value}" for name, value in fields.items()), fields)
    return EXIT_OK


async def list_topics(arguments: argparse.Namespace, context: Context) -> int:
    """List topics."""
    async with connected(arguments, context) as client:
        topics = [topic async for topic in client.list_topics(arguments.prefix)]
    if not topics:
        context.output.say_text("no topics; make one with `eddyline topic create NAME`")
    context.output.table(_HEADER, [_row(topic) for topic in topics], [topic_fields(topic) for topic in topics])
    return EXIT_OK


async def delete(arguments: argparse.Namespace, context: Context) -> int:
    """Delete a topic."""
    async with connected(arguments, context) as client:
        epoch = await client.delete_topic(arguments.name, if_epoch=arguments.if_epoch, if_empty=arguments.if_empty)
    context.output.say(f"deleted {arguments.name}", {"name": arguments.name, "epoch": epoch, "deleted": True})
    return EXIT_OK


def topic_fields(topic: TopicInfo) -> dict[str, Json]:
    """A topic as a JSON object."""
    return {
        "name": topic.name,
        "kind": topic.kind.name,
        "epoch": topic.epoch,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "durability": topic.config.durability.name,
        "idempotency_window_ms": topic.config.idempotency_window_ms,
        "source": topic.source,
        "create_ts_ms": topic.create_ts_ms,
    }


def _row(topic: TopicInfo) -> tuple[str, ...]:
    durability = topic.config.durability.name
    made = shown_time(topic.create_ts_ms)[:19]
    return (topic.name, topic.kind.name, durability, str(topic.head_seq), topic.source or "-", made)
