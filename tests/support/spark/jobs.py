"""For tests of jobs that are killed: a topic that is filled, a wait, and who an executor is."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.client.connect import connect
from eddyline.core.model.topic import Kind
from tests.support.spark.target import TopicAt
from tests.support.spark.topics import append_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eddyline.core.records.record import Record
    from tests.support.cluster.processes import KillableStore

LOOKS_MAX: Final = 50_000
"""Of 10 ms: more than a loaded machine needs for anything."""


def filled(store: KillableStore, name: str, records: Sequence[Record], *, batch: int, kind: Kind = Kind.LOG) -> TopicAt:
    """A topic of a store, which is started, with records in it."""
    store.start()
    topic = TopicAt(store.address, name, kind)
    topic.make()

    async def append() -> None:
        async with connect(store.address) as client:
            await append_all(client, name, records, batch=batch)

    with asyncio.Runner() as runner:
        runner.run(append())
    return topic


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, by what other processes do."""
    for _ in range(LOOKS_MAX):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came")


def executors_of(pid: int) -> list[int]:
    """Processes of Spark's executors below a driver's."""
    return [found for found in _descendants(pid) if _is_executor(found)]


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    # One that ends while it is looked at has none.
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += [int(text) for text in (thread / "children").read_text(encoding="ascii").split()]
    return children + [found for child in children for found in _descendants(child)]


def _is_executor(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return words[0].endswith(b"java") and any(b"CoarseGrainedExecutorBackend" in word for word in words)
    return False
