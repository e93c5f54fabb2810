"""The judgement before every resume: is the stream there still the one the position is of?

NATS clamps a start below its first revision and waits on one above its last, without a word: nothing is resumed before
state, creation time and sample were compared with the position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eddyline.ingest.jetstream import nameable
from eddyline.ingest.position import sample_of

if TYPE_CHECKING:
    from eddyline.ingest.jetstream import JetStream
    from eddyline.ingest.position import Position
    from eddyline.ingest.stream import Stream

StopState = Literal["STREAM_RECREATED", "CURSOR_AHEAD", "OVERSIZE"]
"""States of `SourceStatus` in which a source stands still until somebody acts."""


class SourceStopped(Exception):
    """The source must not go on by itself. `reason` is for people."""

    def __init__(self, state: StopState, reason: str) -> None:
        super().__init__(reason)
        self.state: StopState = state
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """The stream may be read on from the position. `resync` = there may be something to bring in step before."""

    stream: Stream
    resync: bool


async def judge(jetstream: JetStream, bucket: str, position: Position | None) -> Verdict:
    """Compare the bucket's stream with the position.

    Raises:
        SourceStopped: STREAM_RECREATED or CURSOR_AHEAD. BucketNotFound, NatsUnreachable.
    """
    stream = await jetstream.stream(bucket)
    if position is None:
        return Verdict(stream, resync=stream.last_revision > 0)
    if stream.created_ns != position.created_ns:
        raise SourceStopped(
            "STREAM_RECREATED",
            f"bucket {bucket} was deleted and made again: its stream was made at {stream.created_ns} ns, "
            f"the position is of one made at {position.created_ns} ns",
        )
    if stream.last_revision < position.revision:
        raise SourceStopped(
            "CURSOR_AHEAD",
            f"bucket {bucket} was rolled back: its last revision is {stream.last_revision}, "
            f"{position.revision} was applied",
        )
    if position.checked:
        message = await jetstream.message_at(stream, position.revision)
        # A message that is gone, or whose subject the API cannot say, tells nothing.
        if message is not None and nameable(message["subject"].encode()):
            sample = sample_of(message["subject"].encode(), message["data"])
            if sample != position.sample:
                raise SourceStopped(
                    "CURSOR_AHEAD",
                    f"bucket {bucket} was rolled back and written again: revision {position.revision} is not the "
                    "message that was applied",
                )
    # Also where the stream did not get further: a purge moves no revision.
    return Verdict(stream, resync=True)
