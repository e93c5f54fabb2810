"""The rows of one file, Parquet or JSON lines, from any place on: what a load writes, and where it goes on.

A place is the number of rows before it (Parquet) or the byte where the next line begins; the position that is stored with
the rows has it, with what identifies the file. So a load goes on without reading what is loaded: whole row groups and all
bytes before the place are passed over.
I1: every row of the file is either in a piece or told to `bad`. I2: a file that was changed since a part of it was loaded is
refused: its size, or its first or last 64 KiB, differ. A change in the middle alone goes unnoticed.
Bounds: a row group's decoded columns for a piece's rows, or `LINE_BYTES_MAX`. Threads: one.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyarrow import fs

from eddyline.core.errors import EddylineError, InvalidArgument, MalformedColumns
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MESSAGE_BYTES_MAX, Op
from eddyline.core.records.validation import check_limits
from eddyline.spark.jobs.files.json_lines import NotARecordError, record_of
from eddyline.spark.options.write import BATCH_BYTES, BATCH_RECORDS
from eddyline.spark.writer.partition import RowChunk
from eddyline.spark.writer.position import RowPosition
from eddyline.spark.writer.rows import GIVEN_BY_THE_STORE, check_columns, rows_to_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eddyline.core.records.record import Record

    Bad = Callable[[int, EddylineError], None]
    """Is told of each bad row by its place; raises where none may be passed over."""

LINE_BYTES_MAX: Final = 8 << 20
"""The largest record in base64 with all of JSON's escapes; a longer line is no record."""
SAMPLE_BYTES: Final = 64 << 10
PIECE_BYTES_MAX: Final = 4 * BATCH_BYTES
"""Rows of a Parquet file may be far larger than the average of their group. Half of a message at most."""

assert PIECE_BYTES_MAX <= MESSAGE_BYTES_MAX // 2


class RowRun(NamedTuple):
    """Rows between two places. `batch` has those that are good, perhaps none."""

    batch: Batch
    first: int
    end: int


class FileReader(Protocol):
    """One file's rows."""

    end: int
    """The place behind the last row."""

    def read_from(self, place: int, bad: Bad) -> Iterator[RowRun]:
        """Rows from a place on, run by run, without a hole."""


class FileRows:
    """A file as what a `PartitionWriter` takes. The caller must close it."""

    def __init__(self, file: pa.NativeFile, reader: FileReader, *, name: str, identity: bytes, on_bad: Bad) -> None:
        self._file = file
        self._reader = reader
        self._name = name
        self._identity = identity
        self._on_bad = on_bad
        self._runs = reader.read_from(0, self._tell)
        self._told_to = 0
        self._began = False
        self.skipped = 0
        """Bad rows that were passed over."""
        self.was_done = False
        """It had been loaded whole before."""

    def next_piece(self) -> RowChunk | None:
        self._began = True
        for run in self._runs:
            self._told_to = max(self._told_to, run.end)
            if run.batch.count:
                position = RowPosition(0, run.end, self._identity, is_final=run.end == self._reader.end)
                return RowChunk(run.batch, run.first, position)
        return None

    def resume(self, stored: RowPosition | None, unsettled: Sequence[RowChunk]) -> bool:
        place = stored.ordinal if stored is not None else 0
        if stored is not None and stored.digest != self._identity:
            raise InvalidArgument(
                f"file {self._name} was changed since a part of it was loaded: restore it, or load it again under another "
                "--load-id",
                field="file",
            )
        self.was_done = stored is not None and stored.is_final and not self._began
        self._runs = self._reader.read_from(place, self._tell)
        return True

    def rewind(self) -> bool:
        return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _tell(self, place: int, error: EddylineError) -> None:
        # Rows that are read again after a failure were told before.
        if place >= self._told_to:
            self._on_bad(place, error)
            self.skipped += 1


class ParquetReader:
    """A Parquet file. Columns that the store gives are passed over, so that what was exported can be loaded."""

    def __init__(self, file: pa.NativeFile, kind: Kind, topic: str) -> None:
        self._file = pq.ParquetFile(file)
        self._kind = kind
        names = [name for name in self._file.schema_arrow.names if name not in GIVEN_BY_THE_STORE]
        if "source_ts_ns" in names and "source_ts" in names:
            names.remove("source_ts")
        self._columns = names
        check_columns(pa.schema([self._file.schema_arrow.field(name) for name in names]), kind, topic)
        self.end: int = self._file.metadata.num_rows

    def read_from(self, place: int, bad: Bad) -> Iterator[RowRun]:
        at = 0
        for index in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(index)
            if at + group.num_rows <= place:
                at += group.num_rows
                continue
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            size = max(1, min(BATCH_RECORDS, BATCH_BYTES // row_bytes))
            for rows in self._file.iter_batches(size, row_groups=[index], columns=self._columns):
                first, at = at, at + rows.num_rows
                if at > place:
                    passed = max(0, place - first)
                    yield from self._runs(rows.slice(passed), first + passed, bad)

    def _runs(self, rows: pa.RecordBatch, first: int, bad: Bad) -> Iterator[RowRun]:
        """Rows as runs; where one is bad by halves, so that the good ones are still made many at a time."""
        try:
            batch = rows_to_batch(rows, self._kind, first)
        except EddylineError as error:
            if rows.num_rows == 1:
                bad(first, error)
                yield RowRun(Batch(0), first, first + 1)
                return
        else:
            if batch.nbytes <= PIECE_BYTES_MAX or batch.count == 1:
                yield RowRun(batch, first, first + rows.num_rows)
                return
        half = rows.num_rows // 2
        yield from self._runs(rows.slice(0, half), first, bad)
        yield from self._runs(rows.slice(half), first + half, bad)


class LineReader:
    """A file of JSON lines."""

    def __init__(self, file: pa.NativeFile, kind: Kind) -> None:
        self._file = io.BufferedReader(file, 1 << 20)
        self._kind = kind
        self.end: int = file.size()

    def read_from(self, place: int, bad: Bad) -> Iterator[RowRun]:
        self._file.seek(place)
        records: list[Record] = []
        places: list[int] = []
        first = at = place
        while True:
            line = self._file.readline(LINE_BYTES_MAX)
            # Not before a line that holds something: blank ones at the end are the last run's, which so is final.
            if (len(records) >= BATCH_RECORDS or at - first >= BATCH_BYTES) and line.strip():
                yield RowRun(Batch.concat(list(self._good(records, places, bad))), first, at)
                records, places, first = [], [], at
            start, at = at, at + len(line)
            if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                at += self._skip_line()
                bad(start, MalformedColumns(f"byte {start}: a line of more than {LINE_BYTES_MAX} bytes", field="line"))
            elif line.strip():
                try:
                    records.append(self._record(line))
                    places.append(start)
                except NotARecordError as error:
                    bad(start, MalformedColumns(f"byte {start}: {error}", field="line"))
            if not line:
                yield RowRun(Batch.concat(list(self._good(records, places, bad))), first, at)
                return

    def _skip_line(self) -> int:
        skipped = 0
        while chunk := self._file.readline(LINE_BYTES_MAX):
            skipped += len(chunk)
            if chunk.endswith(b"\n"):
                break
        return skipped

    def _record(self, line: bytes) -> Record:
        record = record_of(line, Op.PUT if self._kind is Kind.KV else Op.APPEND)
        if self._kind is Kind.LOG and record.op != Op.APPEND:
            raise NotARecordError(f"op {Op(record.op).name} is for topics of kind KV")
        if self._kind is Kind.KV and record.op == Op.APPEND:
            raise NotARecordError("op APPEND is for topics of kind LOG")
        if self._kind is Kind.KV and not record.key:
            raise NotARecordError("a record of a KV topic needs a key of at least 1 byte")
        return record

    def _good(self, records: list[Record], places: list[int], bad: Bad) -> Iterator[Batch]:
        if not records:
            return
        try:
            batch = Batch.from_rows(records)
            check_limits(batch)
            yield batch
        except EddylineError as error:
            if len(records) == 1:
                message = error.message.removeprefix("record 0: ")
                metadata: dict[str, str | int] = dict(error.metadata)
                bad(places[0], type(error)(f"byte {places[0]}: {message}", **metadata))
                return
            half = len(records) // 2
            yield from self._good(records[:half], places[:half], bad)
            yield from self._good(records[half:], places[half:], bad)


def open_rows(path: str, *, name: str, is_parquet: bool, kind: Kind, topic: str, on_bad: Bad) -> FileRows:
    """A file's rows, on any file system that pyarrow knows.

    Raises:
        EddylineError: InvalidArgument: its columns are not what is written. OSError, ArrowException: it cannot be read.
    """
    system, inner = file_system_of(path)
    file = system.open_input_file(inner)
    try:
        reader: FileReader = ParquetReader(file, kind, topic) if is_parquet else LineReader(file, kind)
        return FileRows(file, reader, name=name, identity=_identity(system, inner), on_bad=on_bad)
    except BaseException:
        file.close()
        raise


def file_system_of(path: str) -> tuple[fs.FileSystem, str]:
    """The file system and path of a path or URI."""
    return fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]  # pyarrow has no types


def _identity(system: fs.FileSystem, path: str) -> bytes:
    digest = xxhash.xxh3_128()
    with system.open_input_file(path) as file:
        size = file.size()
        digest.update(size.to_bytes(8, "little"))
        digest.update(file.read_at(min(size, SAMPLE_BYTES), 0))
        digest.update(file.read_at(min(size, SAMPLE_BYTES), max(0, size - SAMPLE_BYTES)))
    return digest.digest()
