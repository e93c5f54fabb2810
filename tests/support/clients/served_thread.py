"""Servers for blocking callers: an asynchronous context runs in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tests.support.hang import HANG_S
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

T = TypeVar("T")


@contextmanager
def served_in_thread(serving: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter `serving` in a new thread and yield its value; leave it there at the end."""
    ready: Future[tuple[T, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with serving as value:
            ended = asyncio.Event()
            ready.set_result((value, asyncio.get_running_loop(), ended))
            await ended.wait()

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="server")
    thread.start()
    value, loop, ended = ready.result(HANG_S)
    try:
        yield value
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(HANG_S)
        assert not thread.is_alive()


@contextmanager
def store_in_thread(data: Path) -> Iterator[str]:
    """Serve a store; yield its address."""
    with served_in_thread(served_store(data)) as store:
        yield store.address
