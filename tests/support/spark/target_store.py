"""A store's process to write to, and what its topics hold; used by tests that block, so everything here does too."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.client.connect import connect
from eddyline.core.errors import EddylineError, TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from eddyline.core.runtime.clock import SystemClock
from eddyline.spark.writer.partition import PartitionWriter, Target
from eddyline.spark.writer.store_channel import open_store_channel
from tests.support.cluster.processes import free_address, store_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.core.model.topic import TopicInfo
    from eddyline.spark.writer.partition import RowSource, WriteResult

TURNS_MAX: Final = 2_000
"""Of 50 ms: more than a loaded machine needs for anything."""


class TopicAt(NamedTuple):
    """A topic of a store."""

    address: str
    topic: str
    kind: Kind = Kind.LOG

    def make(self) -> TopicInfo:
        """Create it."""
        with open_store_channel([self.address], self.topic) as link:
            return link.create_topic(self.kind)

    def info(self) -> TopicInfo:
        """As it is now."""
        with open_store_channel([self.address], self.topic) as link:
            return link.get_topic()

    async def records(self) -> list[Record]:
        """All it holds."""
        async with connect(self.address) as client:
            return [record async for record in client.read(self.topic) if isinstance(record, Record)]

    async def data(self) -> list[bytes]:
        """The data of its records, in order."""
        return [record.data or b"" for record in await self.records()]

    def write(
        self, rows: RowSource, *, writer: str = "w", run: int = 0, epoch: int = 0, patience_s: float = 30.0
    ) -> WriteResult:
        """Write rows as one partition."""
        target = Target((self.address,), self.topic, self.kind, epoch, writer, run, patience_s)
        return PartitionWriter(rows, target, clock=SystemClock(), random_source=random.Random(7)).write()


@contextmanager
def store_for_many(directory: Path) -> Iterator[str]:
    """A store for a session's tests, each with a topic of its own; its address."""
    with asyncio.Runner() as runner:
        store = store_process(directory / "store")
        _, address = runner.run(store.__aenter__())
        try:
            yield address
        finally:
            runner.run(store.__aexit__(None, None, None))


class KillableStore:
    """A store's process that is killed and comes back, at the same address and with the same files."""

    def __init__(self, directory: Path) -> None:
        self.address = free_address()
        settings = {"EDDYLINE_STORE_LISTEN": self.address, "EDDYLINE_STORE_DATA_DIR": str(directory / "store")}
        self._environment = {**os.environ, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it serves."""
        self._process = subprocess.Popen([sys.executable, "-m", "eddyline.store"], env=self._environment)
        for _ in range(TURNS_MAX):
            try:
                with open_store_channel([self.address], "any") as link:
                    link.get_topic()
            except TopicNotFound:
                return
            except EddylineError:
                _pause()
            else:
                return
        raise AssertionError("the store never served")

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def wait_for_file(path: Path) -> None:
    """Wait until another process has made a file."""
    for _ in range(TURNS_MAX):
        if path.exists():
            return
        _pause()
    raise AssertionError(f"{path.name} never came")


def _pause() -> None:
    threading.Event().wait(0.05)
