"""Appends and control frames on their way to a commit, and how their callers learn of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import ReadOnly
from eddyline.core.records.batch import Batch
from eddyline.store.storage.wal.frame import AppendMark, FrameBody
from eddyline.store.storage.wal.wal import Location

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from eddyline.core.records.match import Match
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.store.log.append import Ack
    from eddyline.store.log.topic import Topic


def read_only(reason: str) -> ReadOnly:
    """Return the refusal of a read-only shard."""
    return ReadOnly(f"the shard serves only reads until it is restarted: {reason}", cause=reason)


def fail_future(future: Ack | asyncio.Future[None], error: Exception) -> None:
    """Fail a future that its caller may have cancelled."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark it as retrieved: the caller may be gone


def fail_frames(frames: Sequence[CommitFrame], error: Exception) -> None:
    """Fail every caller of some frames."""
    for frame in frames:
        for append in frame.appends:
            fail_future(append.ack, error)
        if frame.control is not None:
            fail_future(frame.control.done, error)


STOPPED: Final = "STOPPED"
"""Read-only reason after the committer has ended. After a drain no caller waits: that stop was clean."""


class StagedAppend:
    """An append that has its seqs: `batch.count` from `first_seq` on (none if it only moves a position).

    `record_bytes` counts as `cap_bytes` does; `bytes` is the length of the columns."""

    __slots__ = ("ack", "batch", "bytes", "first_seq", "mark", "record_bytes", "sync", "topic", "trace")

    def __init__(
        self,
        *,
        topic: Topic,
        batch: Batch,
        first_seq: int,
        record_bytes: int,
        mark: AppendMark,
        ack: Ack,
        sync: bool,
    ) -> None:
        self.topic = topic
        self.batch = batch
        self.bytes = batch.nbytes
        self.record_bytes = record_bytes
        self.first_seq = first_seq
        self.mark = mark
        self.ack = ack
        self.sync = sync
        self.trace: OpenSpan | None = None


class Erasure(NamedTuple):
    """Entries that a delete removes from a fold: those that match and were written at or below `through_seq`."""

    match: Match
    through_seq: int


class StagedControl:
    """A control frame: fdatasynced, unless it only carries old records (`sync` False).

    `on_commit` is called with its location, on the event loop, once it is committed; `done` resolves after that."""

    __slots__ = ("body", "done", "erase", "on_commit", "sync", "topic")

    def __init__(
        self,
        body: FrameBody,
        *,
        done: asyncio.Future[None],
        on_commit: Callable[[Location], None],
        topic: Topic | None = None,
        sync: bool = True,
        erase: Erasure | None = None,
    ) -> None:
        self.body = body
        self.done = done
        self.on_commit = on_commit
        self.topic = topic
        self.sync = sync
        self.erase = erase


class CommitFrame:
    """A frame in flight: the joined appends of one topic, or one control frame."""

    __slots__ = (
        "appends",
        "batch",
        "bytes",
        "control",
        "is_written",
        "last_seq",
        "location",
        "record_bytes",
        "record_count",
        "sync",
        "topic",
        "ts_ms",
    )

    def __init__(self, topic: Topic | None, control: StagedControl | None) -> None:
        self.topic = topic
        self.control = control
        self.appends: list[StagedAppend] = []
        self.batch: Batch | None = None
        self.bytes = 0
        self.record_count = 0
        self.record_bytes = 0
        self.ts_ms = 0
        self.sync = control is not None and control.sync
        self.location = Location(0, 0, 0)
        self.last_seq = 0
        """Seq of the last record once the frame has its place; first seq - 1 if it has no record."""
        self.is_written = control is not None or topic is None or not topic.is_ephemeral
        """False for appends of an EPHEMERAL topic: they are in memory alone."""
