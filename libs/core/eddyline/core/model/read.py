"""Parameters and results of reads: bounds, filter, items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Gap, Record

READ_LIMIT_DEFAULT: Final = 256
READ_LIMIT_MAX: Final = 10_000
READ_BYTES_DEFAULT: Final = 1 << 20
READ_BYTES_MAX: Final = 16 << 20
READ_WAIT_MS_MAX: Final = 30_000
EXAMINED_RECORDS_MAX: Final = 65_536
EXAMINED_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Conditions of a reader, all of which must hold; an empty one is not set. Gaps always pass."""

    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    ops: tuple[int, ...] = ()

    def passes_all(self) -> bool:
        """Return True if no condition is set."""
        return not (self.key_prefixes or self.tags or self.exclude_nodes or self.ops)


ALL_RECORDS: Final = RecordFilter()


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Items in order (a batch ends at a gap), and the positions of reader and topic.

    `next_after_seq` is the last seq examined; `caught_up` = it is the head; `lag` = head - next. `batch_end` = no
    append lies on both sides of it; False = the last append continues, or this is unknown.
    """

    items: tuple[Batch | Gap, ...]
    next_after_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int
    batch_end: bool = False

    @property
    def caught_up(self) -> bool:
        return self.next_after_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_after_seq


@dataclass(frozen=True, slots=True)
class SeqFound:
    """The first live record at or after a time. Not `found`: `seq` is head + 1, and the newest record is older."""

    seq: int
    found: bool
    head_seq: int
    earliest_seq: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FoldState:
    """State of a fold: it contains every record up to `fold_seq`. `staleness_ms` is 0 without a source."""

    fold_seq: int
    epoch: int
    source_state: str = ""
    staleness_ms: int = 0


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Live entries at one point.

    In byte order of their keys (a range), or in the order of the request (a get: None = not live).
    """

    state: FoldState
    entries: tuple[Record | None, ...]


@dataclass(frozen=True, slots=True)
class RangePage:
    """One page of a range, or the live entries of some keys.

    The batch has a seq and a commit time a record; None = no entry, or none is left.
    """

    state: FoldState
    batch: Batch | None
