"""The check before every resume: is the present stream still the one the position is of?

NATS clamps a start below its first revision, and waits on one above its last, without an error: so no source resumes
before state, creation time and sample were compared with the position. A stream that differs stops the source, unless its
policy or a requested resync adopts the stream as it is now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from eddyline.core.model.source import PERSISTENT_STOP
from eddyline.core.records.record import GapReason
from eddyline.ingest.copy.gaps import why_lost
from eddyline.ingest.copy.position import NO_TIME, decode_position, sample_of
from eddyline.ingest.copy.stopped import SourceStopped, expired
from eddyline.ingest.nats.jetstream import nameable

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition, SourceStop
    from eddyline.ingest.copy.position import StreamPosition
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream


@dataclass(frozen=True, slots=True)
class ResumeDecision:
    """Action before the stream is read on.

    `resync` = key sets may differ. `adopt_reason` = why the stream is adopted as it is now, whatever the position says;
    "" = the position holds. `is_other` = the position is not of this stream.
    """

    stream: Stream
    resync: bool = False
    adopt_reason: str = ""
    is_other: bool = False


async def check_resume(
    jetstream: JetStream,
    definition: SourceDefinition,
    position: StreamPosition | None,
    *,
    resync_serial: int = 0,
    stop: SourceStop | None = None,
) -> ResumeDecision:
    """Compare a source's stream with its position. `resync_serial` = the last requested resync; `stop` = the stop that the
    store has.

    Raises:
        SourceStopped: SOURCE_LOST (it cannot be copied), STREAM_RECREATED, CURSOR_AHEAD or CURSOR_EXPIRED.
        BucketNotFound, NatsUnreachable.
    """
    stream = await jetstream.source_stream(definition)
    if stream.unfit:
        raise SourceStopped("SOURCE_LOST", f"{stream.origin} cannot be copied: {stream.unfit}")
    strays = await jetstream.stray_subjects(stream)
    if strays is not None:
        raise SourceStopped("SOURCE_LOST", f"{stream.origin} cannot be copied: {strays.reason(stream.rule)}")
    if position is None:
        return ResumeDecision(stream, resync=stream.last_revision > 0)
    try:
        if (held := held_stop(stop, position)) is not None:
            raise held
        await _compare(jetstream, stream, position)
        await _check_expiry(jetstream, definition, stream, position)
    except SourceStopped as stopped:
        if resync_serial > position.resync_serial:
            is_other = stopped.state != "CURSOR_EXPIRED"
            return ResumeDecision(stream, adopt_reason=f"requested while {stopped.state}", is_other=is_other)
        if stopped.state == "STREAM_RECREATED" and definition.on_recreated == "RESYNC":
            return ResumeDecision(stream, adopt_reason=stopped.reason, is_other=True)
        raise stopped.until_resync(definition.name) from None
    if resync_serial > position.resync_serial:
        return ResumeDecision(stream, adopt_reason="requested")
    # Also where the stream's last revision is the same: a purge moves no revision.
    return ResumeDecision(stream, resync=True)


def held_stop(stop: SourceStop | None, position: StreamPosition | None) -> SourceStopped | None:
    """Return the persistent stop, where it still holds: no resync was done since, though one may have begun. None = none
    holds."""
    if stop is None or position is None or stop.state != PERSISTENT_STOP:
        return None
    stopped_at = decode_position(stop.position)
    if stopped_at is None or _position_key(stopped_at) != _position_key(position):
        return None
    return SourceStopped(PERSISTENT_STOP, stop.reason)


def _position_key(position: StreamPosition) -> tuple[int, int, int]:
    """The parts of a position that synthetic changes leave as they are."""
    return position.created_ns, position.revision, position.resync_serial


async def matches_position(jetstream: JetStream, stream: Stream, position: StreamPosition) -> bool:
    """Whether `position` is of this stream, as far as `check_resume` can tell.

    Raises:
        BucketNotFound, NatsUnreachable.
    """
    try:
        await _compare(jetstream, stream, position)
    except SourceStopped:
        return False
    return True


async def _check_expiry(
    jetstream: JetStream, definition: SourceDefinition, stream: Stream, position: StreamPosition
) -> None:
    if definition.on_expired != "STOP" or stream.first_revision <= position.revision + 1:
        return
    if await why_lost(jetstream, stream) is GapReason.SOURCE_GAP:
        raise expired(stream, position.revision + 1, stream.first_revision - 1)


async def _compare(jetstream: JetStream, stream: Stream, position: StreamPosition) -> None:
    if stream.created_ns != position.created_ns:
        raise SourceStopped(
            "STREAM_RECREATED",
            f"{stream.origin} was recreated: it was created at {_format_time(stream.created_ns)}, "
            f"the copied one at {_format_time(position.created_ns)}",
        )
    if stream.last_revision < position.revision:
        raise SourceStopped(
            "CURSOR_AHEAD",
            f"{stream.origin} was rolled back: its last revision is {stream.last_revision}, "
            f"but revision {position.revision} was applied",
        )
    message = await jetstream.newest_message(stream, position.revision)
    if message is None:
        return  # no message is left to compare
    revision, subject = message["seq"], message["subject"].encode()
    if position.time_ns != NO_TIME and message["time_ns"] > position.time_ns:
        raise SourceStopped(
            "CURSOR_AHEAD",
            f"{stream.origin} was rolled back and written again: message {revision} is of "
            f"{_format_time(message['time_ns'])}, but messages up to {position.revision} were applied, of "
            f"{_format_time(position.time_ns)} or earlier",
        )
    # The sample decides nothing where its message is gone, or where the API cannot express its subject.
    is_sampled = revision == position.revision and position.checked and nameable(subject)
    if is_sampled and sample_of(subject, message["data"]) != position.sample:
        raise SourceStopped(
            "CURSOR_AHEAD",
            f"{stream.origin} was rolled back and written again: revision {position.revision} is not the message that "
            f"was applied",
        )


def _format_time(time_ns: int) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(time_ns // 1_000_000 / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
