"""Deadline of a call: how long a servicer may wait so that its answer still arrives before the caller's deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

ANSWER_MARGIN_S: Final = 0.05
"""gRPC: none, so the caller's deadline always comes first, and the role's answer about the wait (the fold is behind, no
record came) never arrives. Each wait is shorter by 50 ms, a slow round trip within one network."""
ANSWER_MARGIN_PART_MIN: Final = 0.05
"""Plus this part of the remaining time. gRPC rounds a deadline up by 1 % on its way here, and on a busy machine an answer is
late by tenths of a second. At 1 % a wait of 2 s left 70 ms, and ended at the caller's deadline without a reason. The cost: a
wait is 5 % shorter."""
ANSWER_MARGIN_PART_MAX: Final = 0.2
"""At most this part, so that a call with a short deadline still waits for most of its time."""


class CallContext(Protocol):
    """The part of a servicer context that has deadline and metadata."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None = no deadline."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the call's metadata."""


def wait_timeout_s(context: CallContext, seconds_max: float) -> float:
    """Return how long a call may wait, at most `seconds_max`, so that its answer arrives before the caller's deadline."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return seconds_max
    margin_s = ANSWER_MARGIN_S + remaining_s * ANSWER_MARGIN_PART_MIN
    margin_s = min(margin_s, remaining_s * ANSWER_MARGIN_PART_MAX)
    return max(0.0, min(seconds_max, remaining_s - margin_s))
