"""Values of split plans and split reads: requests, answers, and the state of a scan.

A split is a range of a topic's log by seq, or of its fold's base by row: planned by `planner.py`, read by `reader.py`.
Threading: immutable values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from eddyline.core.errors import InvalidArgument
from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.read import RecordFilter
    from eddyline.store.log.topic import Topic

SHARES_MAX: Final = 65_536
SPLIT_RECORDS_DEFAULT: Final = 1_000_000
SPLIT_BYTES_DEFAULT: Final = 256 << 20
SPLITS_DEFAULT: Final = 1_000
SPLITS_MAX: Final = 10_000


class SplitKind(IntEnum):
    """Kinds of a split's rows. The numbers are on the wire."""

    LOG = 1
    BASE = 2
    HISTORY = 3


class Split(NamedTuple):
    """A part of a topic: rows `first` to `last`, both inclusive, by seq, or in a base by number from 0.

    `base_seq` and `base_generation` name the base of a fold's rows (0 = none: an empty fold), `as_of_seq` the point of the
    plan; all 0 for a split of the log.
    """

    kind: SplitKind
    first: int
    last: int
    record_count: int = 0
    size_bytes: int = 0
    base_seq: int = 0
    base_generation: int = 0
    as_of_seq: int = 0


@dataclass(frozen=True, slots=True)
class SplitFilter:
    """Filter of a split's records: every given condition must hold. Gaps always pass.

    `source_from_ns` is inclusive, `source_end_ns` exclusive, 0 = none; a record without a source time passes neither.
    `share_count` 0 = all; a record without a key is in no share.
    """

    records: RecordFilter = ALL_RECORDS
    source_from_ns: int = 0
    source_end_ns: int = 0
    share_count: int = 0
    share: int = 0

    @property
    def by_source_time(self) -> bool:
        """True = a bound of the source time is given."""
        return bool(self.source_from_ns or self.source_end_ns)

    def passes_all(self) -> bool:
        """True = no condition is given."""
        return not (self.by_source_time or self.share_count) and self.records.passes_all()


ALL: Final = SplitFilter()


class PlanMark(NamedTuple):
    """End of a page of a plan: the state that the next page continues from. `next_first` is of a split of `kind`."""

    epoch: int
    first_seq: int
    end_seq: int
    head_seq: int
    base_seq: int
    base_generation: int
    kind: int
    next_first: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request of a plan. 0 = the default of each bound; `as_of_seq` None = the log; `mark` None = from the start."""

    after_seq: int = 0
    end_seq: int = 0
    as_of_seq: int | None = None
    split_filter: SplitFilter = ALL
    max_records: int = 0
    max_bytes: int = 0
    limit: int = 0
    mark: PlanMark | None = None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One page of a plan. `mark` None = the last. The range is `first_seq` to `end_seq`, exclusive."""

    splits: tuple[Split, ...]
    mark: PlanMark | None
    epoch: int
    first_seq: int
    end_seq: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class SplitRead:
    """Request to read a split. `columns` = names in the schema's order; empty = all.

    `pack` encodes a message for the wire, on a reader thread: copying one of 8 MiB would hold the loop for 10 ms. None =
    messages are returned as they are.
    """

    split: Split
    split_filter: SplitFilter = ALL
    columns: tuple[str, ...] = ()
    pack: Callable[[ArrowMessage], bytes] | None = None


class SchemaMessage(NamedTuple):
    """The schema of a read's batches, as an Arrow IPC message."""

    message: bytes


class ArrowMessage(NamedTuple):
    """A record batch as an Arrow IPC message, its xxh3_64, and its row count."""

    message: bytes
    checksum: int
    rows: int


class EncodedBatch(NamedTuple):
    """A record batch encoded for the wire."""

    answer: bytes


class SplitCounts(NamedTuple):
    """Rows, gaps, deleted and hidden records of a split: together `last` - `first` + 1."""

    row_count: int
    gap_count: int
    deleted_count: int
    hidden_count: int


class SplitTally:
    """Running `SplitCounts` of a scan."""

    __slots__ = ("deleted", "gaps", "hidden", "rows")

    def __init__(self) -> None:
        self.rows = self.gaps = self.deleted = self.hidden = 0

    def counts(self) -> SplitCounts:
        """Return the counts so far."""
        return SplitCounts(self.rows, self.gaps, self.deleted, self.hidden)


class SplitScan(NamedTuple):
    """A split read in progress; `split_filter` is the filter as it applies to the topic."""

    topic: Topic
    split: Split
    split_filter: SplitFilter
    columns: tuple[str, ...]
    pack: Callable[[ArrowMessage], bytes] | None
    tally: SplitTally

    @property
    def takes_all(self) -> bool:
        """True = the scan returns every record and every column."""
        return not self.columns and self.split_filter.passes_all()

    def packed(self, message: ArrowMessage) -> ArrowMessage | EncodedBatch:
        """Encode a message for the wire if the request has `pack`. Any thread."""
        return message if self.pack is None else EncodedBatch(self.pack(message))


SplitItem: TypeAlias = ArrowMessage | EncodedBatch | Gap
SplitFrame: TypeAlias = SchemaMessage | SplitItem | SplitCounts


def check_filter(split_filter: SplitFilter) -> None:
    """Raise InvalidArgument if the filter's share is not one of its `share_count` shares."""
    count, share = split_filter.share_count, split_filter.share
    if count > SHARES_MAX:
        raise InvalidArgument(
            f"share_count must be 0 to {SHARES_MAX}, not {count}",
            field="filter.share_count",
            value=count,
            valueMax=SHARES_MAX,
        )
    if share >= count and (count or share):
        raise InvalidArgument(
            f"share must be below share_count {count}, not {share}", field="filter.share", value=share, shareCount=count
        )


def check_split(split: Split) -> None:
    """Raise InvalidArgument if no plan can have returned this split."""
    first_min = 0 if split.kind is SplitKind.BASE else 1
    if not first_min <= split.first <= split.last:
        raise InvalidArgument(
            f"a split's first must be at least {first_min} and at most its last: not {split.first} to {split.last}",
            field="split.first",
            first=split.first,
            last=split.last,
        )
    if split.kind is SplitKind.LOG:
        if split.base_seq or split.base_generation or split.as_of_seq:
            raise InvalidArgument("a split of the log must have no base and no as_of_seq", field="split.base_seq")
        return
    if bool(split.base_seq) is not bool(split.base_generation) or (split.kind is SplitKind.BASE and not split.base_seq):
        raise InvalidArgument(
            "a split of a fold must name its base by seq and generation", field="split.base_generation"
        )
    least = split.base_seq if split.kind is SplitKind.BASE else split.last
    if split.as_of_seq < least or (split.kind is SplitKind.HISTORY and split.first <= split.base_seq):
        raise InvalidArgument("a split of a fold must lie between its base and as_of_seq", field="split.as_of_seq")
