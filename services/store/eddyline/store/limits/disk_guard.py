"""Watching the free space of the disk: below a floor the shard takes no appends, well before the disk is full.

What is left above nothing is for what must go on: deletes, floors, topic deletes, checkpoints, merges and rewrites, which
are what frees space. Reads go on as well. The status says `DISK_FLOOR`, and health that writes are not served.
I1: appends are taken again by themselves, once there is so much more free than the floor that the first of them do not
shut the gate anew. I2: a failure to look changes nothing.
What the write-ahead log takes of the disk is counted by the same looks: its files, the spare ones too, as long as they are.
Between two looks the gate counts what it takes, and lets nothing pass that may outrun the next.
Failure: a disk that somebody else fills faster than it is looked at (the floor's bytes within a look) fails a write, which
is the WAL's `SYNC_FAILED`; a floor of 0 leaves it to that.
Threading: one task on the event loop; looks run on the reader threads, since the background thread may write for seconds.
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
"""How often it is looked (a call of 3 us): within 1 GiB of the floor ten times a second, as a disk of 2 GB/s takes half a
second for that, and the floor's own 512 MiB two looks more."""
MARGIN_BYTES_MAX: Final = 64 << 20
MARGIN_PART: Final = 8
"""So much above the floor must be free before appends are taken again: an eighth of the floor, at most a WAL file, which the
next append may begin. Without a margin the gate would open and shut with every frame."""


class DiskGuard:
    """Shuts and opens the write gate by the disk's free space."""

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
        """Free bytes; and the WAL's are counted. Blocking."""
        self._wal_bytes = sum(map(self._bytes_in, self._wal_directories))
        return self._fs.free_bytes(self._directory)

    def _bytes_in(self, directory: Path) -> int:
        total = 0
        for name in self._fs.listdir(directory):
            with suppress(FileNotFoundError):  # it went meanwhile
                total += self._fs.disk_bytes(directory / name)
        return total

    async def run(self) -> None:
        """Look, for ever: by the clock, and soon after an append was refused, so that space freed is found at once."""
        wake = self._gate.refused_by_disk
        while True:
            near = self._gate.disk_free_bytes < self._floor_bytes + NEAR_BYTES
            await wait_event(self._clock, wake, ROUND_S if not near or self._gate.disk_is_low else NEAR_ROUND_S)
            wake.clear()
            await self.look()

    async def look(self) -> None:
        """Look once."""
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
        gate.looked_at_disk(free_bytes, self._floor_bytes, is_low=is_low)
