"""A call's time: how long a servicer may wait so that its answer still comes before the caller's deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

ANSWER_MARGIN_S: Final = 0.05
"""Elsewhere none: then the caller's deadline always wins the race, and what a role has to say of the wait (that the
fold is behind, that nothing came) is never heard. 50 ms is a slow round trip within one network, and is what each
wait is cut by."""
ANSWER_MARGIN_PART_MIN: Final = 0.05
"""Plus this part of what is left. gRPC rounds a deadline up by 1 % on its way here, and on a busy machine an answer is late
by tenths of a second. At 1 % a wait of 2 s had 70 ms, and ended in the caller's deadline without its reason. The cost: a
wait is 5 % shorter."""
ANSWER_MARGIN_PART_MAX: Final = 0.2
"""But at most this part, so that a short deadline still waits for most of its time."""


class CallContext(Protocol):
    """A call's time, and what its caller said with it."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None where there is none."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The call's metadata."""


def wait_timeout_s(context: CallContext, seconds_max: float) -> float:
    """How long a call may wait, at most `seconds_max`, so that its answer still comes before the caller's deadline."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return seconds_max
    margin_s = ANSWER_MARGIN_S + remaining_s * ANSWER_MARGIN_PART_MIN
    margin_s = min(margin_s, remaining_s * ANSWER_MARGIN_PART_MAX)
    return max(0.0, min(seconds_max, remaining_s - margin_s))
