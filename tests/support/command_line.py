"""Command lines run in this process: as a user runs them, or against a store of the test's own."""

from __future__ import annotations

import asyncio
import io
import json
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from eddyline.cli.command import Context
from eddyline.cli.main import parse_arguments, run_command
from eddyline.cli.terminal.output import Output
from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.core.runtime.clock import SystemClock, SystemHost
from tests.support.clients.clients import client_at
from tests.support.store.scripted_shard import scripted_store
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    import pytest

    from eddyline.cli.terminal.output import OutputFormat
    from eddyline.core.runtime.clock import Clock
    from tests.support.store.scripted_shard import ScriptedShard


def main(words: list[str]) -> int:
    """Run one command line as a user does; the exit code."""
    with asyncio.Runner() as runner:
        return run_command(words, run_loop=runner.run)


@dataclass(frozen=True, slots=True)
class Command:
    """Runs command lines against one store, at its address."""

    address: str
    clock: Clock = field(default_factory=SystemClock)

    async def run(self, *words: str) -> tuple[int, list[dict[str, object]]]:
        """The exit code, and the output as JSON."""
        code, said = await self._run("json", words)
        return code, [json.loads(line) for line in said.splitlines()]

    async def text(self, *words: str) -> tuple[int, str]:
        """The exit code, and the output as text."""
        return await self._run("text", words)

    async def _run(self, output_format: OutputFormat, words: Sequence[str]) -> tuple[int, str]:
        stream = io.StringIO()
        arguments = parse_arguments([*words, "-o", output_format, "--cluster", self.address])
        context = Context(
            output=Output(output_format, stream=stream),
            environ={},
            clock=self.clock,
            host=SystemHost(),
            random_source=random.Random(1),
        )
        code: int = await arguments.run(arguments, context)
        return code, stream.getvalue()


@asynccontextmanager
async def command_on_a_store(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    """A store, and commands at its address; ingest and delivery are away."""
    async with served_store(data) as store:
        yield command_at(store.address, monkeypatch)


@asynccontextmanager
async def command_on_a_door(door: ScriptedShard | None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    """A store that is this door (None = one that recovers), and commands at its address; the other roles are away."""
    async with scripted_store(door) as store:
        yield command_at(store.address, monkeypatch)


def command_at(
    address: str, monkeypatch: pytest.MonkeyPatch, *, ingest: str = "127.0.0.1:1", delivery: str = "127.0.0.1:1"
) -> Command:
    """Commands at a store's and other roles' addresses; those that are not given are away."""

    @asynccontextmanager
    async def connect(address: str, **_options: object) -> AsyncIterator[Client]:
        # The store knows its own address only: its topology names the default ones of the other roles.
        topology = Topology("test", (address,), (ingest,), (delivery,))
        async with client_at(topology, random_source=random.Random(1)) as client:
            yield client

    monkeypatch.setattr(import_module("eddyline.client.connect"), "connect", connect)
    return Command(address)
