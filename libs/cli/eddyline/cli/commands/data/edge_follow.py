"""`eddyline edge follow`: the work behind the verb, with the client's local fold."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import connected
from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.away import describe_error
from eddyline.cli.local_cluster.outage import Outage
from eddyline.cli.terminal.units import pluralize
from eddyline.client.local_fold.follow import REFRESH_S, FoldStep, FollowOptions
from eddyline.client.local_fold.local_fold import MEMORY_BYTES_MAX, may_rebuild, open_fold
from eddyline.core.errors import DataCorrupt, MemoryFull, NotReady
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.fs import Locked

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.terminal.output import Json
    from eddyline.client.local_fold.local_fold import LocalFold, LocalFoldState

_STEPS: Final = {
    FoldStep.SNAPSHOT: "full snapshot applied",
    FoldStep.LEVEL: "caught up with the cluster; following",
    FoldStep.GAP: "records were lost; loading all values again",
    FoldStep.CURSOR_AHEAD: "the topic is behind this file; loading all values again",
    FoldStep.REFRESH: "loading all values again: the refresh interval is over",
    FoldStep.DELETED: "the topic was deleted; waiting until it is created again",
}


async def run_follow(arguments: argparse.Namespace, context: Context) -> int:
    """Keep the file in step until the command is cancelled.

    Raises:
        CommandError: the file cannot be followed into; says why, and what to do.
    """
    prefixes = [os.fsencode(prefix) for prefix in arguments.key_prefix]
    outage = Outage(context.output.print_notice)
    backoff = Backoff(context.random_source)
    try:
        async with open_fold(
            arguments.file,
            arguments.topic,
            key_prefixes=prefixes,
            memory_bytes_max=MEMORY_BYTES_MAX if arguments.memory is None else arguments.memory,
            rebuild=arguments.rebuild,
            clock=context.clock,
        ) as fold:
            options = FollowOptions(
                refresh_s=REFRESH_S if arguments.refresh is None else arguments.refresh / 1000,
                on_step=Steps(fold, context).print_result,
                on_retry=outage.failed,
                on_resume=outage.over,
            )
            while True:
                try:
                    async with connected(arguments, context) as client:
                        outage.over()
                        outage.describe = partial(describe_error, topology=client.topology)
                        await fold.follow(client, options, random_source=context.random_source)
                except NotReady as error:
                    outage.failed(error)
                    await sleep(context.clock, backoff.next_delay_s())
    except Locked as error:
        raise CommandError(str(error), "read it with `eddyline edge get`, or give another --file") from error
    except DataCorrupt as error:
        raise damaged(error, arguments.file, "rebuild it from the cluster with --rebuild") from error
    except MemoryFull as error:
        raise CommandError(
            f"{error.reason}: {error.message}", "give more with --memory, or follow fewer keys with --key-prefix"
        ) from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CommandError(
            f"{arguments.file}: {error.strerror}", "give the path of a file in an existing folder"
        ) from error
    except OSError as error:
        raise CommandError(
            f"{arguments.file}: {error.strerror or error}", "check the disk, then start it again"
        ) from error


class Steps:
    """Output of `edge follow`: the steps of the local fold. A topic that stays missing is reported once."""

    def __init__(self, fold: LocalFold, context: Context) -> None:
        self._fold = fold
        self._context = context
        self._last: FoldStep | None = None

    def print_result(self, step: FoldStep) -> None:
        """Say a step."""
        last, self._last = self._last, step
        if step is last is FoldStep.DELETED:
            return
        found = self._fold.state()
        text = f"{found.topic} at {found.seq}, {pluralize(found.entry_count, 'live key')}: {_STEPS[step]}"
        self._context.output.print_result(text, {"event": step.value, **state_fields(found)})


def state_fields(found: LocalFoldState) -> dict[str, Json]:
    """A fold's position and age, as a JSON object."""
    return {
        "topic": found.topic,
        "epoch": found.epoch,
        "seq": found.seq,
        "entry_count": found.entry_count,
        "as_of_ms": found.as_of_ms,
    }


def damaged(error: DataCorrupt, path: Path, remedy: str) -> CommandError:
    """The text of a step: `remedy`, unless the file is somebody else's."""
    theirs = path.is_file() and not may_rebuild(path)
    return CommandError(f"{error.reason}: {error.message}", "give another --file" if theirs else remedy)
