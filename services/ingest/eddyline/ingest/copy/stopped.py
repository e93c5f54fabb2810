"""Why a source stops: its state, its reason, and what an operator can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from eddyline.ingest.nats.stream import Stream


STOPPED_BY_POLICY: Final[tuple[StopState, ...]] = ("STREAM_RECREATED", "CURSOR_AHEAD", "CURSOR_EXPIRED")
"""Of them those which a resync would end by taking what there is now, so that only somebody's order may."""


def resync_hint(source: str) -> str:
    """Of those which their policy stopped."""
    return f"`eddyline source resync {source}` takes what there is now"


class SourceStopped(Exception):
    """The source must not go on by itself. `reason` is for people."""

    def __init__(self, state: StopState, reason: str) -> None:
        super().__init__(reason)
        self.state: StopState = state
        self.reason = reason

    def until_resync(self, source: str) -> SourceStopped:
        """The same, with the command that takes what there is now."""
        if self.reason.endswith(resync_hint(source)):
            return self
        return SourceStopped(self.state, f"{self.reason}; {resync_hint(source)}")


def expired(stream: Stream, first: int, last: int) -> SourceStopped:
    """Revisions `first` to `last` left before they were read, and the source's policy is to stop."""
    return SourceStopped(
        "CURSOR_EXPIRED",
        f"revisions {first} to {last} left {stream.origin}, or were overwritten, before they were read",
    )


def oversize(source: str, why: str, place: str) -> SourceStopped:
    """A message does not fit. The way out comes before the place, since a long reason is cut."""
    resync_hint = f"`eddyline source update {source} --dead-letter-topic TOPIC` sets it aside, or remove it"
    return SourceStopped("OVERSIZE", f"{why}; {resync_hint}: {place}")


StopState = Literal["SOURCE_LOST", "STREAM_RECREATED", "CURSOR_AHEAD", "CURSOR_EXPIRED", "OVERSIZE"]
"""States of `SourceStatus` in which a source stands still until somebody acts."""
