"""`Batch`: records as columns, the unit that crosses every boundary of the cluster.

A producer packs a batch once; the log writes its buffers as they are, the index keeps one entry for it, readers get it
whole. Rows are made at the edge only: `from_rows` and `to_rows` are the two places that touch records one by one, at
about 0.5 us each; every other operation costs per batch.

Invariants:
    I1 a batch never changes after its construction; it may share its buffers with other batches and with the read-only
       memory of a frame or message.
    I2 this module makes canonical batches from canonical batches (`eddyline.core.records.column`), also in `ops` (None
       = all APPEND) and `source_ts_ns` (None = all 0): batches of equal content have equal buffers.
    I3 `seqs` is None if seqs are consecutive from `first_seq`; otherwise it holds all of them and `first_seq` is the
       first. `ts_ms_each` and `ts_ms` follow the same rule. Until a store assigns seqs, first_seq is 0 and `seqs` None.

The constructor takes buffers as they are; foreign ones go through `eddyline.core.records.validation`. Immutable, so any
thread may read it.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.records.cells import (
    cells_of,
    metas_of,
    numbers_of,
    pack_cells,
    pack_metas,
    pack_numbers,
    pack_texts,
    texts_of,
)
from eddyline.core.records.column import (
    Buffer,
    Column,
    canonical_column,
    concat_columns,
    runs_of,
    select_column,
    slice_column,
)
from eddyline.core.records.fixed import (
    APPEND_BYTE,
    canonical_each,
    canonical_ops,
    canonical_seqs,
    canonical_times,
    join_fixed,
    numbers_at,
    numbers_cut,
    pack_ops,
    pack_seqs,
    pack_times,
)
from eddyline.core.records.record import RECORD_OVERHEAD_BYTES, Op, Record, op_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from eddyline.core.records.record import MetaEntry

__all__ = ["Batch", "Buffer", "Column", "RowFields"]

_OP_OF: Final = tuple(map(op_of, range(256)))
_NO_TIME: Final = bytes(8)
_new_record: Final = partial(tuple.__new__, Record)
"""Makes a record from its ten fields in order, without the length check of `Record._make`: half the time."""


class RowFields(NamedTuple):
    """Rows transposed: each field of `Record`, in its order, as a sequence over the rows."""

    seqs: Sequence[int]
    times: Sequence[int]
    source_times: Sequence[int]
    ops: Sequence[int]
    keys: Sequence[bytes | None]
    data: Sequence[bytes | None]
    tags: Sequence[str | None]
    nodes: Sequence[str | None]
    metas: Sequence[tuple[MetaEntry, ...]]
    versions: Sequence[bytes]

    @classmethod
    def of(cls, records: Sequence[Record]) -> RowFields:
        """Transpose rows.

        Through one flat list: `zip` of 1 000 records makes 1 000 iterators at once, which start a garbage collection.
        """
        width = len(cls._fields)
        flat = list(chain.from_iterable(records))
        assert len(flat) == width * len(records)
        return cls(*[flat[at::width] for at in range(width)])  # type: ignore[arg-type]  # each list is of its field


class Batch:
    """Records of one topic as columns. The module's docstring has the invariants."""

    __slots__ = (
        "_content_bytes",
        "count",
        "data",
        "first_seq",
        "key",
        "meta",
        "node",
        "ops",
        "seqs",
        "source_ts_ns",
        "tag",
        "ts_ms",
        "ts_ms_each",
        "version",
    )

    def __init__(
        self,
        count: int,
        *,
        first_seq: int = 0,
        seqs: Buffer | None = None,
        ts_ms: int = 0,
        ts_ms_each: Buffer | None = None,
        ops: Buffer | None = None,
        source_ts_ns: Buffer | None = None,
        key: Column | None = None,
        data: Column | None = None,
        tag: Column | None = None,
        node: Column | None = None,
        meta: Column | None = None,
        version: Column | None = None,
    ) -> None:
        self.count: Final = count
        self.first_seq: Final = first_seq
        self.seqs: Final = seqs
        self.ts_ms: Final = ts_ms
        self.ts_ms_each: Final = ts_ms_each
        self.ops: Final = ops
        self.source_ts_ns: Final = source_ts_ns
        self.key: Final = key
        self.data: Final = data
        self.tag: Final = tag
        self.node: Final = node
        self.meta: Final = meta
        self.version: Final = version
        self._content_bytes: int | None = None

    # --- rows -------------------------------------------------------------------------------------------------

    @staticmethod
    def from_rows(records: Sequence[Record]) -> Batch:
        """Pack rows with their seqs and commit times; if every `seq` is 0, seqs are not assigned yet.

        Raises:
            MalformedColumns, RecordTooLarge: a text or a meta cannot be encoded.
            InvalidArgument, InvalidOp: a number does not fit into its width.
        """
        if not records:
            return Batch(0)
        return Batch.from_fields(RowFields.of(records))

    @staticmethod
    def from_fields(fields: RowFields) -> Batch:
        """Pack at least one row, field by field. Raises: as `from_rows`."""
        seqs, times, source_times, ops, keys, data, tags, nodes, metas, versions = fields
        first_seq, seq_each = pack_seqs(seqs)
        ts_ms, ts_ms_each = pack_times(times)
        return Batch(
            len(seqs),
            first_seq=first_seq,
            seqs=seq_each,
            ts_ms=ts_ms,
            ts_ms_each=ts_ms_each,
            ops=pack_ops(ops),
            source_ts_ns=pack_numbers("q", source_times, "source_ts_ns") if any(source_times) else None,
            key=pack_cells(keys, absence=True),
            data=pack_cells(data, absence=True),
            tag=pack_texts(tags),
            node=pack_texts(nodes),
            meta=pack_metas(metas),
            version=pack_cells(versions, absence=False),
        )

    def to_rows(self, *, effective_versions: bool = False) -> list[Record]:
        """Return the records as rows; `version` is the stored one, empty if none was set.

        `effective_versions` = as readers get them: the seq in 8 bytes if none was set
        (`eddyline.core.records.record.effective_version`), empty without a seq.
        """
        count = self.count
        if count == 0:
            return []
        fields = zip(
            self.seq_list(),
            repeat(self.ts_ms) if self.ts_ms_each is None else numbers_of("q", self.ts_ms_each),
            repeat(0) if self.source_ts_ns is None else numbers_of("q", self.source_ts_ns),
            repeat(Op.APPEND) if self.ops is None else map(_OP_OF.__getitem__, bytes(self.ops)),
            repeat(None) if self.key is None else cells_of(self.key, count),
            repeat(None) if self.data is None else cells_of(self.data, count),
            repeat(None) if self.tag is None else texts_of(self.tag, count),
            repeat(None) if self.node is None else texts_of(self.node, count),
            repeat(()) if self.meta is None else metas_of(self.meta, count),
            self._effective_versions() if effective_versions else self._stored_versions(),
            strict=False,  # repeat() has no end
        )
        return list(map(_new_record, fields))

    def _stored_versions(self) -> Iterable[bytes | None]:
        return repeat(b"") if self.version is None else cells_of(self.version, self.count)

    def _effective_versions(self) -> Iterable[bytes | None]:
        if self.first_seq == 0 and self.seqs is None:
            return self._stored_versions()
        of_seqs: list[bytes]
        if self.count == 1:
            of_seqs = [self.seq_at(0).to_bytes(8, "big")]
        else:
            of_seqs = self.seq_array().astype(">u8").view("V8").tolist()
        if self.seqs is not None and not self.seq_array().all():
            of_seqs = [version if any(version) else b"" for version in of_seqs]
        if self.version is None:
            return of_seqs
        stored = cells_of(self.version, self.count)
        return [version or of_seq for version, of_seq in zip(stored, of_seqs, strict=True)]

    # --- seqs, times --------------------------------------------------------------------------------------------

    def with_seqs(self, first_seq: int, ts_ms: int) -> Batch:
        """Return the same records at consecutive seqs from `first_seq`, all committed at `ts_ms`. Shares the columns."""
        return Batch(
            self.count,
            first_seq=first_seq,
            ts_ms=ts_ms,
            ops=self.ops,
            source_ts_ns=self.source_ts_ns,
            key=self.key,
            data=self.data,
            tag=self.tag,
            node=self.node,
            meta=self.meta,
            version=self.version,
        )

    def seq_at(self, index: int) -> int:
        """Return the seq of one record; 0 if seqs are not assigned yet."""
        if self.seqs is not None:
            return int.from_bytes(self.seqs[8 * index : 8 * index + 8], "little")
        return self.first_seq + index if self.first_seq else 0

    @property
    def last_seq(self) -> int:
        """Seq of the last record, inclusive; 0 if the batch is empty or seqs are not assigned yet."""
        return self.seq_at(self.count - 1) if self.count else 0

    @property
    def last_ts_ms(self) -> int:
        """Commit time of the last record, in milliseconds since the Unix epoch."""
        if self.ts_ms_each is None:
            return self.ts_ms
        return int.from_bytes(memoryview(self.ts_ms_each)[-8:], "little", signed=True)

    def ends_append(self, index: int) -> bool:
        """Return True if the row before `index` belongs to another append than the row at `index`.

        All records of one append have one commit time; False also means that the batch cannot tell. `index` is above 0
        and below `count`.
        """
        if self.ts_ms_each is None:
            return False
        times = memoryview(self.ts_ms_each)
        return times[index * 8 - 8 : index * 8] != times[index * 8 : index * 8 + 8]

    def index_after(self, seq: int) -> int:
        """Return the first index whose seq is greater than `seq`, `count` if none is. Seqs must be ascending."""
        if self.seqs is None:
            return min(max(seq + 1 - self.first_seq, 0), self.count)
        return int(np.searchsorted(np.frombuffer(self.seqs, dtype="<u8"), np.uint64(seq), side="right"))

    def seq_list(self) -> list[int]:
        """Return the seq of each record; zeros if seqs are not assigned yet."""
        if self.seqs is not None:
            return numbers_of("Q", self.seqs)
        return list(range(self.first_seq, self.first_seq + self.count)) if self.first_seq else [0] * self.count

    # --- content ----------------------------------------------------------------------------------------------

    @property
    def content_bytes(self) -> int:
        """Size by the contract: the cells and 32 bytes a record, cached. Limits of reads and frames, and credit, use it."""
        size = self._content_bytes
        if size is None:
            size = self._content_bytes = RECORD_OVERHEAD_BYTES * self.count + sum(
                len(column.values) for column in self.columns() if column is not None
            )
        return size

    @property
    def has_gaps(self) -> bool:
        """True = a record has op GAP."""
        # Bytes are searched at once; a view would make a number of each of them.
        return self.ops is not None and Op.GAP in bytes(self.ops)

    @property
    def record_bytes(self) -> int:
        """`content_bytes` without the records of op GAP: `cap_bytes` and a topic's `record_bytes` count these."""
        if not self.has_gaps:
            return self.content_bytes
        return self.select((self.ops_array() != Op.GAP).nonzero()[0]).content_bytes

    @property
    def nbytes(self) -> int:
        """Total length of all buffers."""
        size = 0
        for buffer in (self.seqs, self.ts_ms_each, self.ops, self.source_ts_ns):
            if buffer is not None:
                size += len(buffer)
        for column in self.columns():
            if column is not None:
                size += column.nbytes
        return size

    def columns(self) -> tuple[Column | None, ...]:
        """Return key, data, tag, node, meta, version: the order of the log's format."""
        return self.key, self.data, self.tag, self.node, self.meta, self.version

    def keys(self) -> list[bytes | None]:
        """Return the key of each record; None = absent."""
        return [None] * self.count if self.key is None else cells_of(self.key, self.count)

    def ops_array(self) -> NDArray[np.uint8]:
        """Return the op of each record, one byte each."""
        if self.ops is None:
            return np.full(self.count, Op.APPEND, dtype=np.uint8)
        return np.frombuffer(self.ops, dtype=np.uint8)

    def canonical(self) -> Batch:
        """Return the same content in canonical form (I2, I3); columns must be valid."""
        count = self.count
        if count == 0:
            return Batch(0)
        first_seq, seqs = canonical_seqs(self.first_seq, self.seqs)
        ts_ms, ts_ms_each = canonical_each(self.ts_ms, self.ts_ms_each)
        return Batch(
            count,
            first_seq=first_seq,
            seqs=seqs,
            ts_ms=ts_ms,
            ts_ms_each=ts_ms_each,
            ops=canonical_ops(self.ops),
            source_ts_ns=canonical_times(self.source_ts_ns),
            key=canonical_column(self.key, count, absence=True),
            data=canonical_column(self.data, count, absence=True),
            tag=canonical_column(self.tag, count, absence=True),
            node=canonical_column(self.node, count, absence=True),
            meta=canonical_column(self.meta, count, absence=False),
            version=canonical_column(self.version, count, absence=False),
        )

    # --- parts and joins --------------------------------------------------------------------------------------

    def slice(self, start: int, stop: int) -> Batch:
        """Return records `start` to `stop`, half-open, clamped to the batch. Shares the cells' bytes."""
        start, stop = max(start, 0), min(stop, self.count)
        if start == 0 and stop == self.count:
            return self
        if start >= stop:
            return Batch(0)
        first_seq, seqs = canonical_seqs(self.first_seq and self.first_seq + start, numbers_cut(self.seqs, start, stop))
        ts_ms, ts_ms_each = canonical_each(self.ts_ms, numbers_cut(self.ts_ms_each, start, stop))

        def cut(column: Column | None, *, absence: bool = True) -> Column | None:
            return None if column is None else slice_column(column, start, stop, absence=absence)

        return Batch(
            stop - start,
            first_seq=first_seq,
            seqs=seqs,
            ts_ms=ts_ms,
            ts_ms_each=ts_ms_each,
            ops=canonical_ops(None if self.ops is None else memoryview(self.ops)[start:stop]),
            source_ts_ns=canonical_times(numbers_cut(self.source_ts_ns, start, stop)),
            key=cut(self.key),
            data=cut(self.data),
            tag=cut(self.tag),
            node=cut(self.node),
            meta=cut(self.meta, absence=False),
            version=cut(self.version, absence=False),
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Join all records of `batches` in order, with their seqs and commit times.

        Raises:
            MalformedColumns: a column would reach 2^31 bytes.
        """
        parts = [batch for batch in batches if batch.count]
        if len(parts) < 2:
            return parts[0] if parts else Batch(0)
        counts = [batch.count for batch in parts]
        first_seq, seqs = _joined_seqs(parts)
        ts_ms, ts_ms_each = _joined_times(parts)
        return Batch(
            sum(counts),
            first_seq=first_seq,
            seqs=seqs,
            ts_ms=ts_ms,
            ts_ms_each=ts_ms_each,
            ops=join_fixed([batch.ops for batch in parts], counts, APPEND_BYTE),
            source_ts_ns=join_fixed([batch.source_ts_ns for batch in parts], counts, _NO_TIME),
            key=concat_columns([batch.key for batch in parts], counts, absence=True),
            data=concat_columns([batch.data for batch in parts], counts, absence=True),
            tag=concat_columns([batch.tag for batch in parts], counts, absence=True),
            node=concat_columns([batch.node for batch in parts], counts, absence=True),
            meta=concat_columns([batch.meta for batch in parts], counts, absence=False),
            version=concat_columns([batch.version for batch in parts], counts, absence=False),
        )

    def select(self, indices: NDArray[np.int64]) -> Batch:
        """Return the records at `indices`, in that order, each with its seq and commit time."""
        if len(indices) == 0:
            return Batch(0)
        runs = runs_of(indices)
        if len(runs.starts) == 1:
            return self.slice(int(runs.starts[0]), int(runs.ends[0]))
        seqs: Buffer | None = None
        if self.seqs is not None or self.first_seq:
            seqs = self.seq_array()[indices].tobytes()
        first_seq, seqs = canonical_seqs(self.first_seq, seqs)
        ts_ms, ts_ms_each = canonical_each(self.ts_ms, numbers_at(self.ts_ms_each, indices))

        def pick(column: Column | None, *, absence: bool = True) -> Column | None:
            return None if column is None else select_column(column, self.count, runs, absence=absence)

        return Batch(
            len(indices),
            first_seq=first_seq,
            seqs=seqs,
            ts_ms=ts_ms,
            ts_ms_each=ts_ms_each,
            ops=canonical_ops(None if self.ops is None else self.ops_array()[indices].tobytes()),
            source_ts_ns=canonical_times(numbers_at(self.source_ts_ns, indices)),
            key=pick(self.key),
            data=pick(self.data),
            tag=pick(self.tag),
            node=pick(self.node),
            meta=pick(self.meta, absence=False),
            version=pick(self.version, absence=False),
        )

    def seq_array(self) -> NDArray[np.uint64]:
        if self.seqs is not None:
            return np.frombuffer(self.seqs, dtype="<u8")
        if self.first_seq == 0:
            return np.zeros(self.count, dtype="<u8")
        return np.arange(self.first_seq, self.first_seq + self.count, dtype="<u8")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Batch.__slots__ if name != "_content_bytes")

    __hash__ = None  # type: ignore[assignment]  # equal by content, and content is large

    def __repr__(self) -> str:
        return f"Batch(count={self.count}, first_seq={self.first_seq}, nbytes={self.nbytes})"


def _joined_seqs(batches: Sequence[Batch]) -> tuple[int, Buffer | None]:
    first_seq = batches[0].first_seq
    next_seq = first_seq
    for batch in batches:
        if batch.seqs is not None or batch.first_seq != next_seq:
            return canonical_seqs(first_seq, b"".join([part.seq_array().tobytes() for part in batches]))
        next_seq += batch.count if first_seq else 0
    return first_seq, None


def _joined_times(batches: Sequence[Batch]) -> tuple[int, Buffer | None]:
    ts_ms = batches[0].ts_ms
    if all(batch.ts_ms_each is None and batch.ts_ms == ts_ms for batch in batches):
        return ts_ms, None
    return ts_ms, b"".join(
        [
            batch.ts_ms.to_bytes(8, "little", signed=True) * batch.count
            if batch.ts_ms_each is None
            else batch.ts_ms_each
            for batch in batches
        ]
    )
