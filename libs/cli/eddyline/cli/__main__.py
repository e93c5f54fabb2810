"""The `eddyline` command: `python -m eddyline.cli`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

The only place that starts a loop and takes the real clock, host and randomness. SIGINT, SIGTERM and SIGHUP cancel the
verb, whose `async with` blocks take down what it has; a failure is one line on stderr with its reason and what to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from typing import TYPE_CHECKING, Final

from eddyline.cli import append, get, ls, read, source, status, topic, up, watch
from eddyline.cli.demo import verb as demo
from eddyline.cli.drill import verb as drill
from eddyline.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CommandError, failure_line, known_cause
from eddyline.cli.output import Output
from eddyline.cli.verb import Context
from eddyline.core.clock import SystemClock, SystemHost
from eddyline.core.errors import EddylineError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: Final = (up, topic, append, read, watch, get, ls, source, status, demo, drill)
_DESCRIPTION: Final = "Eddyline keeps what the stream leaves behind."


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = argparse.ArgumentParser(prog="eddyline", description=_DESCRIPTION, allow_abbrev=False)
    subparsers = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add(subparsers)
    return whole


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read one command line; wrong usage ends the process with exit code 2."""
    whole = parser()
    arguments, rest = whole.parse_known_args(argv)
    # argparse (before 3.13) takes a repeatable positional once only: in `append TOPIC --key K VALUE` it is left with none.
    repeatable = getattr(arguments, "repeatable", "")
    if rest and repeatable and not any(word.startswith("-") for word in rest):
        setattr(arguments, repeatable, [*getattr(arguments, repeatable), *rest])
    elif rest:
        whole.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = parse(argv)
    context = Context(
        output=Output(arguments.output),
        environ=os.environ,
        clock=SystemClock(),
        host=SystemHost(),
        random_source=random.Random(),
    )
    try:
        return asyncio.run(_run(arguments, context))
    except (CommandError, EddylineError, BaseExceptionGroup) as error:
        cause = known_cause(error)
        if cause is None:
            raise
        print(failure_line(cause), file=sys.stderr)
        return cause.exit_code if isinstance(cause, CommandError) else EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read us has gone (`| head`); Python's own flush at exit would complain of the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


async def _run(arguments: argparse.Namespace, context: Context) -> int:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is ignored, and stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    code: int = await arguments.run(arguments, context)
    return code


if __name__ == "__main__":
    sys.exit(main())
