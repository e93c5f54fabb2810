"""Cancelled scans free their slots: real RocksDB, real threads."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

import pytest

from eddyline.core.errors import TooManyScans
from eddyline.store.fold.fold import VIEWS_MAX
from eddyline.store.runtime.workers import ThreadWorker
from tests.support.manual_clock import settle
from tests.support.store.served import Gate, served_store, until
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.store.runtime.workers import Worker
    from eddyline.store.shard.shard import Shard

T = TypeVar("T")

SCANS = 1_000
PAIRS = tuple((f"{i:04}", "x") for i in range(600))


class AnswerGate(Gate):
    """Delays the result of a thread's job, not the job: its waiter may be cancelled in between."""

    def __init__(self) -> None:
        super().__init__()
        self.held_count = 0

    def worker(self, name: str) -> Worker:
        return _Answering(self, self._open, ThreadWorker(name))


class _Answering:
    def __init__(self, gate: AnswerGate, opened: threading.Event, worker: Worker) -> None:
        self._gate = gate
        self._opened = opened
        self._worker = worker

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        def held() -> T:
            result = job()
            self._gate.held_count += not self._opened.is_set()
            self._opened.wait()
            return result

        return self._worker.submit(held)

    @property
    def is_idle(self) -> bool:
        return self._worker.is_idle

    def close(self) -> None:
        self._worker.close()


async def test_scan_cancelled_while_its_view_opens_closes_it(tmp_path: Path) -> None:
    fold = AnswerGate()
    async with served_store(tmp_path / "store", fold=fold) as store:
        await kv_topic(store.link)
        for number in range(1, VIEWS_MAX + 2):
            fold.close()
            async with asyncio.TaskGroup() as tasks:
                scanning = tasks.create_task(_scan(store.link))
                await until(lambda number=number: fold.held_count == number)  # type: ignore[misc]
                scanning.cancel()
            fold.open()
        await _check_slots(store.link)


async def test_a_thousand_cancelled_scans_leave_every_slot_free(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await kv_topic(store.link)
        await append(store.link, "kv", puts(*PAIRS))
        for number in range(SCANS):
            async with asyncio.TaskGroup() as tasks:
                scanning = tasks.create_task(_scan(store.link))
                await settle(number % 16)
                scanning.cancel()
        await _check_slots(store.link)


async def _scan(link: Shard) -> None:
    async with aclosing(link.range_entries("kv")) as pages:
        async for _ in pages:
            pass


async def _check_slots(link: Shard) -> None:
    """Check that all slots are free, and no more than there are."""
    await link.batch_get_entries("kv", [b"k"])  # after all earlier jobs of the fold's thread
    scans = [link.range_entries("kv") for _ in range(VIEWS_MAX)]
    for scan in scans:
        await anext(scan)
    with pytest.raises(TooManyScans):
        await anext(link.range_entries("kv"))
    for scan in scans:
        await scan.aclose()
