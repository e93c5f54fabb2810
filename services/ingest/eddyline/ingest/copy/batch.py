"""Batches of messages: those that arrive while one batch is in flight form the next one.

A chunk is a batch under construction: column by column, a message costs appends to lists and nothing else. It ends at 4
096 records or 1 MiB, and has at least one record. No timer: an idle source's message goes at once, a busy source's
batches fill up. The consumer's requests to the server bound how much is gathered.
Threading: event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.records.batch import Batch
from eddyline.core.records.cells import pack_cells, pack_numbers
from eddyline.core.records.column import Column, sizes_to_offsets
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Op, Record
from eddyline.ingest.copy.position import StreamPosition, sample_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.records.record import Gap
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.ingest.copy.decode import Delivery, Meaning

CHUNK_RECORDS_MAX: Final = 4_096
CHUNK_BYTES_MAX: Final = 1 << 20
"""Bounds of a WAL frame; above them a call to the store costs by the byte and no longer by the call. With a quarter of the
records P5 had 80 in place of 104 k records/s (`tests/bench/README.md`)."""
CHANGES_RECORDS_MAX: Final = 1_000
"""Bound of a batch of synthetic changes, mostly deletes."""
RECORD_OVERHEAD_BYTES: Final = 32
"""Bytes of a record in addition to key, data and meta: offsets, version, time, op."""
VERSION_BYTES: Final = 8


class Jump(NamedTuple):
    """Revisions missing before record `row` of a chunk: those between `after_revision` and `revision`, exclusive.

    `after_ns` = none of them is older (the server's time of the message at `after_revision`); 0 = unknown.
    """

    row: int
    after_revision: int
    after_ns: int
    revision: int


class PlacedGap(NamedTuple):
    """A gap that goes before record `row` of a chunk."""

    row: int
    gap: Gap


class UnfitMessage(NamedTuple):
    """A whole message that no record can hold, before record `row` of a chunk; `reason` names the bound that it exceeds."""

    row: int
    subject: bytes
    data: bytes
    headers: bytes
    revision: int
    time_ns: int
    reason: str


class Chunk:
    """A batch under construction, of at least one message once it is handed over. Messages that the source does not copy,
    and unfit ones, are no rows: they only move the position."""

    __slots__ = (
        "data",
        "jumps",
        "keys",
        "last_data",
        "last_revision",
        "last_subject",
        "messages",
        "metas",
        "nbytes",
        "ops",
        "revisions",
        "time_ns",
        "times_ns",
        "trace",
        "unfit",
    )

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.data: list[bytes] = []
        self.metas: list[bytes] = []
        self.ops = bytearray()
        self.revisions: list[int] = []
        self.times_ns: list[int] = []
        self.jumps: list[Jump] = []
        self.unfit: list[UnfitMessage] = []
        self.messages = 0
        self.last_revision = 0
        """Revision of the last message; the next two are its subject and data."""
        self.last_subject = self.last_data = b""
        self.time_ns = 0
        """Time of the youngest message."""
        self.nbytes = 0
        self.trace: OpenSpan | None = None
        """Span of the first sampled message in it."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.revisions)

    def add_unfit(self, message: UnfitMessage) -> None:
        """Set the last message aside: it is no row."""
        self.unfit.append(message)
        self.nbytes += len(message.subject) + len(message.data) + len(message.headers)

    def truncate(self, jump: Jump) -> None:
        """Drop everything from a jump of this chunk on."""
        del self.keys[jump.row :], self.data[jump.row :], self.metas[jump.row :], self.ops[jump.row :]
        del self.revisions[jump.row :], self.times_ns[jump.row :]
        self.jumps = [other for other in self.jumps if other.after_revision < jump.after_revision]
        self.unfit = [message for message in self.unfit if message.revision <= jump.after_revision]
        self.last_revision = jump.after_revision
        self.time_ns = max([jump.after_ns, *self.times_ns])
        self.last_subject = self.last_data = b""  # no longer known: the position has no sample

    def keep_rows(self, rows: Sequence[int], through: int) -> None:
        """Drop the rows up to revision `through` that are not among `rows` (ascending). Entries placed before a row stay
        before its successor."""
        kept_indices = set(rows)
        kept_rows = [row for row, revision in enumerate(self.revisions) if revision > through or row in kept_indices]
        new_row = [bisect_left(kept_rows, row) for row in range(self.count + 1)]
        self.jumps = [jump._replace(row=new_row[jump.row]) for jump in self.jumps]
        self.unfit = [message._replace(row=new_row[message.row]) for message in self.unfit]
        self.keys = [self.keys[row] for row in kept_rows]
        self.data = [self.data[row] for row in kept_rows]
        self.metas = [self.metas[row] for row in kept_rows]
        self.ops = bytearray(self.ops[row] for row in kept_rows)
        self.revisions = [self.revisions[row] for row in kept_rows]
        self.times_ns = [self.times_ns[row] for row in kept_rows]

    def position(self, created_ns: int, resync_serial: int = 0, time_ns: int = 0) -> StreamPosition:
        """The position once the chunk is applied; `time_ns` = that of the position before."""
        time_ns = max(time_ns, self.time_ns)
        sample = sample_of(self.last_subject, self.last_data) if self.last_subject else bytes(16)
        return StreamPosition(created_ns, self.last_revision, sample, resync_serial, time_ns)

    def batch(self, gaps: Sequence[PlacedGap] = ()) -> Batch | None:
        """The rows as columns, with gap records in their places (ascending); None = neither."""
        if not self.count:
            return Batch.from_rows([gap_record(gap) for _, gap in gaps]) if gaps else None
        versions = np.array(self.revisions, dtype=">u8").tobytes()
        offsets = sizes_to_offsets(np.full(self.count, VERSION_BYTES, dtype=np.uint32))
        # A deletion has a key alone: its data is absent, while a value of zero bytes is present.
        are_events = self.ops.count(Op.APPEND) == self.count
        data = (
            self.data
            if are_events or self.ops.count(Op.PUT) == self.count
            else [data if op == Op.PUT or data else None for op, data in zip(self.ops, self.data, strict=True)]
        )
        batch = Batch(
            self.count,
            ops=None if are_events else bytes(self.ops),
            source_ts_ns=pack_numbers("q", self.times_ns, "source_ts_ns"),
            key=pack_cells(self.keys, absence=True),
            data=pack_cells(data, absence=True),
            meta=pack_cells(self.metas, absence=False),
            version=Column(offsets, versions, None),
        )
        return _with_gaps(batch, gaps) if gaps else batch


class Gatherer:
    """Chunks in order; messages go into the newest."""

    def __init__(self, *, records_max: int = CHUNK_RECORDS_MAX, bytes_max: int = CHUNK_BYTES_MAX) -> None:
        assert records_max > 0
        assert bytes_max > 0
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._chunks: deque[Chunk] = deque()
        self.count = 0
        """Messages in all chunks."""

    def skip(self, subject: bytes, data: bytes, delivery: Delivery, *, size: int = 0) -> Chunk:
        """Count a message that is no row; `size` = its bytes that the chunk holds. Returns its chunk, whose last message it
        is."""
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or chunk.count >= self._records_max or (size and chunk.nbytes + size > self._bytes_max):
            chunk = Chunk()
            self._chunks.append(chunk)
        self.count += 1
        chunk.messages += 1
        chunk.last_revision = delivery.revision
        chunk.time_ns = max(chunk.time_ns, delivery.time_ns)
        chunk.last_subject = subject
        chunk.last_data = data
        return chunk

    def add(self, subject: bytes, key: bytes, data: bytes, meaning: Meaning, delivery: Delivery) -> Chunk:
        """Add a message as a row. Returns its chunk, whose last message it is. One function, since each call costs."""
        op, meta = meaning
        revision, _, time_ns, _ = delivery
        size = len(key) + len(data) + len(meta) + RECORD_OVERHEAD_BYTES
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or len(chunk.revisions) >= self._records_max or chunk.nbytes + size > self._bytes_max:
            chunk = Chunk()
            self._chunks.append(chunk)
        self.count += 1
        chunk.messages += 1
        chunk.last_revision = revision
        chunk.time_ns = max(chunk.time_ns, time_ns)
        chunk.last_subject = subject
        chunk.last_data = data
        chunk.keys.append(key)
        chunk.data.append(data)
        chunk.metas.append(meta)
        chunk.ops.append(op)
        chunk.revisions.append(revision)
        chunk.times_ns.append(time_ns)
        chunk.nbytes += size
        return chunk

    def pop(self) -> Chunk | None:
        """Remove and return the oldest chunk; None = there is none."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self.count -= chunk.messages
        return chunk


def gap_record(gap: Gap) -> Record:
    """The record of op GAP for `gap`."""
    return Record(op=Op.GAP, data=encode_gap(gap))


def _with_gaps(batch: Batch, gaps: Sequence[PlacedGap]) -> Batch:
    parts: list[Batch] = []
    start = 0
    for row, gap in gaps:
        parts += (batch.slice(start, row), Batch.from_rows([gap_record(gap)]))
        start = row
    return Batch.concat([*parts, batch.slice(start, batch.count)])
