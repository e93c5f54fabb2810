"""What a shard measures as it works, beside what its status tells: distributions, and counts by reason.

Once a group, a write of the fold or a refusal, never once a record.
Threading: event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import ApplyLag, DiskFloor, MemoryFull, QuotaBytes, ReadOnly, Throttled
from eddyline.core.telemetry.metrics import COUNT_BOUNDS, Histogram

if TYPE_CHECKING:
    from eddyline.store.stats import StoreFigures

REFUSALS: Final = tuple(error.reason for error in (Throttled, ApplyLag, DiskFloor, MemoryFull, QuotaBytes, ReadOnly))
"""Reasons that an append is refused for whatever it says: by what the shard has room for, and by its state."""


class Measures:
    """See the module. `refused` counts appends refused, by each of `REFUSALS`."""

    __slots__ = ("appended_bytes", "apply_s", "commit_s", "group_frames", "refused", "sync_s")

    def __init__(self) -> None:
        self.appended_bytes = 0
        """Of keys, data and what else records count by the contract."""
        self.refused = dict.fromkeys(REFUSALS, 0)
        self.group_frames = Histogram(COUNT_BOUNDS)
        self.commit_s = Histogram()
        """From a group's begin until its last frames are handed on."""
        self.sync_s = Histogram()
        """Of it on the writer's thread: write and fdatasync."""
        self.apply_s = Histogram()
        """A write of the fold."""


class Measured(NamedTuple):
    """All that a shard's metrics tell, at one moment. `followed_topic_count` = topics on all FollowTopics streams."""

    figures: StoreFigures
    measures: Measures
    followed_topic_count: int
