"""Tasks that run during a block or a call, and end with it.

A bare task would outlive an error of the block, and `asyncio.TaskGroup` alone would wrap that error in a group, so that
`except` clauses around the block would not match it. Here an error of the block or the call comes out as itself: a domain
error keeps its code on the way out.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a task group around a block, which cancels the tasks of it that must not run on.

    Raises:
        the block's own error, as it is; ExceptionGroup: a task failed.
    """
    raised: BaseException | None = None
    async with asyncio.TaskGroup() as tasks:
        try:
            yield tasks
        except BaseException as error:  # raised again outside, since the group would wrap it
            raised = error
    if raised is not None:
        raise raised


@asynccontextmanager
async def background_task(*work: Coroutine[object, object, object], name: str) -> AsyncIterator[None]:
    """Run each coroutine of `work` as a task named `name`, and cancel it when the block is left."""
    async with task_group() as tasks:
        running = [tasks.create_task(coroutine, name=name) for coroutine in work]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


async def run_with(foreground: Coroutine[object, object, T], *, background: Coroutine[object, object, None]) -> T:
    """Run both, return what `foreground` returns, and cancel `background` then, if it still runs.

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
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def noop(*_: object) -> None:
    """Do nothing: the default of callbacks that a caller need not give."""
