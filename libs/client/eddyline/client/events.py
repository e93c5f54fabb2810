"""What a watch yields: one class a kind of event, to be told apart with `match`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eddyline.core.record import Gap, Record


class Position(NamedTuple):
    """A place in one topic: everything up to `seq` has been seen. Keep it to start another watch there."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic, in order. `in_snapshot`: they are current values, by key, not changes by seq.

    `data_bytes`: where the watch is of metadata alone, how large each record's data is, None = it has none.
    """

    topic: str
    records: tuple[Record, ...]
    position: Position
    in_snapshot: bool
    data_bytes: tuple[int | None, ...] = ()


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

    Changes of the kept keys come first, as records of any op. Only where the watch was asked to resume snapshots.
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
