"""`eddyline edge`: a copy of a KV topic in one file, kept in step with a cluster and read without one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import EXIT_FAILED, EXIT_OK, CommandError
from eddyline.cli.outage import Outage
from eddyline.cli.output import Json, record_fields, shown_time
from eddyline.cli.quantity import counted, duration_ms, size_bytes
from eddyline.cli.verb import add_group, add_verb, connected, limit
from eddyline.client.fold_follow import REFRESH_S, FoldStep, FollowOptions
from eddyline.client.local_fold import MEMORY_BYTES_MAX, may_rebuild, open_fold, read_fold
from eddyline.core.backoff import Backoff
from eddyline.core.clock import sleep
from eddyline.core.errors import DataCorrupt, MemoryFull, NotReady
from eddyline.core.fs import Locked
from eddyline.core.shown import shown_bytes

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.local_fold import LocalFold, LocalFoldState

_FOLLOW: Final = """

It goes on until Ctrl-C, across restarts of every role, and from where it was when it is started again: also where no cluster
answers yet. kill -9 loses nothing. Only one command follows into a file; any number read it meanwhile.

JSON (-o json): {"event", "topic", "epoch", "seq", "entry_count", "as_of_ms"}; the events:
  snapshot                            all was taken anew
  level                               it has what the topic had; from here on it follows
  gap, cursor_ahead, refresh          all will be taken anew
  deleted                             nothing is live, until the topic is made again
  reconnecting, resumed               as `eddyline watch` has them"""
_ANY_SIZE: Final = 1 << 60
"""What was followed within one bound is read without one."""
_STEPS: Final = {
    FoldStep.SNAPSHOT: "taken anew",
    FoldStep.LEVEL: "level with the cluster; following",
    FoldStep.GAP: "records were lost on the way; taking all anew",
    FoldStep.CURSOR_AHEAD: "the topic is behind this file; taking all anew",
    FoldStep.REFRESH: "taking all anew, as each so often",
    FoldStep.DELETED: "the topic was deleted; waiting until it is made again",
}


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
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
    parser.add_argument(
        "--memory", type=size_bytes, default=MEMORY_BYTES_MAX, metavar="SIZE", help="most it may take (default: 1GiB)"
    )
    parser.add_argument(
        "--refresh",
        type=duration_ms,
        default=round(REFRESH_S * 1000),
        metavar="TIME",
        help="how often all is taken anew, which brings deletes by key (default: 1d; 0 = never)",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="begin anew where the file is damaged; one that is not a fold's is refused",
    )
    parser = _add_offline(
        verbs,
        "get",
        what="Show values from such a file, without a cluster; exit code 1 if one is not live.",
        example="eddyline edge get --file routes.fold co.uk",
    )
    parser.set_defaults(run=get, repeatable="keys")
    parser.add_argument("keys", metavar="KEY", nargs="+")
    parser = _add_offline(
        verbs,
        "range",
        what="List the keys in such a file, in byte order, without a cluster.",
        example="eddyline edge range --file routes.fold co. --limit 20 --values",
    )
    parser.set_defaults(run=range_)
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only keys that start so")
    parser.add_argument("--after", default="", metavar="KEY", help="only keys behind it")
    parser.add_argument("--limit", type=limit, default=0, metavar="N", help="most keys (default: all)")
    parser.add_argument("--values", action="store_true", help="show the values too (JSON has them always)")
    _add_offline(
        verbs,
        "state",
        what="Show what such a file is of, and how old it is.",
        example="eddyline edge state --file routes.fold",
    ).set_defaults(run=state)


async def follow(arguments: argparse.Namespace, context: Context) -> int:
    """Follow."""
    prefixes = [os.fsencode(prefix) for prefix in arguments.key_prefix]
    outage = Outage(context.output.say_aside)
    backoff = Backoff(context.random_source)
    try:
        async with open_fold(
            arguments.file,
            arguments.topic,
            key_prefixes=prefixes,
            memory_bytes_max=arguments.memory,
            rebuild=arguments.rebuild,
            clock=context.clock,
        ) as fold:
            options = FollowOptions(
                refresh_s=arguments.refresh / 1000,
                on_step=Steps(fold, context).say,
                on_retry=outage.failed,
                on_resume=outage.over,
            )
            while True:
                try:
                    async with connected(arguments, context) as client:
                        outage.over()
                        await fold.follow(client, options, random_source=context.random_source)
                except NotReady as error:
                    outage.failed(error)
                    await sleep(context.clock, backoff.next_s())
    except Locked as error:
        raise CommandError(str(error), "read it with `eddyline edge get`, or give another --file") from error
    except DataCorrupt as error:
        raise _damaged(error, arguments.file, "begin anew from the cluster with --rebuild") from error
    except MemoryFull as error:
        raise CommandError(
            f"{error.reason}: {error.message}", "give more with --memory, or follow fewer keys with --key-prefix"
        ) from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CommandError(
            f"{arguments.file}: {error.strerror}", "give the path of a file, in a folder that is there"
        ) from error
    except OSError as error:
        raise CommandError(
            f"{arguments.file}: {error.strerror or error}", "look at the disk, then start it again"
        ) from error


async def get(arguments: argparse.Namespace, context: Context) -> int:
    """Get."""
    fold, missing = _read(arguments.file), 0
    for key in arguments.keys:
        record = fold.get(os.fsencode(key))
        if record is None:
            missing += 1
            print(f"eddyline: KEY_NOT_FOUND: {key!r} is not live in {arguments.file}", file=sys.stderr)
            continue
        value = shown_bytes(record.data)
        context.output.say(value if len(arguments.keys) == 1 else f"{key}  {value}", record_fields(record))
    return EXIT_FAILED if missing else EXIT_OK


async def range_(arguments: argparse.Namespace, context: Context) -> int:
    """List."""
    for record in _read(arguments.file).range(
        key_prefix=os.fsencode(arguments.prefix), after_key=os.fsencode(arguments.after), limit=arguments.limit
    ):
        key = shown_bytes(record.key)
        text = f"{key}  {shown_bytes(record.data, 200)}" if arguments.values else key
        context.output.say(text, record_fields(record))
    return EXIT_OK


async def state(arguments: argparse.Namespace, context: Context) -> int:
    """State."""
    found = _read(arguments.file).state()
    age_s = max(0, context.clock.now_ms() - found.as_of_ms) // 1000
    of = f"{found.topic} at {found.seq}" + (", deleted" if found.deleted else "")
    as_of = f"{shown_time(found.as_of_ms)}, {age_s} s ago" if found.as_of_ms else "never"
    text = f"{of}: {counted(found.entry_count, 'live key')}; level with the cluster as of {as_of}; {found.file_bytes} bytes"
    context.output.say(text, {**_fields(found), "deleted": found.deleted, "file_bytes": found.file_bytes})
    return EXIT_OK


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=Path, required=True, metavar="FILE", help="the file that holds it")


def _add_offline(verbs: Subparsers, name: str, *, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_verb(verbs, name, what=what, example=example, run=state, finds_cluster=False)
    _add_file(parser)
    return parser


def _read(path: Path) -> LocalFold:
    try:
        return read_fold(path, memory_bytes_max=_ANY_SIZE)
    except DataCorrupt as error:
        raise _damaged(error, path, "`eddyline edge follow TOPIC --file FILE --rebuild` makes it anew") from error
    except FileNotFoundError:
        raise CommandError(f"{path}: no such file", "`eddyline edge follow TOPIC --file FILE` makes it") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error


def _damaged(error: DataCorrupt, path: Path, remedy: str) -> CommandError:
    """What is said of it: `remedy`, unless the file is somebody else's."""
    theirs = path.is_file() and not may_rebuild(path)
    return CommandError(f"{error.reason}: {error.message}", "give another --file" if theirs else remedy)


class Steps:
    """What is said of a fold that is followed. A topic that stays away is said once."""

    def __init__(self, fold: LocalFold, context: Context) -> None:
        self._fold = fold
        self._context = context
        self._last: FoldStep | None = None

    def say(self, step: FoldStep) -> None:
        """Say a step."""
        last, self._last = self._last, step
        if step is last is FoldStep.DELETED:
            return
        found = self._fold.state()
        text = f"{found.topic} at {found.seq}, {counted(found.entry_count, 'live key')}: {_STEPS[step]}"
        self._context.output.say(text, {"event": step.value, **_fields(found)})


def _fields(found: LocalFoldState) -> dict[str, Json]:
    return {
        "topic": found.topic,
        "epoch": found.epoch,
        "seq": found.seq,
        "entry_count": found.entry_count,
        "as_of_ms": found.as_of_ms,
    }
