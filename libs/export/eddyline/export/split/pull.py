"""One split out of the store, into a task: verified, resumed where it broke off, and accounted for to the last seq.

I1: a split's rows come once each, in `seq` order, however often the store went away: an attempt goes on behind the last
row or gap that was handed out, by a split that begins there.
I2: what is complete has said so: a stream that ends without `end`, with another number of rows than `end` tells, or with
counts that do not make up the range, is no result.
I3: rows + gaps + deleted + hidden = last - first + 1 (`Account`), of every split whose items were all taken.
Of a base (`SplitKind` BASE) rows have no order to go on in: an attempt begins anew, and rows come again. A reader of a fold
keeps the highest `seq` of each key, so repeated rows change nothing.
Failure: a checksum that is wrong is DataCorrupt, at once. A store that is away or busy is waited for (`RetryBudget`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import xxhash
from google.protobuf.message import DecodeError
from pyarrow import ipc

from eddyline.core.codec.records import gap_from_pb
from eddyline.core.errors import (
    Code,
    DataCorrupt,
    EddylineError,
    EpochMismatch,
    HistoryGone,
    NotReady,
    TopicNotFound,
)
from eddyline.core.records.record import Gap
from eddyline.export.split.frames import ArrowFrame, frame_of
from eddyline.export.split.pieces import Account, TopicSplit, filter_of, gone, point_gone
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eddyline.core.model.read import RecordFilter
    from eddyline.export.split.calls import Cluster

_LOG_LIKE: Final = (pb.SPLIT_KIND_LOG, pb.SPLIT_KIND_HISTORY)


class SplitPull:
    """Reads one piece. `account` is complete when `items` has ended."""

    def __init__(
        self,
        cluster: Cluster,
        piece: TopicSplit,
        *,
        records: RecordFilter,
        columns: Sequence[pb.SplitColumn.ValueType],
        on_retry: Callable[[EddylineError], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._piece = piece
        self._filter = filter_of(records, piece)
        self._columns = columns
        self._on_retry = on_retry
        self._resumes = piece.kind in _LOG_LIKE
        self._next = piece.first
        self._done = Account()

    @property
    def account(self) -> Account:
        """The seqs accounted for so far."""
        return self._done

    def items(self) -> Iterator[pa.RecordBatch | Gap]:
        """Yield the rows, as batches of the store's columns, and what was lost in its places.

        Raises:
            EddylineError: EpochMismatch, TopicNotFound (the topic was deleted, or made again, meanwhile), HistoryGone,
                FoldLost, DataCorrupt; a store that stayed away for longer than the patience.
        """
        patience = self._cluster.patience()
        furthest = 0
        while self._next <= self._piece.last:
            attempt = _Attempt(dataclasses.replace(self._piece, first=self._next), resumes=self._resumes)
            try:
                for item in attempt.items(self._cluster.read_split(self._request(attempt.piece))):
                    if self._resumes or attempt.rows > furthest:
                        furthest = attempt.rows
                        patience.reset()
                    yield item
            except EddylineError as error:
                if self._resumes:
                    self._settle(attempt.passed(hides=self._filter.ByteSize() > 0), attempt.next)
                if error.code is Code.UNAVAILABLE:
                    self._cluster.look_again()
                patience.wait(self._explained(error))
                if self._on_retry is not None:
                    self._on_retry(error)
                continue
            self._settle(attempt.account, self._piece.last + 1)
        assert self._done.total == self._piece.length, "I3"

    def _settle(self, account: Account, next_seq: int) -> None:
        self._done += account
        self._next = next_seq

    def _explained(self, error: EddylineError) -> EddylineError:
        if isinstance(error, EpochMismatch | TopicNotFound):
            return gone(error, self._piece.topic, self._piece.epoch)
        if isinstance(error, HistoryGone):
            return point_gone(error, self._piece.topic)
        return error

    def _request(self, piece: TopicSplit) -> pb.ReadSplitRequest:
        return pb.ReadSplitRequest(
            topic=piece.topic, epoch=piece.epoch, split=piece.message(), filter=self._filter, columns=self._columns
        )


class _Attempt:
    """One answer of ReadSplit, checked as it comes."""

    def __init__(self, piece: TopicSplit, *, resumes: bool) -> None:
        self.piece = piece
        self.next = piece.first
        self.account = Account()
        self._ordered = resumes
        self.rows = 0
        self._gaps = 0
        self._gap_frames = 0

    def items(self, answers: Iterator[bytes]) -> Iterator[pa.RecordBatch | Gap]:
        schema: pa.Schema | None = None
        for answer in answers:
            frame = self._frame(answer)
            if isinstance(frame, ArrowFrame):
                yield self._batch(frame, schema)
                continue
            match frame.WhichOneof("frame"):
                case "schema":
                    schema = ipc.read_schema(pa.py_buffer(frame.schema))
                case "batch":
                    sent = frame.batch
                    yield self._batch(ArrowFrame(memoryview(sent.message), sent.checksum, sent.count), schema)
                case "gap":
                    yield self._gap(gap_from_pb(frame.gap))
                case "end":
                    self._end(frame.end)
                    return
        raise NotReady(f"a read of topic {self.piece.topic} ended before the end of its split")

    def passed(self, *, hides: bool) -> Account:
        """The account of an attempt that broke off, up to `next`."""
        over = self.next - self.piece.first - self.rows - self._gaps
        return Account(self.rows, self._gaps, 0 if hides else over, over if hides else 0)

    def _frame(self, answer: bytes) -> ArrowFrame | pb.ReadSplitResponse:
        try:
            return frame_of(answer)
        except DecodeError as error:
            raise self._corrupt(f"an answer cannot be read ({error})") from error

    def _batch(self, sent: ArrowFrame, schema: pa.Schema | None) -> pa.RecordBatch:
        if xxhash.xxh3_64_intdigest(sent.message) != sent.checksum:
            raise self._corrupt("a batch's checksum is wrong")
        if schema is None:
            raise self._corrupt("a batch came before the schema")
        try:
            batch = ipc.read_record_batch(pa.py_buffer(sent.message), schema)
        except pa.ArrowInvalid as error:
            raise self._corrupt(f"a batch cannot be read ({error})") from error
        if batch.num_rows != sent.rows:
            raise self._corrupt(f"a batch has {batch.num_rows} rows and declares {sent.rows}")
        self.rows += batch.num_rows
        if self._ordered and batch.num_rows:
            self._check_seqs(batch.column("seq"))
        return batch

    def _check_seqs(self, column: pa.Array) -> None:
        seqs = np.frombuffer(column.buffers()[1], dtype="<u8", count=len(column), offset=8 * column.offset)
        if int(seqs[0]) < self.next or int(seqs[-1]) > self.piece.last or not (seqs[1:] > seqs[:-1]).all():
            raise self._corrupt(f"seqs from {seqs[0]} to {seqs[-1]}, but {self.next} to {self.piece.last} are left")
        self.next = int(seqs[-1]) + 1

    def _gap(self, gap: Gap) -> Gap:
        self._gap_frames += 1
        if self._ordered:
            first, last = max(gap.first_seq, self.next), min(max(gap.own_seq, gap.last_seq), self.piece.last)
            self._gaps += max(0, last - first + 1)
            self.next = max(self.next, last + 1)
        return gap

    def _end(self, end: pb.SplitEnd) -> None:
        told = Account(end.row_count, end.gap_count, end.deleted_count, end.hidden_count)
        if told.rows != self.rows:
            raise self._corrupt(f"{self.rows} of {told.rows} rows arrived")
        if told.total != self.piece.length:
            raise self._corrupt(f"{told} does not add up to {self.piece.length}")
        if told.gaps and self._ordered and not self._gap_frames:
            raise self._corrupt(f"{told.gaps} seqs are lost, but no gap arrived")
        self.account = told

    def _corrupt(self, why: str) -> DataCorrupt:
        piece = self.piece
        return DataCorrupt(f"topic {piece.topic}, split {piece.first} to {piece.last}, at {self.next}: {why}")
