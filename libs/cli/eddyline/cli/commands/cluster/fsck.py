"""`eddyline fsck`: a stopped store's data directory, checked by the store's own program.

The check is a process of its own: it ends with this one, its output goes where this one's does, its exit code is this one's.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb
from eddyline.cli.errors import EXIT_SIGNALLED, CommandError
from eddyline.cli.local_cluster.find import CLUSTER_FILE

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers

STORE_MODULE: Final = "eddyline.store"
STORE_FOLDER: Final = "store"
"""A store's data directory within the folder of `eddyline up`."""
EXIT_UNCHECKED: Final = 2
STOP_S: Final = 5.0
"""A check only reads, so it ends at once when told to; far above what that takes."""
_MORE: Final = """

The store must be stopped: what runs is checked by `eddyline verify-fold`. Nothing is changed. Exit codes: 0 clean,
1 findings, 2 it cannot be checked. A line a finding, with -o json an object."""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "fsck",
        what="Check a stopped store's data directory: every checksum, every invariant; exit code 1 if it has findings.",
        example="eddyline fsck ./eddyline-data/store\neddyline fsck -o json",
        run=run,
        finds_cluster=False,
        more=_MORE,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="data directory of a store, or a folder of `eddyline up` (default: that of --data)",
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    if find_spec(STORE_MODULE) is None:
        raise CommandError("the store is not installed here", "run it where the store is", exit_code=EXIT_UNCHECKED)
    directory = data_directory(arguments.directory or arguments.data)
    words = [sys.executable, "-m", STORE_MODULE, "fsck", str(directory)]
    process = await asyncio.create_subprocess_exec(*words, *(["-o", "json"] if context.output.is_json else []))
    try:
        code = await process.wait()
    finally:
        await _end(process)
    return code if code >= 0 else EXIT_SIGNALLED - code


def data_directory(folder: Path) -> Path:
    """The store's own directory, where a folder of `eddyline up` is given."""
    return folder / STORE_FOLDER if (folder / CLUSTER_FILE).is_file() else folder


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
