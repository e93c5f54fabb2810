"""Pieces of topics: what a task reads, and what became of it. Values that travel with partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.codec.records import filter_to_pb
from eddyline.core.errors import EpochMismatch, HistoryGone, TopicNotFound
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from eddyline.core.model.read import RecordFilter


@dataclass(frozen=True, slots=True)
class TopicSplit:
    """A split, and of which topic it is. `first` and `last` are inclusive; source times and shares as in the contract.

    `split` is the plan's own message, empty = of a range of the log that no plan gave.
    """

    topic: str
    epoch: int
    first: int
    last: int
    kind: int = pb.SPLIT_KIND_LOG
    split: bytes = b""
    record_count: int = 0
    nbytes: int = 0
    source_from_ns: int = 0
    source_end_ns: int = 0
    share_count: int = 0
    share: int = 0

    def message(self) -> pb.Split:
        """The split to ask for."""
        split = pb.Split.FromString(self.split)
        split.kind, split.first, split.last = pb.SplitKind.ValueType(self.kind), self.first, self.last
        return split

    @property
    def length(self) -> int:
        """Seqs that it covers; rows, of a base."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Account:
    """The outcome of ranges. If a read broke off, the seqs that it had skipped until then count as hidden if a filter could
    hide them, else as deleted: the store did not report which."""

    rows: int = 0
    gaps: int = 0
    deleted: int = 0
    hidden: int = 0

    @property
    def total(self) -> int:
        """Seqs accounted for."""
        return self.rows + self.gaps + self.deleted + self.hidden

    def __add__(self, other: Account) -> Account:
        return Account(
            self.rows + other.rows,
            self.gaps + other.gaps,
            self.deleted + other.deleted,
            self.hidden + other.hidden,
        )


def filter_of(records: RecordFilter, piece: TopicSplit) -> pb.SplitFilter:
    """The filter to read a piece with."""
    return pb.SplitFilter(
        records=None if records.passes_all() else filter_to_pb(records),
        source_from_ns=piece.source_from_ns,
        source_end_ns=piece.source_end_ns,
        share_count=piece.share_count,
        share=piece.share,
    )


def gone(error: EpochMismatch | TopicNotFound, topic: str, epoch: int) -> EpochMismatch | TopicNotFound:
    """The same error, with what it means to a read."""
    again = " and recreated" if isinstance(error, EpochMismatch) else ""
    return type(error)(
        f"topic {topic} of epoch {epoch}, which this read was pinned to, is gone: it was deleted{again}. Start the read"
        f" again; a Spark stream needs a new checkpoint ({error.message})",
        **error.metadata,
    )


def point_gone(error: HistoryGone, topic: str) -> HistoryGone:
    """The same error, with what it means to a read of all keys: what the store says of one key refuses them all."""
    seq = error.earliest_seq
    return HistoryGone(
        f"option asOfSeq, asOfTimestamp: topic {topic} no longer has all values of this point: some were deleted, or a"
        f" later base replaced them. Use seq {seq} or later, or a time after that record; load a read=fold again",
        **error.metadata,
    )
