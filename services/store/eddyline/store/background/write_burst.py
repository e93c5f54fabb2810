"""Write bursts: while appends are very fast, the store postpones its background jobs.

Sealing a record costs about as much processor time as appending it. During a burst, as long as little is unsegmented, all
processor time goes to the appends; once the burst ends, or a share of the unsegmented bound is used, the jobs catch up.
A burst is a rate, measured between two calls: a trickle of appends never postpones jobs.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.write.engine import Engine

BURST_BYTES_PER_S: Final = 16 << 20
"""A tenth of what two cores append at most: below it there is processor time for both."""
BURST_BYTES_MIN: Final = 4 << 20
"""Minimum between two calls: a quarter of a second at that rate. A few appends within a moment are no burst."""
UNSEGMENTED_SHARE: Final = 4
"""A burst may leave one of so many parts of `unsegmented_bytes_max` unsegmented: by default 1 GiB, 4 s of a restart's
indexing."""


class WriteBurst:
    """Measures the rate at which the log grows."""

    def __init__(self, engine: Engine, clock: Clock, *, unsegmented_bytes_max: int) -> None:
        self._engine = engine
        self._clock = clock
        self._bytes_max = unsegmented_bytes_max // UNSEGMENTED_SHARE
        self._last_bytes = 0
        self._last_s = clock.monotonic_s()

    def is_active(self) -> bool:
        """Return whether a burst goes on, by the growth of the log since the previous call."""
        now_s = self._clock.monotonic_s()
        placed_bytes = sum(committer.wal.placed_bytes for committer in self._engine.committers)
        passed_s, grown_bytes = now_s - self._last_s, placed_bytes - self._last_bytes
        self._last_s, self._last_bytes = now_s, placed_bytes
        unsegmented_bytes = sum(committer.wal.bytes_total for committer in self._engine.committers)
        return unsegmented_bytes < self._bytes_max and grown_bytes > max(passed_s * BURST_BYTES_PER_S, BURST_BYTES_MIN)
