"""`eddyline append` of standard input: a line an append, many in flight, each stored once across restarts of the store.

*Invariant:* whatever ends it, it says how much is in and how much may be, and its advice repeats nothing.
A line's idempotency key is the run's id and the line's number, so blank lines count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.cli.errors import EXIT_OK, EXIT_USAGE, CommandError
from eddyline.cli.terminal.json_record import record_from_json
from eddyline.cli.terminal.output import print_error
from eddyline.cli.terminal.stdin import stdin_lines
from eddyline.client.append.append_run import PATIENCE_S, NumberedRecord
from eddyline.core.errors import EddylineError

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from eddyline.cli.command import Context
    from eddyline.client.append.append_run import AppendRun
    from eddyline.client.connect import Client
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.record import Record


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
        message = f"{error.message}; {_how_far(run)}"
        if not run.acknowledged:
            raise CommandError(message, error.advice, exit_code=EXIT_USAGE) from None
        raise CommandError(message, f"{error.advice}; correct it, then {_how_to_go_on(run, arguments.skip)}") from None
    except EddylineError as error:
        where = f"line {run.next_number}: " if run.next_number else ""
        advice = [error.advice, _how_to_go_on(run, arguments.skip)]
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
    number = 0
    async for line in stdin_lines():
        number += 1
        if number <= skip or (is_json and not line.strip()):
            continue
        if not is_json:
            yield NumberedRecord(number, template._replace(data=line))
            continue
        try:
            record = record_from_json(line, template)
        except CommandError as error:
            raise CommandError(f"line {number}: {error.message}", error.advice) from None
        yield NumberedRecord(number, record)


def _how_far(run: AppendRun) -> str:
    unknown = f", up to {run.unknown_count} more may be stored" if run.unknown_count else ""
    lines = "1 line is" if run.acknowledged == 1 else f"{run.acknowledged} lines are"
    return f"{lines} acknowledged{unknown}"


def _how_to_go_on(run: AppendRun, skip: int) -> str:
    """Advice that repeats nothing: the same numbers give the same keys, which settle what is unknown."""
    behind = run.acknowledged_number or skip
    settled = f" --idempotency-key {run.run_id}, within the topic's idempotency window" if run.unknown_count else ""
    return f"continue with the same input and --skip {behind}{settled}"
