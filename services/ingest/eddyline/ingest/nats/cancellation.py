"""Preservation of a cancellation that foreign code swallows.

Python's `asyncio.wait_for` before 3.12 returns the result when a cancellation arrives together with it, and nats-py
awaits every answer so: the task would go on as if it had not been cancelled, and a shutdown would never end. Source:
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
    """Wrap foreign awaits: raises CancelledError if the task was cancelled within, whatever their result."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    yield
    if task.cancelling() > cancelled_before:
        raise asyncio.CancelledError
