"""Context of a streaming call: sends its answers. (`eddyline.core.server.deadline` has the time that a call may wait.)

gRPC types a stream's context by the whole stream in place of its messages, and handlers of streams only as generators;
hence these Protocols, which gRPC's contexts meet.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from eddyline.core.telemetry.trace_context import CalledContext

MessageT = TypeVar("MessageT")
MessageT_contra = TypeVar("MessageT_contra", contravariant=True)


class StreamContext(Protocol[MessageT_contra]):
    """Sends a stream's answers. One task writes."""

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        """Send the initial metadata now; else the first message sends it."""

    async def write(self, message: MessageT_contra) -> None:
        """Send one message; returns when gRPC has accepted it, which is the stream's flow control."""


@runtime_checkable
class DirectContext(Protocol[MessageT_contra]):
    """Sends answers without waiting, as the context of a call whose requests are pushed does."""

    def write_now(self, message: MessageT_contra) -> bool:
        """Send one message. False: await `drained` before the next one."""

    async def drained(self) -> None:
        """Wait until there is room for more, or the call is over."""


class CalledStream(StreamContext[MessageT_contra], CalledContext, Protocol[MessageT_contra]):
    """A context that also has the call's metadata."""


async def open_stream(context: StreamContext[MessageT]) -> None:
    """Send the initial metadata at once, if the call's own failure may cancel a write.

    gRPC records that it sent the metadata only when the write with it is complete. If that write were cancelled, it would
    send the metadata again with the status, which its core refuses, and the caller would never get the stream's error."""
    await context.send_initial_metadata(())
