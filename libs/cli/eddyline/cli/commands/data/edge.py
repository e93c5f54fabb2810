"""`eddyline edge`: a copy of a KV topic in one file, kept in step with a cluster and read without one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_group, add_verb, limit
from eddyline.cli.commands.data.get import add_raw, raw_contradiction, value_text
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.terminal.output import format_time, print_error, record_fields
from eddyline.cli.terminal.units import duration_ms, pluralize, size_bytes
from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.client.local_fold.local_fold import LocalFold

_FOLLOW: Final = """

It goes on until Ctrl-C, across restarts of every role, and from where it was when it is started again: also where no cluster
answers yet. kill -9 loses nothing. Only one command follows into a file; any number read it meanwhile.

JSON (-o json): {"event", "topic", "epoch", "seq", "entry_count", "as_of_ms"}; the events:
  snapshot                            a full snapshot was applied
  level                               caught up; changes follow
  gap, cursor_ahead, refresh          a full snapshot will follow
  deleted                             no key is live until the topic is created again
  reconnecting, resumed               as `eddyline watch` has them"""
_ANY_SIZE: Final = 1 << 60
"""A file that was written within a memory bound is read without one."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(
        subparsers, "edge", what="Keep a copy of a KV topic's live values in a file, and read it offline."
    )
    parser = add_verb(
        verbs,
        "follow",
        what="Keep a file in step with a KV topic.",
        example="eddyline edge follow routes --file routes.fold",
        run=follow,
        more=_FOLLOW,
    )
    parser.add_argument("topic", metavar="TOPIC")
    _add_file(parser)
    parser.add_argument(
        "--key-prefix", action="append", default=[], metavar="PREFIX", help="only these keys; repeatable"
    )
    parser.add_argument("--memory", type=size_bytes, metavar="SIZE", help="most it may take (default: 1GiB)")
    parser.add_argument(
        "--refresh",
        type=duration_ms,
        metavar="TIME",
        help="interval of a full refresh, which also applies deletes by key (default: 1d; 0 = never)",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="rebuild a damaged file; a file that is not a local fold is refused",
    )
    parser = _add_offline(
        verbs,
        "get",
        what="Show values from such a file, without a cluster; exit code 1 if one is not live.",
        example="eddyline edge get --file routes.fold co.uk",
    )
    parser.set_defaults(run=get, repeatable="keys", contradiction=raw_contradiction)
    parser.add_argument("keys", metavar="KEY", nargs="+")
    add_raw(parser)
    parser = _add_offline(
        verbs,
        "range",
        what="List the keys in such a file, in byte order, without a cluster.",
        example="eddyline edge range --file routes.fold co. --limit 20 --values",
    )
    parser.set_defaults(run=range_)
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only keys that start so")
    parser.set_defaults(optional=("prefix", ""))
    parser.add_argument("--after", default="", metavar="KEY", help="only keys after this one")
    parser.add_argument("--limit", type=limit, default=0, metavar="N", help="most keys (default: all)")
    parser.add_argument("--values", action="store_true", help="show the values too (JSON has them always)")
    _add_offline(
        verbs,
        "state",
        what="Show the topic and the age of such a file.",
        example="eddyline edge state --file routes.fold",
    ).set_defaults(run=state)


async def follow(arguments: argparse.Namespace, context: Context) -> int:
    # Here, and below, because the client's fold needs gRPC and numpy.
    from eddyline.cli.commands.data.edge_follow import run_follow

    return await run_follow(arguments, context)


async def get(arguments: argparse.Namespace, context: Context) -> int:
    fold, missing = _read(arguments.file), 0
    for key in arguments.keys:
        record = fold.get(os.fsencode(key))
        if record is None:
            missing += 1
            lists = shlex.join(["eddyline", "edge", "range", "--file", str(arguments.file)])
            print_error(f"KEY_NOT_FOUND: {arguments.file} has no value for key {key!r} (`{lists}` lists keys)")
            continue
        if arguments.raw:
            context.output.raw(record.data or b"")
            continue
        value = value_text(record.data)
        context.output.print_result(
            value if len(arguments.keys) == 1 else f"{printable(os.fsencode(key))}  {value}", record_fields(record)
        )
    return EXIT_FAILED if missing else EXIT_OK


async def range_(arguments: argparse.Namespace, context: Context) -> int:
    for record in _read(arguments.file).range(
        key_prefix=os.fsencode(arguments.prefix), after_key=os.fsencode(arguments.after), limit=arguments.limit
    ):
        key = printable(record.key)
        text = f"{key}  {printable(record.data, 200)}" if arguments.values else key
        context.output.print_result(text, record_fields(record))
    return EXIT_OK


async def state(arguments: argparse.Namespace, context: Context) -> int:
    from eddyline.cli.commands.data.edge_follow import state_fields

    found = _read(arguments.file).state()
    age_s = max(0, context.clock.now_ms() - found.as_of_ms) // 1000
    of = f"{found.topic} at {found.seq}" + (", deleted" if found.deleted else "")
    as_of = f"{format_time(found.as_of_ms)}, {age_s} s ago" if found.as_of_ms else "never"
    live = pluralize(found.entry_count, "live key")
    text = f"{of}: {live}; caught up with the cluster as of {as_of}; {found.file_bytes} bytes"
    context.output.print_result(text, {**state_fields(found), "deleted": found.deleted, "file_bytes": found.file_bytes})
    return EXIT_OK


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=Path, required=True, metavar="FILE", help="the file that holds it")


def _add_offline(verbs: Subparsers, name: str, *, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, what=what, example=example, run=state, finds_cluster=False)
    _add_file(parser)
    return parser


def _read(path: Path) -> LocalFold:
    from eddyline.cli.commands.data.edge_follow import damaged
    from eddyline.client.local_fold.local_fold import read_fold

    try:
        return read_fold(path, memory_bytes_max=_ANY_SIZE)
    except DataCorrupt as error:
        raise damaged(error, path, "`eddyline edge follow TOPIC --file FILE --rebuild` rebuilds it") from error
    except FileNotFoundError:
        raise CommandError(f"{path}: no such file", "`eddyline edge follow TOPIC --file FILE` creates it") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
