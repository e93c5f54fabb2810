"""The `eddyline` command's door: `python -m eddyline.cli`.

It imports next to nothing before it has set what a signal does, since the rest takes half a second to load: a Ctrl-C in it
ends the process with its exit code, and no traceback. The command itself is `eddyline.cli.main`.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run one command; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ignored by whoever started us, it stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    # gRPC's own chatter (goaway, fork) says nothing that a status does not; it is read when gRPC is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Here, behind the signals: see the module's docstring.
    import asyncio

    from eddyline.cli.main import run_command

    return run_command(sys.argv[1:], run_loop=asyncio.run)


def _leave(number: int, _frame: object) -> None:
    # Nothing is open yet, and an exception would come out of somebody's import.
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
