"""Command lines run in this process: as a user runs them, or against a store of the test's own."""

from __future__ import annotations

import asyncio
import io
import json
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.cli.command import parse, run_command
from eddyline.cli.output import Output
from eddyline.cli.verb import Context
from eddyline.client.connect import Client
from eddyline.client.topology import Channels, Topology
from eddyline.core.clock import SystemClock, SystemHost
from tests.support.store_server import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


def main(words: list[str]) -> int:
    """Run one command line as a user does; the exit code."""
    with asyncio.Runner() as runner:
        return run_command(words, run_loop=runner.run)


@dataclass(frozen=True, slots=True)
class Command:
    """Runs command lines against one store, at its address."""

    address: str

    async def run(self, *words: str) -> tuple[int, list[dict[str, object]]]:
        """The exit code, and what was said as JSON."""
        stream = io.StringIO()
        arguments = parse([*words, "-o", "json", "--cluster", self.address])
        context = Context(
            output=Output("json", stream=stream),
            environ={},
            clock=SystemClock(),
            host=SystemHost(),
            random_source=random.Random(1),
        )
        code: int = await arguments.run(arguments, context)
        return code, [json.loads(line) for line in stream.getvalue().splitlines()]


@asynccontextmanager
async def command_on_a_store(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    """A store, and commands at its address; ingest and delivery are away."""
    async with served_store(data) as store:

        @asynccontextmanager
        async def connect(address: str, **_options: object) -> AsyncIterator[Client]:
            # The store was not told its port: its own topology names the default one.
            channels = Channels()
            topology = Topology("test", (address,), ("127.0.0.1:1",), ("127.0.0.1:1",))
            yield Client(topology, channels=channels, clock=SystemClock(), random_source=random.Random(1))
            await channels.close()

        monkeypatch.setattr("eddyline.cli.verb.connect", connect)
        yield Command(store.address)
