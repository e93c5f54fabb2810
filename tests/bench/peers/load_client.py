"""The load client `peerload` as a command: one run, and its figures.

`tests/bench/peers/load` is its source in Go: one client for all systems, so that its own cost is nearly the same for each.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from tests.bench.peers.servers import program

RUN_S_MAX: Final = 150
"""The load client ends a run after 120 s."""
ERROR_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Figures of one run.

    `records` = those appended, delivered, or returned by gets, in `seconds`; latencies are of an append, a frame or a get;
    `server_s` and `client_s` are the processor time of all servers and of the load client in that time;
    `busiest_thread` is the share of a core that the busiest thread of a server used.
    """

    records: int
    seconds: float
    p50_us: float
    p99_us: float
    server_s: float
    client_s: float
    busiest_thread: float


class LoadFailed(Exception):
    """A run ended without figures; the text is the client's error."""


async def run_load(*words: str) -> LoadResult:
    """Run one command of the load client.

    Raises:
        LoadFailed: the run ended with an error, or took longer than `RUN_S_MAX`.
        Absent: the load client is not built.
    """
    process = await asyncio.create_subprocess_exec(
        program("peerload"), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(RUN_S_MAX):
            output, errors = await process.communicate()
    except TimeoutError:
        raise LoadFailed(f"{words[0]}: no end within {RUN_S_MAX} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise LoadFailed(errors.decode(errors="replace").strip()[-ERROR_CHARACTERS:])
    return LoadResult(**json.loads(output))
