"""Segment metadata: a segment is an immutable Arrow IPC file of one topic's records; its footer describes the content.

The base of a KV topic's fold is such a file too: its rows are entries, in key order, each with the seq that wrote it.

I1: batches follow one another, each with its offset, length and checksum; seqs ascend in a segment, not in a base. I2: a
key, prefix or tag that a footer denies is not in the file; one that it does not deny may be.
I3: a footer has a few numbers for each batch, and for each record only its filters' 10 bits a distinct key and tag: 330 KB
for a segment of new keys alone. Callers that cache footers bound their number; the catalog keeps summaries.
`writer.py` writes segments, `reader.py` reads them; FORMAT.md's section "Segments" has the bytes.
Threading: immutable values.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from eddyline.store.storage.layout import SegmentId

if TYPE_CHECKING:
    from eddyline.store.storage.segment.bloom_filter import KeyFilter

__all__ = ["BatchEntry", "Compression", "Footer", "SegmentId", "SegmentSource", "SegmentSummary"]

Compression: TypeAlias = Literal["none", "lz4", "zstd"]

_first_seq: Final = attrgetter("first_seq")
_last_seq: Final = attrgetter("last_seq")


class SegmentSource(NamedTuple):
    """Topic and generation of a file. `kind` is LOG or KV; `base_seq` is the seq of a base's snapshot, 0 in a segment."""

    topic_id: int
    topic_name: str
    kind: str
    config_version: int
    generation: int
    is_base: bool = False
    base_seq: int = 0


class BatchEntry(NamedTuple):
    """One record batch. Seqs and times are the lowest and the highest; `source_ts_ns_max` is 0 if no row has one.

    `record_bytes` is the records' bytes as quotas count them, without gap records; `offset` and `length` locate the
    message's bytes in the file, `checksum` is their xxh3_64.
    """

    first_seq: int
    last_seq: int
    first_ts_ms: int
    last_ts_ms: int
    rows: int
    gap_count: int
    record_bytes: int
    source_ts_ns_max: int
    offset: int
    length: int
    checksum: int


class SegmentSummary(NamedTuple):
    """Summary of a whole file, which the catalog keeps. `rows` includes the gap records, `record_bytes` does not."""

    first_seq: int
    last_seq: int
    generation: int
    rows: int
    gap_count: int
    record_bytes: int
    file_bytes: int
    first_ts_ms: int
    last_ts_ms: int
    source_ts_ns_max: int


@dataclass(frozen=True, slots=True)
class Footer:
    """A segment's footer. `min_key` and `max_key` are None if no row has a key."""

    source: SegmentSource
    summary: SegmentSummary
    batches: tuple[BatchEntry, ...]
    min_key: bytes | None
    max_key: bytes | None
    keys: KeyFilter
    tags: KeyFilter
    header_checksum: int

    @property
    def id(self) -> SegmentId:
        """First seq, last seq and generation, which make the file name."""
        return SegmentId(self.summary.first_seq, self.summary.last_seq, self.summary.generation)

    @property
    def key_count(self) -> int:
        """Distinct keys; an upper bound if they were too many for a filter."""
        return self.keys.cell_count

    @property
    def tag_count(self) -> int:
        """Distinct tags; an upper bound if they were too many for a filter."""
        return self.tags.cell_count

    def may_hold_key(self, key: bytes) -> bool:
        """Return False if no row has this key."""
        if self.min_key is None or self.max_key is None:
            return False
        return self.min_key <= key <= self.max_key and self.keys.may_hold(key)

    def may_hold_key_prefix(self, prefix: bytes) -> bool:
        """Return False if no row's key begins with `prefix`."""
        if self.min_key is None or self.max_key is None:
            return False
        return self.min_key[: len(prefix)] <= prefix <= self.max_key

    def may_hold_tag(self, tag: str) -> bool:
        """Return False if no row has this tag."""
        return self.tags.may_hold(tag.encode())

    def batch_after(self, seq: int) -> int:
        """Return the index of the first batch of a segment with a seq greater than `seq`; the number of batches if
        there is none."""
        return bisect_right(self.batches, seq, key=_last_seq)

    def batch_through(self, seq: int) -> int:
        """Return the index of the last batch of a segment with a seq at or below `seq`; the first batch must have one."""
        return bisect_right(self.batches, seq, key=_first_seq) - 1
