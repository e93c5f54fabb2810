"""The events that a watch yields: one class a kind of event, for `match`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import Gap, Record

NUMBER_MAX: Final = (1 << 64) - 1
"""Of an epoch and a seq: what the contract has room for."""


class Position(NamedTuple):
    """A place in one topic: everything up to `seq` has been seen. Keep it to start another watch there."""

    epoch: int
    seq: int


START: Final = Position(epoch=0, seq=0)
"""Before the first record of any topic."""


def position_of(place: Position | int, *, field: str = "after") -> Position:
    """A place as it is given, in any epoch where it is a seq alone.

    Raises:
        InvalidArgument: a number of it is negative, or above what 64 bits hold.
    """
    position = place if isinstance(place, Position) else Position(0, place)
    if not (0 <= position.epoch <= NUMBER_MAX and 0 <= position.seq <= NUMBER_MAX):
        raise InvalidArgument(
            f"epoch and seq are 0 to {NUMBER_MAX}, not {position.epoch} and {position.seq}", field=field
        )
    return position


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic, in order. `in_snapshot`: they are current values, by key, not changes by seq.

    `records`: of a watch or stream they come as columns, and rows are made when they are touched
    (`eddyline.core.records.record_sequence`).
    `data_bytes`: where the watch is of metadata alone, how large each record's data is, None = it has none.
    `traceparent`: W3C trace context to begin a span of one's own from, where one of the records is traced as it comes.
    `batch_end`: no append lies on both sides of `position`: what came of the topic up to here is whole appends. False =
    the last append goes on, or may go on; within a snapshot always. If a filter hides the end of an append that is held
    back, an event without records marks it.
    """

    topic: str
    records: Sequence[Record]
    position: Position
    in_snapshot: bool
    data_bytes: tuple[int | None, ...] = ()
    traceparent: str | None = None
    batch_end: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A range of a topic that was lost, in its place."""

    topic: str
    gap: Gap
    position: Position


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    """The current values follow: forget all you have of this topic. Comes again where a snapshot was interrupted."""

    topic: str
    fold_seq: int


@dataclass(frozen=True, slots=True)
class SnapshotResumed:
    """A snapshot that was interrupted goes on: keep what it brought of keys up to `after_key`, forget those above.

    Changes of the kept keys come first, as records of any op. Only with `resume_snapshots`.
    """

    topic: str
    fold_seq: int
    after_key: bytes


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The current values are complete; changes follow from `position`."""

    topic: str
    fold_seq: int
    count: int
    position: Position


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Every topic is level with the head it had when the watch began. Comes again after a reconnect."""


@dataclass(frozen=True, slots=True)
class TopicGone:
    """The topic was deleted. Its watch is over, the others go on."""

    topic: str
    epoch: int


WatchEvent = Records | Lost | SnapshotBegan | SnapshotResumed | SnapshotEnded | CaughtUp | TopicGone
