"""One thread for blocking work of an event loop: in order, one piece at a time, and never abandoned half done.

Threading: used by one loop; the thread ends with `close`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class WorkerThread:
    """A thread of its own; see the module's docstring."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
        """Do `work` on the thread, then `then` here with what came of it: both or neither.

        A cancel that comes meanwhile waits for both, and is raised then.
        """
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
        result = running.result()
        if then is not None:
            then(result)
        if cancelled is not None:
            raise cancelled
        return result

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Queue `work` behind the work submitted before, without waiting."""
        return self._executor.submit(work)

    def close(self) -> None:
        """End the thread once the work submitted before is done."""
        self._executor.shutdown()
