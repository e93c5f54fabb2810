"""What a servicer sees of a call: how long it may wait, and where a stream's answers go.

gRPC's own types give a stream's context the type of the whole stream in place of its messages, and know handlers of
streams only as generators; hence these two Protocols, which its contexts meet.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)

ANSWER_MARGIN_S: Final = 0.05
"""Elsewhere none: then the caller's deadline always wins the race, and what the store has to say of the wait (that the
fold is behind, that nothing came) is never heard. 50 ms is a slow round trip within one network, and is what each
wait is cut by."""
ANSWER_MARGIN_PART: Final = 0.2
"""And at most this part of what is left, so that a short deadline still waits for most of its time."""


class CallContext(Protocol):
    """A call's time."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None where there is none."""


class StreamContext(Protocol[MessageT_contra]):
    """A stream's way out. One task writes."""

    async def write(self, message: MessageT_contra) -> None:
        """Send one message; returns when gRPC has taken it, which is the stream's flow control."""


def patience_s(context: CallContext, seconds_max: float) -> float:
    """How long a call may wait, at most `seconds_max`, so that its answer still comes before the caller's deadline."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return seconds_max
    margin_s = min(ANSWER_MARGIN_S, remaining_s * ANSWER_MARGIN_PART)
    return max(0.0, min(seconds_max, remaining_s - margin_s))
