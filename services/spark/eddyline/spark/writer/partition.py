"""One partition's rows into a topic, each once: batches in flight, each with the position behind it.

The writer's position moves in the commit of the rows, from the one before them to the one behind them, so the store takes a
batch once, whoever sends it how often. At the start, and after every failure, the writer asks where it stands; that answer
settles what was under way, COMMIT_UNKNOWN too, and the rows go on behind it, if the rows up to there are the same ones.

Attempts of one partition at the same time (speculation, an executor thought dead) may both write. While their rows are equal
they help each other: the store answers the second one that the rows are stored, or that the position has moved, and it
continues there.
If the rows differ, an attempt that has written nothing takes over with a higher fence and writes all of its own; from then
on the store refuses the other one. So the fence counts takeovers, not attempts: an attempt that does the same
work is no danger, and is not failed for being older.

*Invariant:* when `write` returns, each row was committed at least once, in its place; exactly once unless `took_over`.
Failure: `UNAVAILABLE`, `RESOURCE_EXHAUSTED` and time-outs are retried until nothing went on for `wait_timeout_s`; all else
ends it, behind what was written. Threading: one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eddyline.client.transport.call import RETRY_CAP_S, STREAM_RETRYABLE, retry_after_s
from eddyline.core.errors import EddylineError, InvalidArgument, StaleFence, StalePosition
from eddyline.core.runtime.backoff import Backoff
from eddyline.export.split.channels import NO_ACCESS
from eddyline.spark.writer.position import decoded
from eddyline.spark.writer.rows import at_ordinal
from eddyline.spark.writer.store_channel import open_store_channel
from eddyline.v1 import types_pb2

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.spark.writer.position import RowPosition
    from eddyline.spark.writer.store_channel import Appends, StoredPosition

IN_FLIGHT_MAX: Final = 8
"""Half of what the store reads ahead of its answers: its group commit is full, and two of our sizes fit into its 16 MiB."""
IN_FLIGHT_BYTES_MAX: Final = 16 << 20


class RowChunk(NamedTuple):
    """Rows of one append: `first` is the ordinal of the first one, `position` the one behind them."""

    batch: Batch
    first: int
    position: RowPosition


class RowSource(Protocol):
    """The rows of one partition or file, in their order, always the same ones."""

    def next_piece(self) -> RowChunk | None:
        """The next rows, at least one; None = there are no more."""

    def resume(self, stored: RowPosition | None, unsettled: Sequence[RowChunk]) -> bool:
        """Go on behind `stored`, None = at the start; `unsettled` were given, oldest first, and are known to be written up
        to `stored` at most. False = the rows up to there are others, and nothing but `rewind` may follow."""

    def rewind(self) -> bool:
        """Go back to the first row. False = it cannot."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target and its credentials: `epoch` is the topic's, `run` the micro-batch, 0 = there are none."""

    stores: tuple[str, ...]
    topic: str
    kind: Kind
    epoch: int
    writer: str
    run: int = 0
    patience_s: float = 60.0
    access: CallerAccess = field(default=NO_ACCESS, repr=False)


@dataclass(slots=True)
class WriteResult:
    """The outcome of this attempt: `appended` records, of them the first and the last seq (0 = none); `known` ones that it
    sent and that were there. `took_over` = rows of another attempt are there beside ours."""

    appended: int = 0
    known: int = 0
    first_seq: int = 0
    last_seq: int = 0
    took_over: bool = False


class PartitionWriter:
    """Writes one partition. Used once."""

    def __init__(self, rows: RowSource, target: Target, *, clock: Clock, random_source: random.Random) -> None:
        self._rows = rows
        self._target = target
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=RETRY_CAP_S)
        self._pending: deque[RowChunk] = deque()
        self._fence = 0
        self._previous = b""
        self._settled: int | None = None
        """Ordinal up to which rows of ours are known to be stored; None = none is."""
        self._give_up_s: float | None = None
        self._row_error: EddylineError | None = None
        self.written = WriteResult()
        """True at all times."""

    def write(self) -> WriteResult:
        """Write all rows.

        Raises:
            EddylineError: StaleFence: another attempt, with other rows, took over. InvalidArgument: the rows differ from
                those that were written, or a later micro-batch was. The store's refusals, with the row's ordinal if it is
                one row. Errors raised by the rows.
        """
        while True:
            try:
                with open_store_channel(self._target.stores, self._target.topic, self._target.access) as link:
                    self._resume(link.place_of(self._target.writer, kind=self._target.kind, epoch=self._target.epoch))
                    with link.appends(epoch=self._target.epoch) as appends:
                        self._append_all(appends)
                return self.written
            except EddylineError as error:
                self._before_retry(error)

    def _append_all(self, appends: Appends) -> None:
        sent_bytes, previous = 0, self._previous
        while True:
            while len(self._pending) < IN_FLIGHT_MAX and sent_bytes < IN_FLIGHT_BYTES_MAX:
                piece = self._next_piece(appends)
                if piece is None:
                    break
                self._pending.append(piece)
                new = piece.position.encoded()
                move = types_pb2.WriterPosition(
                    writer=self._target.writer, fence=self._fence, previous=previous, new=new
                )
                appends.append(piece.batch, move)
                previous = new
                sent_bytes += piece.batch.nbytes
            if not self._pending:
                return
            self._take_answer(appends)
            sent_bytes = sum(piece.batch.nbytes for piece in self._pending)

    def _next_piece(self, appends: Appends) -> RowChunk | None:
        try:
            return self._rows.next_piece()
        except EddylineError as error:
            # It ends the write, whatever becomes of what is under way, which is waited for.
            self._row_error = error
            with suppress(EddylineError):
                while self._pending:
                    self._take_answer(appends)
            raise

    def _take_answer(self, appends: Appends) -> None:
        try:
            answer = appends.answer()
        except EddylineError as error:
            raise at_ordinal(error, self._pending[0].first) from None
        piece = self._pending.popleft()
        self._settle(piece.position)
        if answer.is_known:
            self.written.known += piece.batch.count
            return
        self.written.appended += piece.batch.count
        self.written.first_seq = self.written.first_seq or answer.first_seq
        self.written.last_seq = max(self.written.last_seq, answer.last_seq)

    def _settle(self, position: RowPosition) -> None:
        """Rows up to here are stored: it went on."""
        self._previous = position.encoded()
        self._settled = position.ordinal
        self._give_up_s = None
        self._backoff.reset()

    def _resume(self, place: StoredPosition) -> None:
        """Go on where the writer stands.

        Raises:
            StaleFence, InvalidArgument: as `write`.
        """
        if 0 < self._fence < place.fence:
            raise StaleFence(f"the writer has fence {place.fence}, this attempt has {self._fence}", fence=place.fence)
        self._fence = max(self._fence, place.fence, 1)
        self._previous = place.position
        stored = decoded(place.position, writer=self._target.writer) if place.position else None
        if stored is not None and stored.epoch > self._target.run:
            raise _refused(
                f"micro-batch {stored.epoch} was written, and this is {self._target.run}: the checkpoint is older than the "
                "topic. Continue with the newer checkpoint, or start with another one and another writeId"
            )
        here = stored if stored is not None and stored.epoch == self._target.run else None
        if self._settled is not None and (here is None or here.ordinal < self._settled):
            raise _refused(
                f"the store lost rows that it had acknowledged: its position is {here.ordinal if here else 0}, was "
                f"{self._settled}. The next attempt writes them again"
            )
        unsettled = tuple(self._pending)
        self._pending.clear()
        if not self._rows.resume(here, unsettled):
            self._take_over(place)
        elif here is not None and here.ordinal != self._settled:
            self._settle(here)

    def _take_over(self, place: StoredPosition) -> None:
        """The rows up to the place are others: write all of ours, if none of them was written yet."""
        if self._settled is not None or not self._rows.rewind():
            raise _refused(
                "its rows, or their order, differ from those that an earlier attempt wrote under this name: the source does "
                "not return the same rows again. Sort them, store them in a table first, or set another writeId; "
                "option onDifferentRows=append writes all of them again"
            )
        self._fence = max(self._fence, place.fence + 1)
        self.written.took_over = True

    def _before_retry(self, error: EddylineError) -> None:
        """Wait for the next try.

        Raises:
            EddylineError: there is none.
        """
        now_s = self._clock.monotonic_s()
        if self._give_up_s is None:
            self._give_up_s = now_s + self._target.patience_s
        delay_s = self._backoff.next_delay_s(minimum_s=retry_after_s(error))
        may_help = error.code in STREAM_RETRYABLE or isinstance(error, StalePosition)
        if not may_help or error is self._row_error or now_s + delay_s > self._give_up_s:
            raise self._told(error) from None
        threading.Event().wait(delay_s)

    def _told(self, error: EddylineError) -> EddylineError:
        why = "another attempt with other rows took over: " if isinstance(error, StaleFence) else ""
        metadata: dict[str, str | int] = dict(error.metadata)
        message = f"topic {self._target.topic}, writer {self._target.writer}: {why}{error.message}"
        return type(error)(message, **metadata)


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(why, field="rows")
