"""Workers: when one is idle, as the event loop sees it."""

from __future__ import annotations

import threading

import pytest

from eddyline.store.runtime.workers import ThreadWorker


async def test_worker_is_idle_only_while_no_job_is_queued_or_running() -> None:
    worker, running, gate = ThreadWorker("test"), threading.Event(), threading.Event()

    def first() -> int:
        running.set()
        gate.wait()
        return 1

    assert worker.is_idle
    one, two = worker.submit(first), worker.submit(lambda: 2)
    assert not worker.is_idle
    running.wait()
    assert not worker.is_idle
    gate.set()
    assert (await one, await two) == (1, 2)
    assert worker.is_idle
    worker.close()
    assert not worker.is_idle


async def test_failed_and_cancelled_jobs_leave_the_worker_idle() -> None:
    worker, gate = ThreadWorker("test"), threading.Event()

    def fail() -> None:
        raise ValueError("no")

    held, cancelled, failed = worker.submit(gate.wait), worker.submit(gate.wait), worker.submit(fail)
    cancelled.cancel()
    gate.set()
    assert await held
    with pytest.raises(ValueError, match="no"):
        await failed
    assert worker.is_idle
    worker.close()
