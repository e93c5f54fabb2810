"""Figures of a delivery process, as GetStatus and its metrics show them.

Threading: event loop only; whoever owns an event counts it.
"""

from __future__ import annotations

from eddyline.core.metrics import Histogram


class Figures:
    """Counts since the start, and what is open now. `latency` = seconds from a record's commit to its place in a ring, once
    a frame of the store's."""

    __slots__ = ("delivered_bytes", "delivered_count", "latency", "watch_count")

    def __init__(self) -> None:
        self.watch_count = 0
        self.delivered_count = 0
        self.delivered_bytes = 0
        self.latency = Histogram()
