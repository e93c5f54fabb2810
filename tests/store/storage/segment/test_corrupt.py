"""A damaged segment raises an error with file and offset; it is never served, or mistaken for another."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from xxhash import xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.storage.segment.footer_codec import BadFooter, decode_footer
from eddyline.store.storage.segment.reader import read_batch, read_footer
from eddyline.store.storage.segment.writer import write_segment
from tests.support.models.batches import gap_record
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fs import Crashed, SimFs
from tests.support.storage.segments import PATH, SOURCE, all_batches, bytes_at, disk_with, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import Buffer, File

ROWS = [
    Record(4, 1_000, 7, Op.PUT, b"k", b"value", "é", None, (MetaEntry("a", b"b"),), b"\1"),
    gap_record(6, 5, 6)._replace(ts_ms=1_000),
    Record(7, 1_001, 0, Op.DELETE, b"", None, None, "n"),
]


def small(*, compressed: bool = False) -> bytes:
    """A segment of two record batches."""
    fs = SimFs()
    written(fs, [Batch.from_rows(ROWS)], rows_max=2, compression="zstd" if compressed else "none")
    return bytes_at(fs)


def check_refused(data: bytes) -> None:
    with pytest.raises(DataCorrupt) as caught:
        all_batches(disk_with(data))
    assert caught.value.metadata["file"] == str(PATH)
    assert 0 <= int(caught.value.metadata["offset"]) <= len(data)
    assert str(PATH) in caught.value.message


@pytest.mark.parametrize("compressed", [False, True])
def test_every_flipped_bit_is_detected(compressed: bool) -> None:
    data = small(compressed=compressed)
    for at in range(len(data)):
        # Every bit of the last bytes, which no checksum covers; one bit of each other byte.
        for bit in range(8) if at >= len(data) - 40 else (at % 8,):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            check_refused(bytes(flipped))


def test_every_truncation_is_detected() -> None:
    data = small()
    for size in range(len(data)):
        check_refused(data[:size])


@pytest.mark.parametrize("more", [b"\0", bytes(8), b"ARROW1"])
def test_bytes_after_the_end_are_detected(more: bytes) -> None:
    check_refused(small() + more)


def test_tail_of_another_segment_is_detected() -> None:
    fs = SimFs()
    written(fs, [Batch.from_rows(ROWS)], rows_max=2, source=SOURCE._replace(topic_id=11))
    other, data = bytes_at(fs), small()
    footer = read_footer(disk_with(data), PATH)
    end = footer.batches[-1].offset + footer.batches[-1].length
    check_refused(data[: end - 8] + other[end:])


def test_error_about_a_damaged_message_has_its_offset() -> None:
    data = bytearray(small())
    entry = read_footer(disk_with(bytes(data)), PATH).batches[1]
    data[entry.offset + entry.length - 1] ^= 1
    fs = disk_with(bytes(data))
    footer = read_footer(fs, PATH)
    file = fs.open(PATH)
    assert read_batch(file, PATH, footer.batches[0]).to_rows() == ROWS[:2]
    with pytest.raises(DataCorrupt) as caught:
        read_batch(file, PATH, entry)
    assert caught.value.metadata == {"file": str(PATH), "offset": str(entry.offset)}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (b'"format":2', "has format 2, this version reads 1"),
        (b'"fOrmat":1', "lacks format"),
        (b'"format":x', "is malformed"),
    ],
)
def test_unreadable_footer_with_a_valid_checksum_gives_the_reason(changed: bytes, why: str) -> None:
    fs = SimFs()
    footer = written(fs, [Batch.from_rows(ROWS)])
    behind = bytes_at(fs)[footer.batches[-1].offset + footer.batches[-1].length : -10]
    with pytest.raises(BadFooter, match=why):
        decode_footer(resealed(behind, changed), file_bytes=0)


def test_failing_source_leaves_no_file() -> None:
    def batches() -> Iterator[Batch]:
        for row in ROWS:
            yield Batch.from_rows([row])
        raise DataCorrupt("of another file")

    fs = SimFs()
    with pytest.raises(DataCorrupt, match="of another file"):
        written(fs, batches(), rows_max=1)
    assert not fs.exists(PATH)


def test_missing_file_is_corruption() -> None:
    with pytest.raises(DataCorrupt, match="cannot be read: No such file"):
        read_footer(SimFs(), PATH)


@pytest.mark.parametrize("operation", ["open", "size", "pread"])
def test_error_of_the_disk_is_corruption(operation: str) -> None:
    fs = FaultyFs(disk_with(small()), [Fault(operation, 1, errno.EIO)])
    with pytest.raises(DataCorrupt, match="cannot be read: Input/output error"):
        read_footer(fs, PATH)


def test_error_of_the_disk_under_a_message_is_corruption() -> None:
    fs = FaultyFs(disk_with(small()))
    entry = read_footer(fs, PATH).batches[1]
    fs.next_fault("pread", error=errno.EIO)
    with pytest.raises(DataCorrupt) as caught:
        read_batch(fs.open(PATH), PATH, entry)
    assert caught.value.metadata["offset"] == str(entry.offset)


@pytest.mark.parametrize("operation", ["pwritev", "truncate", "fsync", "fsync_dir"])
def test_failed_write_leaves_no_file(operation: str) -> None:
    fs = SimFs()
    with pytest.raises(OSError, match="No space left"):
        write_segment(FaultyFs(fs, [Fault(operation, 1, errno.ENOSPC)]), PATH, SOURCE, [Batch.from_rows(ROWS)])
    assert not fs.exists(PATH)


def test_short_writes_give_the_same_file() -> None:
    fs = SimFs()
    faults = [Fault("pwritev", call, short=call) for call in range(1, 8)]
    written(FaultyFs(fs, faults), [Batch.from_rows(ROWS)], rows_max=2)
    assert bytes_at(fs) == small()


def test_disk_that_stores_other_bytes_is_detected_by_the_read_back() -> None:
    for at in range(0, len(small()), 97):
        fs = _LyingFs(at)
        with pytest.raises(DataCorrupt):
            written(fs, [Batch.from_rows(ROWS)], rows_max=2)
        assert not fs.exists(PATH)


def test_completed_segment_survives_power_loss() -> None:
    for seed in range(20):
        fs = SimFs(seed)
        footer = written(fs, [Batch.from_rows(ROWS)], rows_max=2)
        after = fs.reboot("power")
        assert read_footer(after, PATH) == footer
        assert [row for batch in all_batches(after) for row in batch.to_rows()] == ROWS


def test_crash_at_any_call_leaves_a_complete_segment_or_a_corrupt_one() -> None:
    counted = SimFs()
    written(counted, [Batch.from_rows(ROWS)], rows_max=2)
    for call in range(1, counted.calls + 1):
        fs = SimFs(call, crash_at=call)
        with pytest.raises(Crashed):
            written(fs, [Batch.from_rows(ROWS)], rows_max=2)
        after = fs.reboot("power")
        try:
            rows = [row for batch in all_batches(after) for row in batch.to_rows()]
        except DataCorrupt:
            continue
        assert rows == ROWS


class _LyingFs(FaultyFs):
    """A disk that stores one bit of the byte at `at` wrongly."""

    def __init__(self, at: int) -> None:
        super().__init__(SimFs())
        self._at = at

    def open(self, path: Path, *, create: bool = False) -> File:
        return _LyingFile(super().open(path, create=create), self._at)


class _LyingFile:
    def __init__(self, inner: File, at: int) -> None:
        self._inner = inner
        self._at = at
        self.truncate, self.fdatasync, self.fsync = inner.truncate, inner.fdatasync, inner.fsync
        self.pwritev_durable = inner.pwritev_durable
        self.pread, self.size, self.close = inner.pread, inner.size, inner.close

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = bytearray(b"".join(buffers))
        if offset <= self._at < offset + len(data):
            data[self._at - offset] ^= 1
        return self._inner.pwritev([data], offset)


def resealed(behind: bytes, changed: bytes) -> bytes:
    """A footer with another `format` and a valid checksum."""
    body = behind[:-20].replace(b'"format":1', changed)
    return body + f"{xxh3_64_intdigest(body):016x}".encode() + bytes(4)
