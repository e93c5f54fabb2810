"""Records that a subscriber's channel cannot receive: an error with their position, or a gap in their position.

gRPC refuses a message above the receiver's limit with RESOURCE_EXHAUSTED and no detail, again at each resume. The
server cannot see that limit, so the request contains it. Frames have at most 64 KiB or one record, so the cause is one
too large record; a frame of several records is split until it is located. Data are never cut.
Threading: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import Oversize
from eddyline.core.records.record import MESSAGE_BYTES_MAX, Gap, GapReason
from eddyline.delivery.feed.encode import EncodedFrame, FramePosition, item_frame

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.delivery.feed.encode import TopicView


class MessageLimit(NamedTuple):
    """Largest message that a stream's receiver accepts, in bytes; `skips` = a gap replaces a larger record."""

    bytes_max: int = MESSAGE_BYTES_MAX
    skips: bool = False


NO_LIMIT: Final = MessageLimit()


def fit_frames(
    frame: EncodedFrame,
    position: FramePosition,
    item: Batch | Gap,
    view: TopicView,
    limit: MessageLimit,
    *,
    in_snapshot: bool = False,
) -> tuple[EncodedFrame, ...]:
    """Return the frame of an item, or its replacements if it is too large; none if the view hides all of it.

    `position` is the reader's after the item. A part's frame has the position of the part's last record; within a
    snapshot the position does not move.

    Raises:
        Oversize: one record is too large, and is not to be skipped.
    """
    if len(frame.data) <= limit.bytes_max:
        return (frame,) if frame.data else ()
    assert not isinstance(item, Gap), "a gap is small"
    if item.count > 1:
        half = item.count // 2
        parts = item.slice(0, half), item.slice(half, item.count)
        positions = position if in_snapshot else position._replace(seq=parts[0].last_seq, batch_end=False), position
        return tuple(
            split_frame
            for part, at in zip(parts, positions, strict=True)
            for split_frame in fit_frames(item_frame(at, part, view), at, part, view, limit, in_snapshot=in_snapshot)
        )
    seq, size = item.first_seq, len(frame.data)
    if not limit.skips:
        raise Oversize(
            f"record {seq} of topic {position.topic} is {size} bytes as one message, above this watch's limit of "
            f"{limit.bytes_max}: raise the channel's option grpc.max_receive_message_length (Go: grpc.MaxCallRecvMsgSize; "
            "Java: maxInboundMessageSize) and message_bytes_max, or set skip_oversize",
            topic=position.topic,
            seq=seq,
            sizeBytes=size,
            limitBytes=limit.bytes_max,
            channelOption="grpc.max_receive_message_length",
        )
    return (item_frame(position, Gap(seq, seq, GapReason.OVERSIZE), view),)
