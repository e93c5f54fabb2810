"""Delivery's settings: the environment names `EDDYLINE_DELIVERY_…`, each with its reason.

Bounds that protect the process rather than fit it to a machine are constants of the modules that own them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eddyline.core.runtime.settings import check_address, check_range

PREFIX: Final = "EDDYLINE_DELIVERY_"

LISTEN: Final = "127.0.0.1:7703"
"""Any address but loopback needs keys or clients' certificates. Port 0 takes a free one, which the ready line prints."""
WATCHES_MAX: Final = 10_000
"""Unbounded in gRPC. An idle stream costs 23 KiB in gRPC and 4 KiB here, so this many cost 270 MiB; each may hold one
frame of 64 KiB in its send buffer if its reader is stalled. 0 = the server's bound.
"""
WATCHES_MAX_MAX: Final = 16_000
"""The server accepts 16 384 calls at once; some must be left for health and status."""
BUFFER_BYTES: Final = 256 << 20
"""Of all rings together, from which caught-up subscribers are served.

At 100 MB/s of new records the slowest of them has 2.5 s before it reads from the log.
"""
BUFFER_BYTES_MAX: Final = 64 << 30
TOPIC_BUFFER_BYTES: Final = 16 << 20
"""Of one topic's ring, so that a busy topic does not evict the others: a sixteenth of all."""
STREAM_AGE_MS_MAX: Final = 1_800_000
"""Unbounded in gRPC: clients stay at their first replica, and a new replica gets none of them.

In half an hour, a tenth more or less, all have reconnected once; 10 000 streams are 6 resumes a second. The connection
reaches the same age.
"""
STREAM_AGE_MS_MIN: Final = 1_000
STREAM_AGE_MS_MAX_MAX: Final = 86_400_000
STOP_GRACE_MS: Final = 5_000
"""Watch streams never end on their own: time to send going_away on all of them, 2 000 a second.

Those that do not read are cancelled at its end, and resume by their cursors without loss. Without streams the process
exits at once.
"""
STOP_GRACE_MS_MAX: Final = 600_000

assert TOPIC_BUFFER_BYTES <= BUFFER_BYTES
assert WATCHES_MAX <= WATCHES_MAX_MAX


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of a delivery role. `metrics_listen` empty = its metrics are not scraped."""

    listen: str = LISTEN
    metrics_listen: str = ""
    watches_max: int = WATCHES_MAX
    buffer_bytes: int = BUFFER_BYTES
    topic_buffer_bytes: int = TOPIC_BUFFER_BYTES
    stream_age_ms_max: int = STREAM_AGE_MS_MAX
    stop_grace_ms: int = STOP_GRACE_MS

    def __post_init__(self) -> None:
        check_address(f"{PREFIX}LISTEN", self.listen)
        if self.metrics_listen:
            check_address(f"{PREFIX}METRICS_LISTEN", self.metrics_listen)
        check_range(f"{PREFIX}WATCHES_MAX", self.watches_max, 0, WATCHES_MAX_MAX)
        check_range(f"{PREFIX}BUFFER_BYTES", self.buffer_bytes, 0, BUFFER_BYTES_MAX)
        check_range(f"{PREFIX}TOPIC_BUFFER_BYTES", self.topic_buffer_bytes, 0, BUFFER_BYTES_MAX)
        if self.stream_age_ms_max:
            check_range(f"{PREFIX}STREAM_AGE_MS_MAX", self.stream_age_ms_max, STREAM_AGE_MS_MIN, STREAM_AGE_MS_MAX_MAX)
        check_range(f"{PREFIX}STOP_GRACE_MS", self.stop_grace_ms, 0, STOP_GRACE_MS_MAX)
