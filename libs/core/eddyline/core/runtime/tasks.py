"""Work that goes on beside a block, until the block is left.

A bare task would outlive an error of the block, and a task group alone would wrap it: `except` clauses around the block
would no longer meet what was raised in it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def beside(work: Coroutine[object, object, NoReturn], *, name: str) -> AsyncIterator[None]:
    """Run `work` as the task `name` until left. What is raised inside comes out as it is."""
    raised: BaseException | None = None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work, name=name)
        try:
            yield
        except BaseException as error:  # raised again as it is: a group would wrap it
            raised = error
        task.cancel()
    if raised is not None:
        raise raised
