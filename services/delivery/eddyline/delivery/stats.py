"""Figures of a delivery process, as GetStatus and its metrics show them.

Threading: event loop only; whoever owns an event counts it.
"""

from __future__ import annotations

from eddyline.core.telemetry.metrics import Histogram
from eddyline.delivery.schedule.governor import PressureReading
from eddyline.delivery.schedule.scheduler import BANDS


class DeliveryStats:
    """Counts since the start, what is open now, and the pressure as last sampled: each 100 ms while there is any.

    `latency` = seconds from a record's commit to its place in a ring, once a frame of the store's.
    """

    __slots__ = (
        "delivered_bytes",
        "delivered_count",
        "draining",
        "latency",
        "latency_s",
        "longest_wait_s",
        "queued_bytes",
        "ready",
        "ruling",
        "served_records",
        "start_s",
        "turn_count",
        "turn_wait_s",
        "watch_count",
    )

    def __init__(self, *, start_s: float = 0.0) -> None:
        self.start_s = start_s
        self.watch_count = 0
        self.draining = False
        """It takes no new streams, and sends those that are open elsewhere."""
        self.delivered_count = 0
        self.delivered_bytes = 0
        self.latency = Histogram()
        self.queued_bytes = 0
        """Bytes given to the streams' transports and not yet taken by them."""
        self.turn_count = 0
        """Turns of topics."""
        self.turn_wait_s = 0.0
        """How long topics waited for their turns, all of them together."""
        self.served_records = [0] * BANDS
        """Records that turns delivered, B0 to B4, once for each subscription; turns that need not wait do not count."""
        self.ruling = PressureReading()
        self.latency_s = 0.0
        """Scheduling latency: how long topics wait for their turn, as a moving average."""
        self.ready: tuple[int, ...] = (0,) * BANDS
        """Topics that wait for their turn, B0 to B4."""
        self.longest_wait_s = 0.0
        """How long the one of them has waited that waits longest."""

    def count_turn(self, waited_s: float) -> None:
        """A topic had its turn."""
        self.turn_count += 1
        self.turn_wait_s += waited_s
