"""Threads that run blocking jobs: order, results, and when they have nothing to do."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from eddyline.store.runtime.workers import ThreadWorker


async def test_jobs_run_in_order_and_their_results_come_on_the_loop() -> None:
    worker = ThreadWorker("one")
    ran: list[int] = []

    def job(number: int) -> int:
        ran.append(number)
        return number

    jobs = [worker.submit(partial(job, number)) for number in range(5)]
    assert [await future for future in jobs] == [0, 1, 2, 3, 4]
    assert ran == [0, 1, 2, 3, 4]
    worker.close()


async def test_it_is_idle_once_every_result_is_on_the_loop() -> None:
    worker, gate = ThreadWorker("one"), threading.Event()
    assert worker.is_idle
    first, second = worker.submit(gate.wait), worker.submit(lambda: None)
    assert not worker.is_idle
    gate.set()
    await first
    await second
    assert worker.is_idle
    worker.close()


async def test_it_is_idle_after_a_failed_and_a_cancelled_job() -> None:
    worker, gate = ThreadWorker("one"), threading.Event()
    running = worker.submit(gate.wait)
    failing = worker.submit(lambda: 1 // 0)
    cancelled = worker.submit(lambda: pytest.fail("it was cancelled before its turn"))
    cancelled.cancel()
    gate.set()
    await running
    with pytest.raises(ZeroDivisionError):
        await failing
    await worker.submit(lambda: None)
    assert worker.is_idle
    worker.close()


async def test_closed_worker_is_not_idle() -> None:
    worker = ThreadWorker("one")
    worker.close()
    assert not worker.is_idle
