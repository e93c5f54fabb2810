"""Memory guard: while the whole process holds more than its bound, refuses appends and ends those half received.

Budgets bound the memory that the store plans with. They do not cover messages that gRPC has received in part: the store
learns of a message only once it is complete, and many streams may each send 64 MiB at once. So the kernel's count of the
process decides. Above the bound (budget + `PROCESS_BYTES`) the guard returns freed memory to the kernel, appends get
`MEMORY_FULL`, and append streams end with it, which frees the messages they have received. A client that resumes with its
idempotency keys neither loses nor repeats a record. Reads and background jobs continue.
Threading: one task on the event loop; memory is returned on the reader threads.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.write.admission import AdmissionControl

logger = logging.getLogger(__name__)

ROUND_S: Final = 0.02
"""50 polls a second, of 5 us each: between two of them loopback brings 40 MB."""
CALM_ROUND_S: Final = 0.25
CALM_PART: Final = 2
"""Below half of the bound, 320 MiB at least, the guard polls less often: no load fills the other half in that time."""
PROCESS_BYTES: Final = 384 << 20
"""Memory of a process outside its budget: the interpreter with its libraries (110 MiB), and one message of the largest size
in its four forms: received, parsed, as columns, as a frame."""
GIVE_BACK_ROUNDS: Final = 10
"""Polls between two returns of memory to the kernel: 0.2 s, since it stops every thread for a moment."""


class Memory(Protocol):
    """The process's memory."""

    def resident_bytes(self) -> int:
        """Resident bytes; 0 = unknown."""

    def give_back(self) -> None:
        """Return free pages to the kernel. Blocking."""


class MemoryGuard:
    """Closes and opens admission by the process's resident memory."""

    def __init__(
        self,
        *,
        memory: Memory,
        worker: Worker,
        gate: AdmissionControl,
        clock: Clock,
        memory_bytes: int,
        shed: Callable[[bool], None],
    ) -> None:
        self._memory = memory
        self._worker = worker
        self._gate = gate
        self._clock = clock
        self._bytes_max = memory_bytes + PROCESS_BYTES
        self._shed = shed
        self._rounds_above = 0

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            calm = self._gate.resident_bytes < self._bytes_max // CALM_PART
            await sleep(self._clock, CALM_ROUND_S if calm else ROUND_S)
            await self.poll()

    async def poll(self) -> None:
        """Poll once."""
        gate = self._gate
        gate.resident_bytes = self._memory.resident_bytes()
        if gate.resident_bytes <= self._bytes_max:
            self._rounds_above = 0
            if gate.memory_is_full:
                gate.memory_is_full = False
                self._shed(False)
                logger.warning("memory_below_bound", extra=fields(resident_bytes=gate.resident_bytes))
            return
        if not gate.memory_is_full:
            gate.memory_is_full = True
            logger.warning(
                "memory_above_bound", extra=fields(resident_bytes=gate.resident_bytes, bytes_max=self._bytes_max)
            )
        self._shed(True)
        if self._rounds_above % GIVE_BACK_ROUNDS == 0:
            await self._worker.submit(self._memory.give_back)
        self._rounds_above += 1
