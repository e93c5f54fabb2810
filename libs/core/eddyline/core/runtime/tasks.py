"""Work that goes on beside a block, until the block is left.

A bare task would outlive an error of the block, and a task group alone would wrap it: `except` clauses around the block
would no longer meet what was raised in it.

Two coroutines of one call side by side: a stream's steps and its answers, or work and what may end it.

Structured: both have ended when `run_with` returns. What fails first ends both, and is raised as itself rather than in a
group, so that a domain error keeps its code on the way out.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def background_task(work: Coroutine[object, object, NoReturn], *, name: str) -> AsyncIterator[None]:
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


T = TypeVar("T")


async def run_with(foreground: Coroutine[object, object, T], *, background: Coroutine[object, object, None]) -> T:
    """Run both and return what `foreground` returns; `background` is cancelled then, if it still runs.

    Raises:
        the first failure of either, the other being cancelled.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(background)
            result = await foreground
            running.cancel()
        return result
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
