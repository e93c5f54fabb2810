"""Clock and host: the only access to time, boot id and process facts.

Everything that waits takes a `Clock`, so that tests and simulations advance time by hand and no test sleeps.
Threading: one clock serves one event loop; `now_ms` and `monotonic_s` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Harmless after it ran."""


class Clock(Protocol):
    """Source of time for all code below `__main__`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the Unix epoch. It may jump either way."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback()` on the running loop after `delay_s`."""


class Host(Protocol):
    """Facts of a process and its machine."""

    def boot_id(self) -> str:
        """Return an id that changes at every boot; after a change, bytes handed to the kernel may have been lost."""

    def name(self) -> str:
        """Return the host name, for messages."""

    def pid(self) -> int:
        """Return the process id."""


class SystemClock:
    """Clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class SystemHost:
    """Host of the operating system. Without a boot id from the kernel, every start counts as a boot, the safe side."""

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"unknown-{os.getpid()}-{time.time_ns()}"

    def name(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait `seconds` of `clock`."""
    done = asyncio.Event()
    timer = clock.call_later(seconds, done.set)
    try:
        await done.wait()
    finally:
        timer.cancel()


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set, at most `seconds` of `clock`. True = it was set."""
    if event.is_set():
        return True
    if seconds <= 0:
        return False
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        if task is not None:
            task.cancel()

    task = asyncio.current_task()
    # A task that is being cancelled may wait in its cleanup: only cancels that came during this wait count.
    cancels_before = task.cancelling() if task is not None else 0
    timer = clock.call_later(seconds, expire)
    try:
        await event.wait()
    except asyncio.CancelledError:
        if expired and task is not None and task.uncancel() <= cancels_before:
            return event.is_set()
        raise
    finally:
        timer.cancel()
    return True
