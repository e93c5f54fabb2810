"""`eddyline append`: values from the command line, or lines or JSON objects from standard input.

Standard input goes through one AppendStream, a line an append, many in flight. A failure says how many lines were
acknowledged, so that the rest can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import EXIT_OK, EXIT_USAGE, CommandError
from eddyline.cli.stdin import stdin_lines
from eddyline.cli.verb import add_verb, connected
from eddyline.core.errors import EddylineError, TopicNotFound
from eddyline.core.record import MetaEntry, Op, Record
from eddyline.core.topic import Kind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.connect import Client

_OPS: Final = {"append": Op.APPEND, "put": Op.PUT, "delete": Op.DELETE, "purge": Op.PURGE}
_EXAMPLE: Final = """
eddyline append greetings hello world --create log
eddyline append prices 42 --key BTC --create kv
tail -f access.log | eddyline append access
eddyline read a -o json | eddyline append b --json"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "append",
        what="Append records: the values given, else a line of standard input each.",
        example=_EXAMPLE,
        run=run,
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("values", metavar="VALUE", nargs="*", help="all of them are one append, all or none")
    parser.set_defaults(repeatable="values")
    parser.add_argument("--key", help="key of the records (KV topics need one)")
    parser.add_argument("--tag", help="label that readers filter by")
    parser.add_argument("--node", help="name of the node that wrote them")
    parser.add_argument("--op", choices=tuple(_OPS), help="default: append on a log, put on a KV topic")
    parser.add_argument("--json", action="store_true", help="lines are objects as `read -o json` prints them")
    parser.add_argument("--create", type=str.lower, choices=("log", "kv"), help="make the topic if it is missing")
    parser.add_argument("--idempotency-key", default="", metavar="KEY", help="makes a repeat of this append harmless")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Append."""
    create = None if arguments.create is None else Kind[arguments.create.upper()]
    async with connected(arguments, context) as client:
        op = _OPS[arguments.op] if arguments.op else await _default_op(client, arguments.topic, create)
        template = Record(
            op=op,
            key=None if arguments.key is None else arguments.key.encode(),
            tag=arguments.tag,
            node=arguments.node,
        )
        if not arguments.values and op in (Op.DELETE, Op.PURGE):
            return await _append_once(client, arguments, context, [template], create)
        if arguments.values:
            records = [template._replace(data=value.encode()) for value in arguments.values]
            return await _append_once(client, arguments, context, records, create)
        if arguments.idempotency_key:
            raise CommandError("--idempotency-key is of one append", "give values", exit_code=EXIT_USAGE)
        return await _append_lines(client, arguments, context, template, create)


async def _default_op(client: Client, topic: str, create: Kind | None) -> Op:
    try:
        kind = (await client.get_topic(topic)).kind
    except TopicNotFound:
        if create is None:
            raise
        kind = create
    return Op.PUT if kind is Kind.KV else Op.APPEND


async def _append_once(
    client: Client, arguments: argparse.Namespace, context: Context, records: list[Record], create: Kind | None
) -> int:
    result = await client.append(arguments.topic, records, idempotency_key=arguments.idempotency_key, create=create)
    again = " (it had been done before)" if result.deduplicated else ""
    context.output.say(
        f"appended {result.first_seq} to {result.last_seq}{again}",
        {
            "first_seq": result.first_seq,
            "last_seq": result.last_seq,
            "epoch": result.epoch,
            "ts_ms": result.ts_ms,
            "deduplicated": result.deduplicated,
        },
    )
    return EXIT_OK


async def _append_lines(
    client: Client, arguments: argparse.Namespace, context: Context, template: Record, create: Kind | None
) -> int:
    acknowledged = 0
    first_seq = last_seq = 0
    try:
        async with client.append_stream(arguments.topic, create=create) as stream:
            async for line in stdin_lines():
                if arguments.json and not line.strip():
                    continue
                record = record_from_line(line, template) if arguments.json else template._replace(data=line)
                await stream.append([record])
            await stream.flush()
            acknowledged, first_seq, last_seq = stream.acknowledged, stream.first_seq, stream.last_seq
    except EddylineError as error:
        raise CommandError(
            f"{error.reason}: {error.message}; {stream.acknowledged} lines were acknowledged before",
            f"send the lines after them again: tail -n +{stream.acknowledged + 1}",
        ) from None
    context.output.say(
        f"appended {acknowledged} lines, {first_seq} to {last_seq}",
        {"count": acknowledged, "first_seq": first_seq, "last_seq": last_seq},
    )
    return EXIT_OK


def record_from_line(line: bytes, template: Record) -> Record:
    """A record from a JSON line, as `read -o json` prints it; what it leaves out is the template's.

    Raises:
        CommandError: not such an object.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        meta = tuple(
            MetaEntry(str(entry["name"]), _bytes_of(entry, "value") or b"") for entry in fields.get("meta", [])
        )
        key = _bytes_of(fields, "key")
        return template._replace(
            op=_OPS[str(fields["op"]).lower()] if "op" in fields else template.op,
            key=template.key if key is None else key,
            data=_bytes_of(fields, "data"),
            tag=fields.get("tag", template.tag),
            node=fields.get("node", template.node),
            meta=meta,
        )
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise CommandError(
            f"not a JSON record ({error}): {line[:100]!r}", 'expected: {"key": "k", "data": "v"}', exit_code=EXIT_USAGE
        ) from None


def _bytes_of(fields: Mapping[str, object], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(name + "_base64")
    if encoded is not None:
        return base64.b64decode(str(encoded), validate=True)
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{name} is not a string")
    return text.encode()
