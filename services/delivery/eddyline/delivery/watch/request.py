"""Checked request of a watch: topics, their starts, filters and options."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from eddyline.delivery.feed.oversize import NO_LIMIT, MessageLimit
from eddyline.delivery.resume_token import TopicSignature, WatchOption

if TYPE_CHECKING:
    from eddyline.delivery.resume_token import Cursor


class StartPoint(Enum):
    """Start of a topic without a cursor."""

    TAIL = 1
    SNAPSHOT = 2
    EARLIEST = 3


class FromTime(NamedTuple):
    """The first live record committed at or after a time, in milliseconds since the Unix epoch."""

    ts_ms: int


class FromRevision(NamedTuple):
    """The first live record whose version, as a number, is at or above this one, from 1."""

    revision: int


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """One topic of a request. Empty filters pass everything.

    `updates_only`: no initial values; SNAPSHOT then means TAIL. `heals`: a snapshot follows each gap, if the topic has
    a fold.
    """

    topic: str
    start: Cursor | FromTime | FromRevision | StartPoint
    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    ignore_deletes: bool = False
    metadata_only: bool = False
    updates_only: bool = False
    heals: bool = False

    def signature(self) -> TopicSignature:
        """Return the part of the request that a resume token is bound to."""
        options = WatchOption(0)
        for is_set, option in (
            (self.ignore_deletes, WatchOption.IGNORE_DELETES),
            (self.metadata_only, WatchOption.METADATA_ONLY),
            (self.updates_only, WatchOption.UPDATES_ONLY),
            (self.heals, WatchOption.HEAL),
        ):
            if is_set:
                options |= option
        return TopicSignature(self.topic, self.key_prefixes, self.tags, self.exclude_nodes, options)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A valid request: 1 to 1 000 topics, each named once.

    `resume_snapshots`: an interrupted snapshot continues at its position. `limit`: bound of its frames.
    """

    topics: tuple[TopicRequest, ...]
    resume_token: bytes = b""
    columns: bool = False
    heartbeat_s: float = 10.0
    resume_snapshots: bool = False
    limit: MessageLimit = NO_LIMIT
