"""`eddyline append`: values from the command line, all of them one append; a file; or standard input, a line an append."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected, count
from eddyline.cli.errors import EXIT_OK, EXIT_USAGE, CommandError
from eddyline.cli.terminal.json_record import OPS, record_from_json
from eddyline.cli.terminal.stdin import DASH_REFUSED, value_of
from eddyline.core.errors import TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import DATA_META_BYTES_MAX, Op, Record

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.connect import Client

_EXAMPLE: Final = """
eddyline append greetings hello world --create log
eddyline append prices 42 --key BTC --create kv
tail -f access.log | eddyline append access
eddyline append images --key logo --file logo.png
eddyline append prices --key BTC --op delete
eddyline append orders --json '{"key": "17", "data": "paid", "meta": {"by": "web"}}'
eddyline read a -o json | eddyline append b --json"""
_DELETING: Final = ("delete", "purge")
_MORE: Final = """

JSON in (--json), an object a line or a VALUE, all fields optional:
  op     APPEND, PUT, DELETE or PURGE (default: as --op)
  key    text, or key_base64 (default: --key)
  data   text, or data_base64 (a JSON document goes in as a string)
  tag, node   text (default: --tag, --node)
  meta   {"name": "value"} or [{"name": "n", "value": "v"}] (or value_base64)
  What the store gives a record (seq, ts_ms, source_ts_ns, version), and topic, in_snapshot and fold_seq, are passed
  over: what read, get and watch print can be appended again. Any other field is refused.
JSON out (-o json): of values first_seq, last_seq, epoch, ts_ms, deduplicated; of standard input count, first_seq,
last_seq.

Standard input: each line is stored once, also when the store restarts meanwhile; a store that is away is waited for 30 s.
A line ends with LF or CRLF, and a UTF-8 byte order mark before the first one is passed over."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "append",
        what="Append records: the values given, else a line of standard input each.",
        example=_EXAMPLE,
        run=run,
        more=_MORE,
    )
    parser.set_defaults(contradiction=contradiction)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("values", metavar="VALUE", nargs="*", help="all of them are one append, all or none")
    parser.set_defaults(repeatable="values")
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="one record whose value is this file's bytes; - = standard input"
    )
    parser.add_argument("--key", help="key of the records (KV topics need one)")
    parser.add_argument("--tag", help="label that readers filter by")
    parser.add_argument("--node", help="name of the node that wrote them")
    parser.add_argument("--op", choices=tuple(OPS), help="default: append on a log, put on a KV topic")
    parser.add_argument("--json", action="store_true", help="lines and values are JSON objects, see below")
    parser.add_argument("--create", type=str.lower, choices=("log", "kv"), help="create the topic if it is missing")
    parser.add_argument(
        "--idempotency-key",
        default="",
        metavar="KEY",
        help="makes a repeat harmless; of standard input each line's key begins with it (default: drawn)",
    )
    parser.add_argument(
        "--skip",
        type=count,
        default=0,
        metavar="N",
        help="skip the first N lines of standard input, which are stored already",
    )


def contradiction(arguments: argparse.Namespace) -> str:
    """The contradiction among the arguments; empty = none."""
    if arguments.file is not None:
        others = {"a VALUE": arguments.values, "--json": arguments.json, "--skip": arguments.skip}
        given = [name for name, value in others.items() if value]
        if given:
            return f"{given[0]} or --file, not both"
    if arguments.values == ["-"]:
        return DASH_REFUSED
    if arguments.skip and arguments.values:
        return "--skip is for standard input, not for values"
    if arguments.op in _DELETING and (arguments.values or arguments.file is not None) and not arguments.json:
        return f"--op {arguments.op} takes no value, only a key: give it with --key"
    return ""


async def run(arguments: argparse.Namespace, context: Context) -> int:
    # Before the cluster is asked: what cannot be read is not its business.
    content = None if arguments.file is None else await value_of(arguments.file, DATA_META_BYTES_MAX)
    create = None if arguments.create is None else Kind[arguments.create.upper()]
    async with connected(arguments, context, topic=arguments.topic) as client:
        op = OPS[arguments.op] if arguments.op else await _default_op(client, arguments.topic, create)
        template = Record(
            op=op,
            key=None if arguments.key is None else os.fsencode(arguments.key),
            tag=arguments.tag,
            node=arguments.node,
        )
        if not arguments.values and op in (Op.DELETE, Op.PURGE):
            return await _append_once(client, arguments, context, [template], create)
        if content is not None:
            return await _append_once(client, arguments, context, [template._replace(data=content)], create)
        if arguments.values:
            records = [_record_of(value, template, is_json=arguments.json) for value in arguments.values]
            return await _append_once(client, arguments, context, records, create)
        # Here, because the run's batches need numpy.
        from eddyline.cli.commands.data.append_lines import append_lines

        return await append_lines(client, arguments, context, template, create)


def _record_of(value: str, template: Record, *, is_json: bool) -> Record:
    if not is_json:
        return template._replace(data=os.fsencode(value))
    try:
        return record_from_json(os.fsencode(value), template)
    except CommandError as error:
        raise CommandError(error.message, error.advice, exit_code=EXIT_USAGE) from None


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
    again = " (already stored by an earlier call)" if result.deduplicated else ""
    context.output.print_result(
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
