"""How what waits for a commit learns that it failed: refused, or of unknown outcome."""

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
    """The refusal of a shard that serves only reads."""
    return ReadOnly(f"the shard serves only reads until it is restarted: {reason}", cause=reason)


def fail_future(future: Ack | asyncio.Future[None], error: Exception) -> None:
    """Fail a future that may have been cancelled by its caller."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller that went away leaves nobody to retrieve it


def fail_frames(frames: Sequence[CommitFrame], error: Exception) -> None:
    """Fail every caller of frames."""
    for frame in frames:
        for append in frame.appends:
            fail_future(append.ack, error)
        if frame.control is not None:
            fail_future(frame.control.done, error)


STOPPED: Final = "STOPPED"
"""Why nothing is written once the committer has ended. After a drain nobody waited for it: that stop was clean."""


class StagedAppend:
    """An append that has its seqs: `first_seq` on, `batch.count` of them (none for a position alone).

    `record_bytes` is what they count by the semantics, `bytes` what their columns take.
    """

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
    """What a delete takes out of a fold: entries that match and were written at or below `through_seq`."""

    match: Match
    through_seq: int


class StagedControl:
    """A frame that is no append: fdatasynced, unless it only carries old records (`sync` False).

    `on_commit` gets its place, on the loop, when it is committed; `done` resolves after it.
    """

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
    """A frame on its way: one topic's joined appends, or one control."""

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
        """Seq of the last record once the frame has its place; below the first one's where it has no record."""
        self.is_written = control is not None or topic is None or not topic.is_ephemeral
        """False = an EPHEMERAL topic's appends: they are in memory alone."""
