"""Segment reads: every byte is checked before it is used; an error names the file and the offset.

Reads use the file system's interface (`pread`): a disk error is an exception here, where a memory-mapped file would end
the process. This module caches nothing; its callers cache footers and hot batches.

I1: a footer, message or batch is as it was written, or `DataCorrupt` is raised. `read_footer` checks the file's head, tail
and length, `read_message` one message; together they cover every byte. A disk error and a missing file are `DataCorrupt`
too: every file that the catalog names must be readable.
Rates (`make bench ROWS=P10`, three times on two cores shared with other work; the segment of `writer.py`, in the page
cache): in LZ4 9 to 13 M records/s, in ZSTD 4 to 8 M, uncompressed 11 to 19 M.
pyarrow is imported at the first batch (`eddyline.core.records.arrow` says why); footers and messages need none of it.
Threading: any thread; blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.records.arrow import arrow_schema, from_arrow
from eddyline.core.runtime.fs import is_shortage
from eddyline.store.storage.segment.footer_codec import (
    END_OF_MESSAGES,
    FOOTER_BYTES_MAX,
    FOOTER_BYTES_MIN,
    MAGIC,
    TRAILER,
    BadFooter,
    decode_footer,
)
from eddyline.store.storage.wal.scan import short_of

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.errors import Throttled
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import File, Fs
    from eddyline.store.storage.segment.footer import BatchEntry, Footer


def read_footer(fs: Fs, path: Path) -> Footer:
    """Read and check a segment's footer.

    Raises:
        DataCorrupt: its head, tail or length is wrong, or it cannot be read. NewerFormat: a later version wrote it.
    """
    file = open_segment(fs, path)
    try:
        return _read_footer(file, path)
    finally:
        file.close()


def open_segment(fs: Fs, path: Path) -> File:
    """Open a segment's file, which the caller must close.

    Raises:
        DataCorrupt: it cannot be opened. Throttled: the process is short of descriptors.
    """
    try:
        return fs.open(path)
    except OSError as error:
        raise unreadable(path, 0, error) from error


def read_message(file: File, path: Path, entry: BatchEntry) -> bytes:
    """Read one record batch as the Arrow IPC message that was written.

    Raises:
        DataCorrupt: the checksum fails, or the bytes cannot be read.
    """
    message = _pread(file, path, entry.length, entry.offset)
    if xxh3_64_intdigest(message) != entry.checksum:
        raise _corrupt(path, entry.offset, "a record batch fails its checksum")
    return message


def read_batch(file: File, path: Path, entry: BatchEntry) -> Batch:
    """Read one record batch, canonical, over the bytes read.

    Raises:
        DataCorrupt: as `read_message`, or Arrow finds another batch in it.
    """
    return decode_message(read_message(file, path, entry), path, entry)


def decode_message(message: bytes, path: Path, entry: BatchEntry) -> Batch:
    """Decode a verified message to a canonical batch over the message's bytes.

    Raises:
        DataCorrupt: Arrow finds another batch in it.
    """
    import pyarrow as pa
    from pyarrow import ipc

    try:
        batch = from_arrow(ipc.read_record_batch(pa.py_buffer(message), arrow_schema()))
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(path, entry.offset, f"Arrow cannot read a verified record batch: {error}") from error
    if batch.count != entry.rows:
        raise _corrupt(path, entry.offset, f"a record batch of {batch.count} rows, by its entry {entry.rows}")
    return batch


def _read_footer(file: File, path: Path) -> Footer:
    try:
        file_bytes = file.size()
    except OSError as error:
        raise unreadable(path, 0, error) from error
    least = len(MAGIC) + 2 + len(END_OF_MESSAGES) + FOOTER_BYTES_MIN + TRAILER.size
    if file_bytes < least:
        raise _corrupt(path, file_bytes, f"it has {file_bytes} bytes, a segment has at least {least}")
    trailer_at = file_bytes - TRAILER.size
    footer_bytes, magic = TRAILER.unpack(_pread(file, path, TRAILER.size, trailer_at))
    if magic != MAGIC:
        raise _corrupt(path, trailer_at, "it does not end with the Arrow magic")
    behind_at = trailer_at - footer_bytes - len(END_OF_MESSAGES)
    if not FOOTER_BYTES_MIN <= footer_bytes <= FOOTER_BYTES_MAX or behind_at < len(MAGIC) + 2:
        raise _corrupt(path, trailer_at, f"a footer of {footer_bytes} bytes does not fit")
    try:
        footer = decode_footer(_pread(file, path, trailer_at - behind_at, behind_at), file_bytes=file_bytes)
    except BadFooter as bad:
        if bad.newer:
            raise NewerFormat(f"{path}: {bad}", file=str(path), offset=behind_at) from None
        raise _corrupt(path, behind_at, str(bad)) from None
    first, last = footer.batches[0], footer.batches[-1]
    if last.offset + last.length != behind_at:
        raise _corrupt(path, behind_at, "its record batches do not end at its footer")
    if xxh3_64_intdigest(_pread(file, path, first.offset, 0)) != footer.header_checksum:
        raise _corrupt(path, 0, "its head fails its checksum")
    return footer


def _pread(file: File, path: Path, size: int, offset: int) -> bytes:
    try:
        data = file.pread(size, offset)
    except OSError as error:
        raise unreadable(path, offset, error) from error
    if len(data) != size:
        raise _corrupt(path, offset + len(data), "it is cut short")
    return data


def unreadable(path: Path, offset: int, error: OSError) -> DataCorrupt | Throttled:
    """Return the error for a failed open or read: the disk's, or a shortage of descriptors in the process."""
    if is_shortage(error):
        return short_of(error)
    return _corrupt(path, offset, f"it cannot be read: {error.strerror}")


def _corrupt(path: Path, offset: int, why: str) -> DataCorrupt:
    return DataCorrupt(f"{path} is corrupt at offset {offset}: {why}", file=str(path), offset=offset)
