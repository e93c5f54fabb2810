"""Watching what the whole process holds: above its bound the store takes no appends, and ends those half received.

Budgets bound what the store holds on purpose, and gates what is under way; what gRPC has received of messages that are not
whole yet is in neither: nobody knows of it before the message is there, and many streams may each send 64 MiB at once. So
the kernel's count of the process is the last word. Above the bound freed memory is given back to the kernel, appends are
refused with `MEMORY_FULL`, and streams of appends are ended with it, which lets go of what they have received; who resumes
with his idempotency keys loses and repeats nothing. Reads and upkeep go on.
The bound is the budget and `PROCESS_BYTES`.
Threading: one task on the event loop; memory is given back on the reader threads.
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
"""50 looks a second, of 5 us each: in between loopback brings 40 MB."""
CALM_ROUND_S: Final = 0.25
CALM_PART: Final = 2
"""Below half of the bound, 320 MiB at least, it is looked at less often: nothing brings the other half in so long."""
PROCESS_BYTES: Final = 384 << 20
"""What a process takes beside its budget: the interpreter with its libraries (110 MiB), and one message of the largest size
in its four forms, as received, parsed, as columns, and as a frame."""
GIVE_BACK_ROUNDS: Final = 10
"""Rounds between two times that memory is given back: 0.2 s, since it holds everybody up."""


class Memory(Protocol):
    """The process's memory."""

    def resident_bytes(self) -> int:
        """Bytes resident; 0 = not known."""

    def give_back(self) -> None:
        """Give free pages back. Blocking."""


class MemoryGuard:
    """Shuts and opens the write gate by what the process holds."""

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
        """Look, for ever."""
        while True:
            calm = self._gate.resident_bytes < self._bytes_max // CALM_PART
            await sleep(self._clock, CALM_ROUND_S if calm else ROUND_S)
            await self.look()

    async def look(self) -> None:
        """Look once."""
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
