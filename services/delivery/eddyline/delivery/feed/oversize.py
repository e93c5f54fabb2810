"""Records that a subscriber's channel cannot take: an error with their place, or a gap in it.

gRPC refuses a message above the receiver's limit with RESOURCE_EXHAUSTED and nothing else, at each resume again. The server
cannot see that limit, so the request says it. Frames have at most 64 KiB or one record, so it is a record that is too large;
where a frame has more of them it is cut until the one is found. Data are never cut.
Threading: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import Oversize
from eddyline.core.records.record import MESSAGE_BYTES_MAX, Gap, GapReason
from eddyline.delivery.feed.encode import Frame, Place, item_frame

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.delivery.feed.encode import View


class Room(NamedTuple):
    """The largest message that a stream's receiver takes, in bytes; `skips` = a gap takes the place of a larger record."""

    bytes_max: int = MESSAGE_BYTES_MAX
    skips: bool = False


ANY_ROOM: Final = Room()


def fitted(
    frame: Frame, place: Place, item: Batch | Gap, view: View, room: Room, *, in_snapshot: bool = False
) -> tuple[Frame, ...]:
    """The frame of an item, or what takes its place where it is too large; none where the view hides all of it.

    `place`: where the item leaves its reader. A frame of a part leaves it behind the part's last record; within a snapshot
    the place does not move.

    Raises:
        Oversize: one record is too large, and is not to be skipped.
    """
    if len(frame.data) <= room.bytes_max:
        return (frame,) if frame.data else ()
    assert not isinstance(item, Gap), "a gap is small"
    if item.count > 1:
        half = item.count // 2
        parts = item.slice(0, half), item.slice(half, item.count)
        places = place if in_snapshot else place._replace(seq=parts[0].last_seq, batch_end=False), place
        return tuple(
            one
            for part, at in zip(parts, places, strict=True)
            for one in fitted(item_frame(at, part, view), at, part, view, room, in_snapshot=in_snapshot)
        )
    seq, size = item.first_seq, len(frame.data)
    if not room.skips:
        raise Oversize(
            f"record {seq} of topic {place.topic} is {size} bytes as one message, above the {room.bytes_max} that this "
            "watch takes: raise the channel's option grpc.max_receive_message_length (Go: grpc.MaxCallRecvMsgSize; Java: "
            "maxInboundMessageSize) and say so in message_bytes_max, or set skip_oversize",
            topic=place.topic,
            seq=seq,
            sizeBytes=size,
            limitBytes=room.bytes_max,
            channelOption="grpc.max_receive_message_length",
        )
    return (item_frame(place, Gap(seq, seq, GapReason.OVERSIZE), view),)
