"""The command line: verbs, signals, exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.

The only place that takes the real clock, host and randomness. SIGINT, SIGTERM and SIGHUP cancel the
verb, whose `async with` blocks take down what it has; a failure is one line on stderr with its reason and what to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

from eddyline.cli.command import Context
from eddyline.cli.commands.cluster import fsck, key, status, up
from eddyline.cli.commands.data import append, edge, find, get, history, kv, ls, read, watch
from eddyline.cli.commands.sources import source, verify
from eddyline.cli.commands.topics import delete, export, fold, settle_fold, topic, verify_fold
from eddyline.cli.demo import command as demo
from eddyline.cli.drill import command as drill
from eddyline.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError, exit_code_of, failure_line, known_cause
from eddyline.cli.terminal.option_hints import option_hint
from eddyline.cli.terminal.output import Output, ReaderGone, flushed_exit_code, print_error_lines
from eddyline.core.errors import EddylineError
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.nearest import did_you_mean, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    RunLoop = Callable[[Coroutine[object, object, int]], int]

VERBS: Final = (
    up,
    topic,
    append,
    read,
    watch,
    get,
    ls,
    history,
    find,
    delete,
    source,
    kv,
    status,
    verify,
    verify_fold,
    settle_fold,
    fold,
    export,
    edge,
    key,
    fsck,
    demo,
    drill,
)
_MEANT: Final = {
    "add": ("create",),
    "cat": ("read",),
    "consume": ("watch", "read"),
    "describe": ("get",),
    "info": ("get", "status"),
    "make": ("create",),
    "new": ("create",),
    "produce": ("append",),
    "publish": ("append",),
    "put": ("append",),
    "remove": ("delete",),
    "rm": ("delete",),
    "show": ("get",),
    "start": ("up",),
    "subscribe": ("watch",),
    "tail": ("watch", "read"),
    "topics": ("topic",),
}
"""Verbs as other tools have them, and ours."""
_NO_VERB: Final = "the following arguments are required: VERB"
"""argparse's message for a line that ends before its verb."""
_MISSING: Final = "the following arguments are required"
_NEGATIVE: Final = re.compile(r"-\.?[0-9]")
_DESCRIPTION: Final = "Eddyline keeps what the stream leaves behind."


class Parser(argparse.ArgumentParser):
    """A parser that takes `-5s` for a value, as argparse itself takes `-5`: no option of ours begins with a digit."""

    def __init__(self, *args: Any, **options: Any) -> None:  # what argparse takes
        super().__init__(*args, **options)
        self._negative_number_matcher = _NEGATIVE
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep the words of this parser, which its errors give hints about."""
        self._words = tuple(args or ())
        return super().parse_known_args(args, namespace)

    def hint(self) -> str:
        """Return the hint for an option that the verb does not have; empty = none."""
        return option_hint(self, self._words)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            meant = [name for name in _MEANT.get(value, ()) if name in names]
            question = suggestion(meant) if meant else did_you_mean(value, names)
            raise argparse.ArgumentError(None, f"no verb {value!r}; {question or 'there are ' + ', '.join(names)}")
        question = did_you_mean(str(value), names)
        more = f"; {question}" if question else ""
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(names)}{more}")

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, and usage and message on stderr."""
        if message == _NO_VERB:
            message = f"name a verb: `{self.prog} --help` says what each does, and `{self.prog} VERB --help` how"
        elif message.startswith(_MISSING) and (hint := self.hint()):
            message = f"{message}; {hint}"
        print_error_lines(f"{self.format_usage()}{self.prog}: error: {message}")
        self.exit(EXIT_USAGE)

    def _print_message(self, message: str, file: object = None) -> None:
        # Help and version. argparse itself would pass over a failure to write them.
        Output().print_text(message.removesuffix("\n"))


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = Parser(prog="eddyline", description=_DESCRIPTION, allow_abbrev=False)
    whole.add_argument("--version", action="version", version=f"eddyline {version('eddyline-cli')}")
    subparsers = whole.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add(subparsers)
    return whole


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read one command line; wrong usage ends the process with exit code 2."""
    whole = parser()
    arguments, rest = whole.parse_known_args(argv)
    # argparse (before 3.13) takes a positional that may be left out once only: in `append TOPIC --key K VALUE` and
    # `kv put BUCKET KEY --wait-applied VALUE` it is left with none.
    repeatable = getattr(arguments, "repeatable", "")
    optional, not_given = getattr(arguments, "optional", ("", None))
    flags = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"]
    if rest and repeatable and not flags:
        setattr(arguments, repeatable, [*getattr(arguments, repeatable), *rest])
    elif len(rest) == 1 and optional and not flags and getattr(arguments, optional) == not_given:
        setattr(arguments, optional, rest[0])
    elif rest:
        question = arguments.hint() or did_you_mean(flags[0], arguments.flags()) if flags else ""
        arguments.refuse(f"unrecognized arguments: {' '.join(rest)}{f'; {question}' if question else ''}")
    contradiction = arguments.contradiction(arguments) if "contradiction" in arguments else ""
    if contradiction:
        arguments.refuse(contradiction)
    return arguments


def run_command(argv: Sequence[str], *, run_loop: RunLoop) -> int:
    """Run one command in a loop of its own; the exit code.

    Raises:
        SystemExit: with the exit code, after --help, --version and wrong usage.
    """
    try:
        arguments = parse_arguments(argv)
    except SystemExit as ended:
        raise SystemExit(flushed_exit_code(ended.code if isinstance(ended.code, int) else EXIT_FAILED)) from None
    except CommandError as error:
        return flushed_exit_code(_failed(error))
    return flushed_exit_code(_run_verb(arguments, run_loop))


def _run_verb(arguments: argparse.Namespace, run_loop: RunLoop) -> int:
    context = Context(
        output=Output(arguments.output),
        environ=os.environ,
        clock=SystemClock(),
        host=SystemHost(),
        random_source=random.Random(),
    )
    heard = _SignalReceived()
    try:
        return run_loop(_run(arguments, context, heard))
    except (CommandError, EddylineError, BaseExceptionGroup) as error:
        cause = known_cause(error)
        if cause is None:
            raise
        return _failed(cause, verb=arguments.verb)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return exit_code_of(heard.number)


def _failed(error: EddylineError | CommandError, *, verb: str = "") -> int:
    """Say a failure; the exit code."""
    if not isinstance(error, ReaderGone):
        print_error_lines(failure_line(error, verb=verb))
    return error.exit_code if isinstance(error, CommandError) else EXIT_FAILED


class _SignalReceived:
    """Which signal ended the verb."""

    def __init__(self) -> None:
        self.number = signal.SIGINT


async def _run(arguments: argparse.Namespace, context: Context, heard: _SignalReceived) -> int:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        heard.number = number
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up is ignored, and stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    code: int = await arguments.run(arguments, context)
    return code
