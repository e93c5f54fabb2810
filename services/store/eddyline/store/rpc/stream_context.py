"""Where a stream's answers go. How long a call may wait is `eddyline.core.server.deadline`'s.

gRPC's own types give a stream's context the type of the whole stream in place of its messages, and know handlers of
streams only as generators; hence a Protocol, which its contexts meet.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from eddyline.core.telemetry.trace_context import CalledContext

MessageT = TypeVar("MessageT")
MessageT_contra = TypeVar("MessageT_contra", contravariant=True)


class StreamContext(Protocol[MessageT_contra]):
    """A stream's way out. One task writes."""

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        """Open the way out. Where nobody does the first message does it."""

    async def write(self, message: MessageT_contra) -> None:
        """Send one message; returns when gRPC has taken it, which is the stream's flow control."""


class CalledStream(StreamContext[MessageT_contra], CalledContext, Protocol[MessageT_contra]):
    """One that also tells what the call came with."""


async def open_stream(context: StreamContext[MessageT]) -> None:
    """Open a stream's way out at once, where a write may be cut off by the call's own failure.

    gRPC notes that it sent the metadata only when the write that carried it is done: were that the one cut off, it would
    send it again with the status, which its core refuses, and the caller would never learn why the stream ended.
    """
    await context.send_initial_metadata(())
