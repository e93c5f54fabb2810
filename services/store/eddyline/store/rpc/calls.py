"""What a servicer sees of a call: how long it may wait, and where a stream's answers go.

gRPC's own types give a stream's context the type of the whole stream in place of its messages, and know handlers of
streams only as generators; hence these two Protocols, which its contexts meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

MessageT = TypeVar("MessageT")
MessageT_contra = TypeVar("MessageT_contra", contravariant=True)

ANSWER_MARGIN_S: Final = 0.05
"""Elsewhere none: then the caller's deadline always wins the race, and what the store has to say of the wait (that the
fold is behind, that nothing came) is never heard. 50 ms is a slow round trip within one network, and is what each
wait is cut by."""
ANSWER_MARGIN_PART_MIN: Final = 0.01
"""And this part of what is left: gRPC rounds a deadline up by as much on its way here."""
ANSWER_MARGIN_PART_MAX: Final = 0.2
"""But at most this part, so that a short deadline still waits for most of its time."""


class CallContext(Protocol):
    """A call's time, and what its caller said with it."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None where there is none."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The call's metadata."""


class StreamContext(Protocol[MessageT_contra]):
    """A stream's way out. One task writes."""

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        """Open the way out. Where nobody does the first message does it."""

    async def write(self, message: MessageT_contra) -> None:
        """Send one message; returns when gRPC has taken it, which is the stream's flow control."""


async def open_stream(context: StreamContext[MessageT]) -> None:
    """Open a stream's way out at once, where a write may be cut off by the call's own failure.

    gRPC notes that it sent the metadata only when the write that carried it is done: were that the one cut off, it would
    send it again with the status, which its core refuses, and the caller would never learn why the stream ended.
    """
    await context.send_initial_metadata(())


def patience_s(context: CallContext, seconds_max: float) -> float:
    """How long a call may wait, at most `seconds_max`, so that its answer still comes before the caller's deadline."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return seconds_max
    margin_s = ANSWER_MARGIN_S + remaining_s * ANSWER_MARGIN_PART_MIN
    margin_s = min(margin_s, remaining_s * ANSWER_MARGIN_PART_MAX)
    return max(0.0, min(seconds_max, remaining_s - margin_s))
