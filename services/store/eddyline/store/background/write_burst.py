"""Whether appends come so fast just now that the store's own jobs step aside.

Sealing a record costs about as much processor time as appending it. While a burst lasts, and little waits to be sealed,
all of that goes to the appends; once the burst ends, or a share of what may stay unsegmented is used, the jobs catch up.
A burst is a rate, measured from one look to the next: what trickles is never put off.
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
"""Between two looks: a quarter of a second at that rate. A few appends in no time are no burst."""
UNSEGMENTED_SHARE: Final = 4
"""A burst may leave this part of `unsegmented_bytes_max` to be sealed: by default 1 GiB, 4 s of a restart's indexing."""


class WriteBurst:
    """Measures the rate at which the log grows."""

    def __init__(self, engine: Engine, clock: Clock, *, unsegmented_bytes_max: int) -> None:
        self._engine = engine
        self._clock = clock
        self._bytes_max = unsegmented_bytes_max // UNSEGMENTED_SHARE
        self._seen_bytes = 0
        self._seen_s = clock.monotonic_s()

    def is_active(self) -> bool:
        """True = let the appends have it all. Each call looks at the time since the one before."""
        now_s = self._clock.monotonic_s()
        placed_bytes = sum(committer.wal.placed_bytes for committer in self._engine.committers)
        passed_s, grown_bytes = now_s - self._seen_s, placed_bytes - self._seen_bytes
        self._seen_s, self._seen_bytes = now_s, placed_bytes
        kept_bytes = sum(committer.wal.bytes_total for committer in self._engine.committers)
        return kept_bytes < self._bytes_max and grown_bytes > max(passed_s * BURST_BYTES_PER_S, BURST_BYTES_MIN)
