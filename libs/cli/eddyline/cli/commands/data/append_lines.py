"""`eddyline append` of standard input: a line an append, many in flight, each stored once across restarts of the store.

*Invariant:* whatever ends it, it says how much is in and how much may be, and its advice repeats nothing.
A line's idempotency key is the run's id and the line's number, so blank lines count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError
from eddyline.cli.terminal.json_record import record_from_json
from eddyline.cli.terminal.output import print_error
from eddyline.cli.terminal.stdin import LineTooLong, stdin_lines
from eddyline.client.append.append_run import PATIENCE_S, NumberedRecord
from eddyline.core.errors import BatchTooLarge, EddylineError, InvalidOp, KeyRequired, RecordTooLarge

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from eddyline.cli.command import Context
    from eddyline.client.append.append_run import AppendRun
    from eddyline.client.connect import Client
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.record import Record

_LINE_FAULTS: Final = (RecordTooLarge, BatchTooLarge, KeyRequired, InvalidOp)
"""Refusals that the same line gets again, however often it is appended."""


class _LineError(CommandError):
    """A line of standard input is not a record."""

    def __init__(self, number: int, error: CommandError, message: str) -> None:
        super().__init__(message, error.advice)
        self.number = number


async def append_lines(
    client: Client, arguments: argparse.Namespace, context: Context, template: Record, create: Kind | None
) -> int:
    """Append standard input.

    Raises:
        CommandError: it ended before all was in; says what is.
    """
    run = client.append_run(
        arguments.topic,
        run_id=arguments.idempotency_key or f"{context.random_source.getrandbits(48):012x}",
        create=create,
        on_away=lambda error: print_error(f"{error.reason}: {error.message}; trying again for {PATIENCE_S:g} s"),
        on_back=lambda: print_error("continuing"),
    )
    try:
        await run.run(_records(template, is_json=arguments.json, skip=arguments.skip))
    except CommandError as error:
        wrong_line = error.number if isinstance(error, _LineError) else 0
        advice = [error.advice]
        if wrong_line or run.acknowledged:
            advice.append(_how_to_go_on(run, arguments.skip, wrong_line=wrong_line))
        raise CommandError(
            f"{error.message}; {_how_far(run)}",
            "; ".join(filter(None, advice)),
            exit_code=EXIT_FAILED if run.acknowledged else EXIT_USAGE,
        ) from None
    except EddylineError as error:
        where = f"line {run.next_number}: " if run.next_number else ""
        wrong_line = run.next_number if isinstance(error, _LINE_FAULTS) else 0
        advice = [error.advice, _how_to_go_on(run, arguments.skip, wrong_line=wrong_line)]
        raise CommandError(
            f"{where}{error.reason}: {error.message}; {_how_far(run)}", "; ".join(filter(None, advice))
        ) from None
    except asyncio.CancelledError:
        print_error(f"stopped: {_how_far(run)} ({_how_to_go_on(run, arguments.skip)})")
        raise
    if not run.acknowledged:
        context.output.print_result("nothing to append", {"count": 0})
        return EXIT_OK
    context.output.print_result(
        f"appended {run.acknowledged} line{'s' * (run.acknowledged != 1)}, {run.first_seq} to {run.last_seq}",
        {"count": run.acknowledged, "first_seq": run.first_seq, "last_seq": run.last_seq},
    )
    return EXIT_OK


async def _records(template: Record, *, is_json: bool, skip: int) -> AsyncGenerator[NumberedRecord, None]:
    number = skip
    try:
        async for line in stdin_lines(skip):
            number += 1
            if is_json and not line.strip():
                continue
            if not is_json:
                yield NumberedRecord(number, template._replace(data=line))
                continue
            try:
                record = record_from_json(line, template, line=number)
            except CommandError as error:
                raise _LineError(number, error, error.message) from None
            yield NumberedRecord(number, record)
    except LineTooLong as error:
        raise _LineError(number + 1, error, f"line {number + 1}: {error.message}") from None


def _how_far(run: AppendRun) -> str:
    unknown = f", up to {run.unknown_count} more may be stored" if run.unknown_count else ""
    lines = "1 line is" if run.acknowledged == 1 else f"{run.acknowledged} lines are"
    return f"{lines} acknowledged{unknown}"


def _how_to_go_on(run: AppendRun, skip: int, *, wrong_line: int = 0) -> str:
    """Return advice that repeats nothing: the same numbers give the same keys, which settle what is unknown.

    `wrong_line` = number of the line that fails again as it is; all before it are stored. 0 = none is to blame.
    """
    behind = run.acknowledged_number or skip
    settled = f" --idempotency-key {run.run_id}, within the topic's idempotency window" if run.unknown_count else ""
    if wrong_line:
        corrected = f" and use --skip {behind}" if behind else ""
        return f"correct line {wrong_line}{corrected}, or leave it out with --skip {wrong_line}{settled}"
    return f"continue with the same input and --skip {behind}{settled}"
