"""Counters and gauges of a delivery process, for GetStatus and its metrics.

Threading: event loop only; the module in which an event happens counts it.
"""

from __future__ import annotations

from eddyline.core.telemetry.metrics import Histogram
from eddyline.delivery.schedule.governor import PressureReading
from eddyline.delivery.schedule.scheduler import BANDS


class DeliveryStats:
    """Counts since the start, present values, and the last pressure sample: every 100 ms while there is any pressure.

    `latency` = seconds from a record's commit to its push into a ring, once a frame from the store.
    """

    __slots__ = (
        "delivered_bytes",
        "delivered_count",
        "draining",
        "latency",
        "latency_s",
        "longest_wait_s",
        "queued_bytes",
        "reading",
        "ready",
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
        """True = it accepts no new streams, and sends going_away on the open ones."""
        self.delivered_count = 0
        self.delivered_bytes = 0
        self.latency = Histogram()
        self.queued_bytes = 0
        """Bytes given to the streams' transports and not yet accepted by them."""
        self.turn_count = 0
        """Turns of topics."""
        self.turn_wait_s = 0.0
        """Total time that topics waited for their turns, in seconds."""
        self.served_records = [0] * BANDS
        """Records that turns delivered, B0 to B4, once for each subscription; turns served at once do not count."""
        self.reading = PressureReading()
        self.latency_s = 0.0
        """Scheduling latency: moving average of the time that topics wait for their turn."""
        self.ready: tuple[int, ...] = (0,) * BANDS
        """Topics that wait for their turn, B0 to B4."""
        self.longest_wait_s = 0.0
        """Longest present wait of a topic, in seconds."""

    def count_turn(self, waited_s: float) -> None:
        """Count one turn of a topic."""
        self.turn_count += 1
        self.turn_wait_s += waited_s
