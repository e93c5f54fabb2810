"""Keeping a cancellation that somebody else's code swallows.

Python's `asyncio.wait_for` before 3.12 returns the result when a cancellation arrives together with it, and nats-py
waits so for every answer: the task goes on as if nobody had told it to stop, and a shutdown waits for ever. Source:
CPython issue 81839.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Around foreign awaits: end in CancelledError if the task was cancelled within, whatever came of them."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    yield
    if task.cancelling() > cancelled_before:
        raise asyncio.CancelledError
