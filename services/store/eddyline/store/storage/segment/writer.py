"""Segment writes: each record batch is serialised once, written, and read back before `write_segment` returns.

I1: when `write_segment` returns, the file's bytes and its name are durable, and were read back and verified.
I2: memory is one record batch, its input batches, and 8 bytes for each distinct key: a message is written as soon as it is
made.
I3: the same batches give the same bytes. A failure leaves no file, unless removing it fails too.
Rates (`make bench ROWS=P10`, three times on two cores shared with other work; a segment of 262 144 records of 100 bytes of
JSON, each with a key of its own and a tag, durable and read back): from batches of 1 000 in LZ4 0.9 to 1.9 M records/s, in
ZSTD 0.9 to 2.0 M, uncompressed 1.0 to 1.6 M; from single appends, which must be joined, 0.3 to 0.5 M in LZ4. Uncompressed
it has 46.6 MB, in LZ4 12.9, in ZSTD 5.6. LZ4 is the default: it reads 1.5 to 2.2 times as fast as ZSTD (`reader.py`).
pyarrow is imported at the first segment (`eddyline.core.records.arrow` says why).
Threading: any thread; blocking. pyarrow, numpy and the system calls release the GIL for nearly all of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.arrow import arrow_schema, to_arrow
from eddyline.core.records.record import Op
from eddyline.core.runtime.fs import write_all
from eddyline.store.storage.segment.batching import record_batches
from eddyline.store.storage.segment.bloom_filter import FilterBuilder
from eddyline.store.storage.segment.footer import BatchEntry, Compression, Footer, SegmentSource
from eddyline.store.storage.segment.footer_codec import (
    END_OF_MESSAGES,
    MESSAGE_PREFIX,
    encode_footer,
    file_header,
    summarize,
)
from eddyline.store.storage.segment.reader import read_footer, read_message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyarrow import ipc

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import File, Fs

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 768 << 10
"""Bytes of cells in a record batch; 8 MiB in earlier versions. One record costs a read and a send of its whole batch,
and the send blocks the event loop for the time of the copy. With its message below 1 MiB a batch is allocated from the
heap; larger blocks are mapped and unmapped each time (`limits/process_memory.py`)."""


def write_segment(
    fs: Fs,
    path: Path,
    source: SegmentSource,
    batches: Iterable[Batch],
    *,
    compression: Compression = "lz4",
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Footer | None:
    """Write `batches`, canonical and with seqs, to the temporary file `path`, durably; None, and no file, if there is no
    record.

    In a segment seqs ascend; in a base keys do. An existing file at `path` is overwritten.

    Raises:
        DataCorrupt: the bytes read back are not those written.
        OSError: of the file system.
    """
    cut = record_batches(batches, rows_max=rows_max, bytes_max=bytes_max)
    first = next(cut, None)
    if first is None:
        return None
    done = False
    try:
        file = fs.open(path, create=True)
        try:
            writing = _Writing(file, source, compression)
            writing.add(first)
            for batch in cut:
                writing.add(batch)
            footer = writing.finish()
            file.fsync()
            _read_back(fs, file, path, footer)
        finally:
            file.close()
        fs.fsync_dir(path.parent)
        done = True
    finally:
        if not done:
            with suppress(OSError):
                fs.unlink(path)
    return footer


class _Writing:
    """A segment file in progress, with the metadata of its footer so far."""

    def __init__(self, file: File, source: SegmentSource, compression: Compression) -> None:
        import pyarrow.compute
        from pyarrow import ipc

        self._min_max = pyarrow.compute.min_max
        self._file = file
        self._source = source
        # One thread: the pool's others would compete with the event loop for the cores.
        self._options = ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression, use_threads=False
        )
        self._entries: list[BatchEntry] = []
        self._metadata_lengths: list[int] = []
        self._keys, self._tags = FilterBuilder(), FilterBuilder()
        self._min_key: bytes | None = None
        self._max_key: bytes | None = None
        file.truncate(0)
        self._end = len(file_header())
        write_all(file, [file_header()], 0)

    def add(self, batch: Batch) -> None:
        """Write one record batch."""
        table = to_arrow(batch)
        with _message(table, self._options) as message:
            entry = entry_of(batch, offset=self._end, message=message, is_base=self._source.is_base)
            assert self._source.is_base or not self._entries or entry.first_seq > self._entries[-1].last_seq
            write_all(self._file, [message], self._end)
            self._metadata_lengths.append(MESSAGE_PREFIX.size + MESSAGE_PREFIX.unpack_from(message)[1])
        self._entries.append(entry)
        self._end += entry.length
        self._keys.add(batch.key, batch.count)
        self._tags.add(batch.tag, batch.count)
        if batch.key is not None:
            bounds = self._min_max(table.column("key")).as_py()
            self._min_key = bounds["min"] if self._min_key is None else min(self._min_key, bounds["min"])
            self._max_key = bounds["max"] if self._max_key is None else max(self._max_key, bounds["max"])

    def finish(self) -> Footer:
        """Write the footer and return it."""
        header_checksum = xxh3_64_intdigest(file_header())
        footer = Footer(
            source=self._source,
            summary=summarize(self._source, self._entries, file_bytes=0),
            batches=tuple(self._entries),
            min_key=self._min_key,
            max_key=self._max_key,
            keys=self._keys.finish(),
            tags=self._tags.finish(),
            header_checksum=header_checksum,
        )
        encoded = encode_footer(footer, self._metadata_lengths)
        write_all(self._file, [encoded], self._end)
        summary = footer.summary._replace(file_bytes=self._end + len(encoded))
        return replace(footer, summary=summary)


def _message(table: pa.RecordBatch, options: ipc.IpcWriteOptions) -> memoryview:
    """Serialise the record batch as an IPC message. Only a stream's writer takes options, so the rest of the stream is
    cut off."""
    import pyarrow as pa
    from pyarrow import ipc

    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, arrow_schema(), options=options) as writer:
        writer.write_batch(table)
    stream = memoryview(sink.getvalue()).cast("B")
    schema_bytes = len(file_header()) - 8
    assert bytes(stream[:schema_bytes]) == file_header()[8:]
    assert bytes(stream[-len(END_OF_MESSAGES) :]) == END_OF_MESSAGES
    return stream[schema_bytes : -len(END_OF_MESSAGES)]


def entry_of(batch: Batch, *, offset: int, message: memoryview, is_base: bool) -> BatchEntry:
    """Return the footer's entry for a record batch stored at `offset` as `message`."""
    seqs = batch.seq_array()
    if is_base:
        first_seq, last_seq = int(seqs.min()), int(seqs.max())
    else:
        assert batch.seqs is None or (seqs[1:] > seqs[:-1]).all()
        first_seq, last_seq = batch.first_seq, batch.last_seq
    assert first_seq > 0
    first_ts_ms = last_ts_ms = batch.ts_ms
    if batch.ts_ms_each is not None:
        times = np.frombuffer(batch.ts_ms_each, dtype="<i8")
        first_ts_ms, last_ts_ms = int(times.min()), int(times.max())
    source_ts_ns_max = 0
    if batch.source_ts_ns is not None:
        source_times = np.frombuffer(batch.source_ts_ns, dtype="<i8")
        source_ts_ns_max = int(source_times[source_times != 0].max())
    return BatchEntry(
        first_seq=first_seq,
        last_seq=last_seq,
        first_ts_ms=first_ts_ms,
        last_ts_ms=last_ts_ms,
        rows=batch.count,
        gap_count=0 if batch.ops is None else bytes(batch.ops).count(Op.GAP),
        record_bytes=batch.record_bytes,
        source_ts_ns_max=source_ts_ns_max,
        offset=offset,
        length=len(message),
        checksum=xxh3_64_intdigest(message),
    )


def _read_back(fs: Fs, file: File, path: Path, footer: Footer) -> None:
    if read_footer(fs, path) != footer:
        raise DataCorrupt(
            f"{path} has another footer than was written", file=str(path), offset=footer.batches[-1].offset
        )
    for entry in footer.batches:
        read_message(file, path, entry)
