"""One process of the local cluster, kept running: started, watched until it is ready, started again when it dies.

*Invariant:* at most one process a part; none outlives `stop`. A part that was held (a drill) does not start until released.
Failure: a part that keeps dying is started again for ever, with backoff; who waits for its first readiness gives up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster import launcher
from eddyline.cli.local_cluster.folder import last_log_line, log_path, open_log
from eddyline.cli.terminal.units import format_bytes
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep, wait_event

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping

    from eddyline.core.runtime.clock import Clock

RESTART_S_MIN: Final = 0.2
RESTART_S_MAX: Final = 10.0
STABLE_S: Final = 30.0
"""A part that ran this long died of something new: its backoff starts over."""
POLL_S: Final = 0.05
PROGRESS_S: Final = 2.0
"""Interval at which a long start is polled for its progress and reported."""
FIRST_DEATHS_MAX: Final = 3
"""Deaths before the first readiness: a wrong setting does not mend itself."""
STOP_S: Final = 10.0
"""Time for a clean stop; then SIGKILL, which every part is made to survive."""

PartEventKind = Literal["note", "started", "ready", "died", "stopped"]
"""A note is what one should know of how it is started."""


async def no_progress(_pid: int) -> int:
    """Of a part whose start is short."""
    return 0


async def no_trouble(_pid: int) -> str:
    """Of a part that ends where it cannot serve."""
    return ""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to run: its command line, environment and readiness check. `variables` are added to the environment;
    `is_ready(pid)`: that very process serves; `progress(pid)`: bytes that it has recovered, which grow while a start gets
    on; `trouble(pid)`: why its first start will not get on."""

    name: str
    command: tuple[str, ...]
    address: str
    is_ready: Callable[[int], Awaitable[bool]]
    variables: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[int], Awaitable[int]] = no_progress
    trouble: Callable[[int], Awaitable[str]] = no_trouble


@dataclass(frozen=True, slots=True)
class PartEvent:
    """An event of a part; `detail` is text for people."""

    name: str
    kind: PartEventKind
    pid: int
    detail: str = ""


class ManagedProcess:
    """A part under supervision. `run` belongs to the supervisor's task group."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        data: Path,
        clock: Clock,
        random_source: random.Random,
        tell: Callable[[PartEvent], None],
    ) -> None:
        self.spec = spec
        self.pid = 0
        self.start_count = 0
        self._data = data
        self._clock = clock
        self._tell = tell
        self._backoff = Backoff(random_source, base_s=RESTART_S_MIN, cap_s=RESTART_S_MAX)
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._ready = asyncio.Event()
        self._released = asyncio.Event()
        self._released.set()
        self._has_served = False
        self._last_words = ""
        self._trouble = ""
        self._hopeless = asyncio.Event()
        self._moved_s = 0.0

    async def run(self) -> None:
        """Keep it running until `stop`."""
        await self._keep_running()
        self._tell(PartEvent(self.spec.name, "stopped", 0))

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until it says that it serves.

        Raises:
            CommandError: it did not within `timeout_s` in which its start got no further, or it keeps dying.
        """
        begun_s = self._clock.monotonic_s()
        while not self._ready.is_set():
            left_s = max(begun_s, self._moved_s) + timeout_s - self._clock.monotonic_s()
            if self._hopeless.is_set() or left_s <= 0:
                what = "makes no progress" if self._trouble else "fails at each start"
                if not self._hopeless.is_set():
                    what = f"is not ready and made no progress for {timeout_s:g} s"
                words = [self._trouble, self._last_words or last_log_line(self._data, self.spec.name)]
                said = ": " + "; its last log line: ".join(filter(None, words)) if any(words) else ""
                raise CommandError(
                    f"{self.spec.name} {what}{said}",
                    f"read {log_path(self._data, self.spec.name)}",
                )
            await wait_event(self._clock, self._ready, min(left_s, POLL_S))

    async def kill(self, *, hold: bool = False) -> None:
        """SIGKILL it, wait for its end, and let it start again; `hold` keeps it down until `release`."""
        if hold:
            self._released.clear()
        self._ready.clear()
        self._signal(signal.SIGKILL)
        await self._ended.wait()

    def suspend(self) -> None:
        """Stop its process where it is, connections open, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a process that hangs go on."""
        self._signal(signal.SIGCONT)

    def release(self) -> None:
        """Let a held part start again."""
        self._backoff.reset()
        self._released.set()

    async def stop(self) -> None:
        """End it for good: SIGTERM, after a while SIGKILL."""
        self._stopping.set()
        self._released.set()
        self._signal(signal.SIGTERM)
        try:
            if not await wait_event(self._clock, self._ended, STOP_S):
                self._signal(signal.SIGKILL)
                await self._ended.wait()
        except asyncio.CancelledError:
            self._signal(signal.SIGKILL)
            raise

    async def _keep_running(self) -> None:
        while not self._stopping.is_set():
            await self._released.wait()
            if self._stopping.is_set():
                return
            started_s = self._clock.monotonic_s()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self._tell(PartEvent(self.spec.name, "died", 0, self._how_it_died(code)))
            if self._clock.monotonic_s() - started_s >= STABLE_S:
                self._backoff.reset()
            await wait_event(self._clock, self._stopping, self._backoff.next_delay_s())

    async def _run_once(self) -> int:
        log = open_log(self._data, self.spec.name)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                launcher.__file__,
                str(os.getpid()),
                *self.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.variables},
                # Its own session: Ctrl-C reaches the supervisor alone, which takes the parts down in order.
                start_new_session=True,
            )
        finally:
            os.close(log)
        self.pid = process.pid
        self.start_count += 1
        self._ended.clear()
        try:
            # Within: where nobody can be told, the process ends all the same.
            self._tell(PartEvent(self.spec.name, "started", process.pid))
            if self._stopping.is_set():
                self._signal(signal.SIGTERM)
            async with asyncio.TaskGroup() as group:
                readiness = group.create_task(self._watch_readiness())
                code = await process.wait()
                readiness.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self.pid = 0
            # Before the next start rotates the log.
            self._last_words = last_log_line(self._data, self.spec.name)
            if not self._has_served and self.start_count >= FIRST_DEATHS_MAX:
                self._hopeless.set()
            self._ready.clear()
            self._ended.set()
        return code

    async def _watch_readiness(self) -> None:
        done, asked_s = 0, self._clock.monotonic_s()
        while not await self.spec.is_ready(self.pid):
            if self._clock.monotonic_s() - asked_s >= PROGRESS_S:
                before, done = done, await self.spec.progress(self.pid)
                asked_s = self._clock.monotonic_s()
                self._trouble = "" if self._has_served else await self.spec.trouble(self.pid)
                if self._trouble:
                    self._hopeless.set()
                if done > before:
                    self._moved_s = asked_s
                    self._tell(PartEvent(self.spec.name, "note", self.pid, f"recovering, {format_bytes(done)} done"))
            await sleep(self._clock, POLL_S)
        self._ready.set()
        self._has_served = True
        self._tell(PartEvent(self.spec.name, "ready", self.pid))

    def _how_it_died(self, code: int) -> str:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}; last log line: {self._last_words}" if self._last_words and code > 0 else how

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return
