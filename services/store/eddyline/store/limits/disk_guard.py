"""Disk guard: polls free space; below its floor `write/admission.py` refuses appends, well before the disk is full.

The space below the floor is for the work that must continue: deletes, floors, topic deletes, checkpoints, and the merges
and rewrites that free space. Reads continue too. Meanwhile the status is `DISK_FLOOR`, and health says that writes are not
served.
I1: appends are accepted again without an operator's action, once the free space exceeds the floor by a margin, so that the
first of them do not close the gate again. I2: a failed poll changes nothing. Each poll also counts the bytes of the WAL's
files, spare files included. Between two polls admission counts the bytes it takes, and refuses appends that may use up the
space before the next poll.
Failure: if another process fills the disk faster than the guard polls it (the floor's bytes between two polls), a write
fails, which is the WAL's `SYNC_FAILED`; so does a full disk with a floor of 0.
Threading: one task on the event loop; polls run on the reader threads, since the background thread may write for seconds.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.clock import wait_event
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.write.admission import AdmissionControl

logger = logging.getLogger(__name__)

ROUND_S: Final = 1.0
NEAR_ROUND_S: Final = 0.1
NEAR_BYTES: Final = 1 << 30
"""How often the guard polls (a call of 3 us): ten times a second within 1 GiB of the floor, since a disk of 2 GB/s fills
that in half a second, and the floor's own 512 MiB in two polls more."""
MARGIN_BYTES_MAX: Final = 64 << 20
MARGIN_PART: Final = 8
"""Free space above the floor before appends are accepted again: an eighth of the floor, at most a WAL file, which the next
append may begin. Without a margin the gate would open and close with every frame."""


class DiskGuard:
    """Closes and opens admission by the disk's free space."""

    def __init__(
        self,
        *,
        fs: Fs,
        directory: Path,
        wal_directories: Sequence[Path],
        worker: Worker,
        gate: AdmissionControl,
        clock: Clock,
        floor_bytes: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._worker = worker
        self._gate = gate
        self._clock = clock
        self._floor_bytes = floor_bytes
        self._wal_directories = wal_directories
        self._wal_bytes = 0

    def _measured(self) -> int:
        """Return the free bytes, and count those of the WAL. Blocking."""
        self._wal_bytes = sum(map(self._bytes_in, self._wal_directories))
        return self._fs.free_bytes(self._directory)

    def _bytes_in(self, directory: Path) -> int:
        total = 0
        for name in self._fs.listdir(directory):
            with suppress(FileNotFoundError):  # the file was removed meanwhile
                total += self._fs.disk_bytes(directory / name)
        return total

    async def run(self) -> None:
        """Poll until cancelled: on a timer, and soon after a refused append, so that freed space is noticed at once."""
        wake = self._gate.refused_by_disk
        while True:
            near = self._gate.disk_free_bytes < self._floor_bytes + NEAR_BYTES
            await wait_event(self._clock, wake, ROUND_S if not near or self._gate.disk_is_low else NEAR_ROUND_S)
            wake.clear()
            await self.poll()

    async def poll(self) -> None:
        """Poll once."""
        try:
            free_bytes = await self._worker.submit(self._measured)
        except OSError as error:
            logger.warning("disk_not_looked_at", extra=fields(error=str(error)))
            return
        gate = self._gate
        margin_bytes = min(self._floor_bytes // MARGIN_PART, MARGIN_BYTES_MAX) if gate.disk_is_low else 0
        is_low = bool(self._floor_bytes) and free_bytes < self._floor_bytes + margin_bytes
        if is_low is not gate.disk_is_low:
            event = "disk_below_floor" if is_low else "disk_above_floor"
            logger.warning(event, extra=fields(free_bytes=free_bytes, floor_bytes=self._floor_bytes))
        gate.wal_bytes = self._wal_bytes
        gate.set_disk(free_bytes, self._floor_bytes, is_low=is_low)
