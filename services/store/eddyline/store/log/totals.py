"""Totals of a shard's logs, kept as they change: what a status tells costs the same however many topics there are.

A topic's index, segments and fold count themselves in here from the moment the table has the topic until it is removed.
I1: the totals are the sums over the table's topics, between any two steps.
Threading: recovery before it serves, then the event loop.
"""

from __future__ import annotations


class LogTotals:
    """See the module. `unsegmented_bytes` = frames of the WAL that hold records which are in no segment; of `fold_count`
    folds `lost_fold_count` are refused to readers."""

    __slots__ = ("fold_count", "lost_fold_count", "segment_bytes", "segment_count", "unsegmented_bytes")

    def __init__(self) -> None:
        self.fold_count = 0
        self.lost_fold_count = 0
        self.segment_count = 0
        self.segment_bytes = 0
        self.unsegmented_bytes = 0
