"""Stops of a source: state, reason, and the operator's remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from eddyline.ingest.nats.stream import Stream


STOPPED_BY_POLICY: Final[tuple[StopState, ...]] = ("STREAM_RECREATED", "CURSOR_AHEAD", "CURSOR_EXPIRED")
"""Stops that a resync would end by adopting the present stream, so that only a requested resync may."""


def resync_hint(source: str) -> str:
    """Remedy of a stop by policy."""
    return f"`eddyline source resync {source}` copies its present state"


class SourceStopped(Exception):
    """The source must not go on without an operator. `reason` is a text for people."""

    def __init__(self, state: StopState, reason: str) -> None:
        super().__init__(reason)
        self.state: StopState = state
        self.reason = reason

    def until_resync(self, source: str) -> SourceStopped:
        """The same stop with the command that adopts the present stream."""
        if self.reason.endswith(resync_hint(source)):
            return self
        return SourceStopped(self.state, f"{self.reason}; {resync_hint(source)}")


def expired(stream: Stream, first: int, last: int) -> SourceStopped:
    """Stop by policy: revisions `first` to `last` left before they were read."""
    return SourceStopped(
        "CURSOR_EXPIRED",
        f"revisions {first} to {last} of {stream.origin} were removed or overwritten before they were read",
    )


def oversize(source: str, why: str, place: str) -> SourceStopped:
    """Stop for a message that does not fit. The remedy comes before the place, since a long reason is cut."""
    resync_hint = f"set it aside with `eddyline source update {source} --dead-letter-topic TOPIC`, or remove it"
    return SourceStopped("OVERSIZE", f"{why}; {resync_hint}: {place}")


StopState = Literal["SOURCE_LOST", "STREAM_RECREATED", "CURSOR_AHEAD", "CURSOR_EXPIRED", "OVERSIZE"]
"""States of `SourceStatus` in which a source stands still until an operator acts."""
