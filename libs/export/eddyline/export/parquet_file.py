"""One Parquet file of records, written whole: the same rows give the same bytes.

zstd, row groups of `row_groups.py`, ordered by `seq` if the schema says so. `epoch` comes before the columns of a read
(`split/columns.py`), and `topic`, which the directory says, is not among them: `epoch` and `seq` name a record for ever.
Threading: one task.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from eddyline.export.row_groups import row_groups
from eddyline.export.split.columns import ROW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from eddyline.export.out_dir import OutDir

ROWS_SCHEMA: Final = pa.schema([field for field in ROW_SCHEMA if field.name != "topic"])
FILE_SCHEMA: Final = pa.schema([pa.field("epoch", pa.int64()), *ROWS_SCHEMA])
_IN_DICTIONARIES: Final = ["epoch", "op", "key", "key_text", "tag", "node"]
"""Values that come again. Of others a dictionary is built and thrown away."""
_DELTAS: Final = {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"}
_COMPRESSION_LEVEL: Final = 3


class FileSummary(NamedTuple):
    """Content of a file: row count, first and last `seq` in row order, and the xxh3_64 of its bytes in hex."""

    rows: int
    bytes: int
    xxh3: str
    first_seq: int
    last_seq: int


def with_epoch(rows: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
    """Rows of `ROWS_SCHEMA` as a file has them."""
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(epoch, pa.int64()), rows.num_rows), *rows.columns], schema=FILE_SCHEMA
    )


def write_file(out: OutDir, name: str, batches: Iterable[pa.RecordBatch], *, is_sorted: bool) -> FileSummary:
    """Write a file of rows of `FILE_SCHEMA`; it has its name when it is whole."""
    rows = first = last = 0
    with ExitStack() as opened:
        summed = _Summed(opened.enter_context(out.writing(name)))
        writer = opened.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(summed, mode="w"),
                FILE_SCHEMA,
                compression="zstd",
                compression_level=_COMPRESSION_LEVEL,
                use_dictionary=_IN_DICTIONARIES,
                column_encoding=_DELTAS,
                sorting_columns=[pq.SortingColumn(FILE_SCHEMA.get_field_index("seq"))] if is_sorted else None,
            )
        )
        for group in row_groups(batches):
            writer.write_batch(group, row_group_size=group.num_rows)
            first = first or group.column("seq")[0].as_py()
            last = group.column("seq")[group.num_rows - 1].as_py()
            rows += group.num_rows
    return FileSummary(rows, summed.count, summed.hash.hexdigest(), first, last)


def read_back(out: OutDir, name: str) -> FileSummary:
    """Content of a finished file, by reading all of it."""
    content = out.read(name)
    seqs = pq.ParquetFile(pa.BufferReader(content)).read(["seq"]).column("seq")
    first, last = (seqs[0].as_py(), seqs[len(seqs) - 1].as_py()) if len(seqs) else (0, 0)
    return FileSummary(len(seqs), len(content), xxhash.xxh3_64_hexdigest(content), first, last)


class _Summed:
    """Counts and sums the bytes that go into a file."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = xxhash.xxh3_64()
        self.count = 0

    def write(self, content: bytes) -> int:
        self.hash.update(content)
        self.count += len(content)
        self._file.write(content)
        return len(content)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file is closed by who opened it."""
