"""What a plan of splits asks for and gives, and what a read of one split asks for and gives: values.

A split is a range of a topic's log by seq, or of its fold's base by row: planned by `splits.py`, read by
`split_read.py`.
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
    """What a split's rows are. The numbers are on the wire."""

    LOG = 1
    BASE = 2
    HISTORY = 3


class Split(NamedTuple):
    """A part of a topic: rows `first` to `last`, both inclusive, by seq, or in a base by number from 0.

    `base_seq` and `base_generation` name the base that rows of a fold belong to (0 = none: an empty fold), `as_of_seq` the
    point that they were planned for; all 0 in the log.
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
    """Which records of a split are wanted: every given condition must hold. Gaps always pass.

    `source_from_ns` is inclusive, `source_end_ns` exclusive, 0 = none; a record without a time of its source passes
    neither. `share_count` 0 = all; a record without a key is in no share.
    """

    records: RecordFilter = ALL_RECORDS
    source_from_ns: int = 0
    source_end_ns: int = 0
    share_count: int = 0
    share: int = 0

    @property
    def by_source_time(self) -> bool:
        """True = a bound of the source's time is given."""
        return bool(self.source_from_ns or self.source_end_ns)

    def passes_all(self) -> bool:
        """True = no condition is given."""
        return not (self.by_source_time or self.share_count) and self.records.passes_all()


ALL: Final = SplitFilter()


class PlanMark(NamedTuple):
    """Where a page of a plan ended: all that the next page must take over. `next_first` is of a split of `kind`."""

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
    """What to cut. 0 = the default of each bound; `as_of_seq` None = the log; `mark` None = from the start."""

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
    """A split to read, and what of it. `columns` = names in the schema's order; empty = all.

    `pack` makes the bytes that a message is sent as, on a reader thread: copying one of 8 MiB holds the loop for 10 ms.
    None = messages come as they are.
    """

    split: Split
    split_filter: SplitFilter = ALL
    columns: tuple[str, ...] = ()
    pack: Callable[[ArrowMessage], bytes] | None = None


class SchemaMessage(NamedTuple):
    """The schema of a read's batches, as an Arrow IPC message."""

    message: bytes


class ArrowMessage(NamedTuple):
    """A record batch as an Arrow IPC message, the xxh3_64 of it, and its rows."""

    message: bytes
    checksum: int
    rows: int


class Packed(NamedTuple):
    """A record batch as it is sent."""

    answer: bytes


class SplitCounts(NamedTuple):
    """What became of a split's range: together `last` - `first` + 1."""

    row_count: int
    gap_count: int
    deleted_count: int
    hidden_count: int


class SplitTally:
    """What became of a split's range so far."""

    __slots__ = ("deleted", "gaps", "hidden", "rows")

    def __init__(self) -> None:
        self.rows = self.gaps = self.deleted = self.hidden = 0

    def counts(self) -> SplitCounts:
        """It, as it is told."""
        return SplitCounts(self.rows, self.gaps, self.deleted, self.hidden)


class SplitScan(NamedTuple):
    """A read under way: of which topic, what of it, by the filter as it applies there, and how far it has come."""

    topic: Topic
    split: Split
    split_filter: SplitFilter
    columns: tuple[str, ...]
    pack: Callable[[ArrowMessage], bytes] | None
    tally: SplitTally

    @property
    def takes_all(self) -> bool:
        """True = every record, every column."""
        return not self.columns and self.split_filter.passes_all()

    def packed(self, message: ArrowMessage) -> ArrowMessage | Packed:
        """A message as its reader wants it. Any thread."""
        return message if self.pack is None else Packed(self.pack(message))


SplitItem: TypeAlias = ArrowMessage | Packed | Gap
SplitFrame: TypeAlias = SchemaMessage | SplitItem | SplitCounts


def check_filter(split_filter: SplitFilter) -> None:
    """Raises InvalidArgument where a filter's share is none."""
    count, share = split_filter.share_count, split_filter.share
    if count > SHARES_MAX:
        raise InvalidArgument(
            f"share_count is 0 to {SHARES_MAX}, not {count}",
            field="filter.share_count",
            value=count,
            valueMax=SHARES_MAX,
        )
    if share >= count and (count or share):
        raise InvalidArgument(
            f"share is below share_count {count}, not {share}", field="filter.share", value=share, shareCount=count
        )


def check_split(split: Split) -> None:
    """Raises InvalidArgument where a split is none that a plan gave."""
    first_min = 0 if split.kind is SplitKind.BASE else 1
    if not first_min <= split.first <= split.last:
        raise InvalidArgument(
            f"a split begins at {first_min} or later and does not end before: not {split.first} to {split.last}",
            field="split.first",
            first=split.first,
            last=split.last,
        )
    if split.kind is SplitKind.LOG:
        given = split.base_seq or split.base_generation or split.as_of_seq
        if given:
            raise InvalidArgument("a split of the log has no base and no point", field="split.base_seq")
        return
    if bool(split.base_seq) is not bool(split.base_generation) or (split.kind is SplitKind.BASE and not split.base_seq):
        raise InvalidArgument("a split of a fold names its base by seq and generation", field="split.base_generation")
    least = split.base_seq if split.kind is SplitKind.BASE else split.last
    if split.as_of_seq < least or (split.kind is SplitKind.HISTORY and split.first <= split.base_seq):
        raise InvalidArgument("a split of a fold lies between its base and its point", field="split.as_of_seq")
