"""Two coroutines of one call side by side: a stream's steps and its answers, or work and what may end it.

Structured: both have ended when `beside` returns. What fails first ends both, and is raised as itself rather than in a
group, so that a domain error keeps its code on the way out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def beside(background: Coroutine[object, object, None], foreground: Coroutine[object, object, T]) -> T:
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
