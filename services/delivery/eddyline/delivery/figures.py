"""Figures of a delivery process, as GetStatus shows them.

Threading: event loop only; whoever owns an event counts it.
"""

from __future__ import annotations


class Figures:
    """Counts since the start, and what is open now."""

    __slots__ = ("delivered_count", "watch_count")

    def __init__(self) -> None:
        self.watch_count = 0
        self.delivered_count = 0
