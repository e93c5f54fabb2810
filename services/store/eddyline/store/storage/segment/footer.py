"""What a segment is: an immutable Arrow IPC file of one topic's records, and the footer that tells what is in it.

The base of a KV topic's fold is the same file: its rows are entries, in key order, each with the seq that wrote it.

I1: batches lie one behind the other, each with its place, length and checksum; in a segment their seqs ascend, in a base
they do not. I2: what a footer denies (a key, a prefix, a tag) is not in the file; what it does not deny may be.
I3: a footer has a few numbers a batch, nothing a record but its filters' 10 bits a distinct key and tag: 330 KB for a
segment of nothing but new keys. Whoever keeps footers bounds how many; the catalog keeps summaries.
Written by `segment_write.py`, read by `segment_read.py`; the bytes are FORMAT.md's section "Segments".
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
    """Whose records they are. `kind` is LOG or KV; `base_seq` is the seq that a base was taken at, 0 in a segment."""

    topic_id: int
    topic_name: str
    kind: str
    config_version: int
    generation: int
    is_base: bool = False
    base_seq: int = 0


class BatchEntry(NamedTuple):
    """One record batch. Seqs and times are the lowest and the highest; `source_ts_ns_max` is 0 where no row has one.

    `record_bytes` is that of the semantics, gap records left out; `offset` and `length` are the message's bytes in the
    file, `checksum` their xxh3_64.
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
    """A whole file in a few numbers: what the catalog keeps. `rows` has the gap records too, `record_bytes` has not."""

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
    """What a segment says of itself. `min_key` and `max_key` are None where no row has a key."""

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
        """Its name's parts."""
        return SegmentId(self.summary.first_seq, self.summary.last_seq, self.summary.generation)

    @property
    def key_count(self) -> int:
        """Distinct keys; an upper bound of them where they were too many for a filter."""
        return self.keys.cell_count

    @property
    def tag_count(self) -> int:
        """Distinct tags; an upper bound of them where they were too many for a filter."""
        return self.tags.cell_count

    def may_hold_key(self, key: bytes) -> bool:
        """False = no row has this key."""
        if self.min_key is None or self.max_key is None:
            return False
        return self.min_key <= key <= self.max_key and self.keys.may_hold(key)

    def may_hold_key_prefix(self, prefix: bytes) -> bool:
        """False = no row has a key that begins so."""
        if self.min_key is None or self.max_key is None:
            return False
        return self.min_key[: len(prefix)] <= prefix <= self.max_key

    def may_hold_tag(self, tag: str) -> bool:
        """False = no row has this tag."""
        return self.tags.may_hold(tag.encode())

    def batch_after(self, seq: int) -> int:
        """Index of the first batch of a segment that has a seq greater than `seq`; their number where none has."""
        return bisect_right(self.batches, seq, key=_last_seq)

    def batch_through(self, seq: int) -> int:
        """Index of the last batch of a segment that has a seq at or below `seq`, which its first has."""
        return bisect_right(self.batches, seq, key=_first_seq) - 1
