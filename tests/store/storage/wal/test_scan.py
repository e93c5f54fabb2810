"""Cut or corruption: damage to a small WAL file gives the valid frames up to a cut, or an error with the offset."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.store.storage.wal.frame import FrameType, seal
from eddyline.store.storage.wal.scan import Location, scan
from tests.support.storage.changed_frames import reseal
from tests.support.storage.wal_frames import append_of, every_body

SHARD, NUMBER, PATH = 2, 5, Path("/wal/02/0000000000000005.wal")


class SmallFile(NamedTuple):
    """A file's bytes without its zeros, its frames' offsets, and each frame's synced offset."""

    data: bytes
    offsets: list[int]
    synced_to: list[int]


def small(synced_after: int = 2) -> SmallFile:
    """Five frames; those from number `synced_after` on record that all before them is synced."""
    bodies = [every_body()[0], append_of(b"a" * 9), every_body()[3], append_of(b"b" * 30, seq=2), every_body()[1]]
    data, offsets, synced_to, synced = b"", list[int](), list[int](), 0
    for position, body in enumerate(bodies):
        synced = len(data) if position == synced_after else synced
        offsets.append(len(data))
        synced_to.append(synced)
        data += seal(body, shard=SHARD, file_number=NUMBER, offset=len(data), synced_to=synced)
    return SmallFile(data, offsets, synced_to)


def scanned(data: bytes, *, complete: bool = False) -> tuple[list[int], int]:
    """Offsets of the scanned frames, and their end."""
    locations = list[Location]()
    end = scan(
        data, PATH, shard=SHARD, file_number=NUMBER, complete=complete, on_frame=lambda _, at: locations.append(at)
    )
    assert end == sum(location.length for location in locations)
    return [location.offset for location in locations], end


def test_frames_are_scanned_in_order_up_to_the_zeros() -> None:
    file = small()
    assert scanned(file.data + bytes(4096)) == (file.offsets, len(file.data))
    assert scanned(file.data) == (file.offsets, len(file.data))
    assert scanned(file.data, complete=True) == (file.offsets, len(file.data))
    assert scanned(bytes(4096)) == ([], 0)
    assert scanned(b"") == ([], 0)


@pytest.mark.parametrize("synced_after", [0, 2, 4, 5])
def test_every_flipped_bit_is_cut_above_the_synced_point_and_corruption_below(synced_after: int) -> None:
    file = small(synced_after)
    for byte in range(len(file.data)):
        hit = max(position for position, offset in enumerate(file.offsets) if offset <= byte)
        at = file.offsets[hit]
        synced_to = max(offset for position, offset in enumerate(file.synced_to) if position != hit)
        for bit in range(8):
            damaged = bytearray(file.data + bytes(64))
            damaged[byte] ^= 1 << bit
            if at >= synced_to:
                assert scanned(bytes(damaged)) == (file.offsets[:hit], at)
                continue
            with pytest.raises(DataCorrupt) as caught:
                scanned(bytes(damaged))
            assert caught.value.metadata == {"file": str(PATH), "offset": str(at)}


def test_every_flipped_byte_of_a_file_with_a_successor_is_corruption() -> None:
    file = small()
    for byte in range(len(file.data)):
        damaged = bytearray(file.data)
        damaged[byte] ^= 0xFF
        with pytest.raises(DataCorrupt) as caught:
            scanned(bytes(damaged), complete=True)
        assert int(caught.value.metadata["offset"]) == max(offset for offset in file.offsets if offset <= byte)


@pytest.mark.parametrize("fill", [b"", bytes(4096), b"\xff" * 512])
def test_torn_tail_is_cut_after_the_last_complete_frame(fill: bytes) -> None:
    file = small()
    ends = [*file.offsets[1:], len(file.data)]
    for length in range(len(file.data)):
        whole = [offset for offset, end in zip(file.offsets, ends, strict=True) if end <= length]
        assert scanned(file.data[:length] + fill) == (whole, ends[len(whole) - 1] if whole else 0)


def test_garbage_after_the_end_is_cut() -> None:
    file = small()
    for byte in range(64):
        tail = bytearray(64)
        tail[byte] = 1
        assert scanned(file.data + bytes(tail)) == (file.offsets, len(file.data))


def test_lost_unsynced_frame_also_cuts_the_valid_frames_after_it() -> None:
    file = small(synced_after=2)
    start, end = file.offsets[2], file.offsets[3]
    assert scanned(file.data[:start] + bytes(end - start) + file.data[end:]) == (file.offsets[:2], start)


def test_zeros_below_the_synced_offset_of_a_later_frame_are_corruption() -> None:
    file = small(synced_after=2)
    for hit in (0, 1):
        start, end = file.offsets[hit], file.offsets[hit + 1]
        with pytest.raises(DataCorrupt) as caught:
            scanned(file.data[:start] + bytes(end - start) + file.data[end:] + bytes(512))
        assert caught.value.metadata["offset"] == str(start)


def test_file_with_a_successor_must_end_with_its_last_frame() -> None:
    file = small()
    for tail in (bytes(8), bytes(4096), b"\xff"):
        with pytest.raises(DataCorrupt) as caught:
            scanned(file.data + tail, complete=True)
        assert caught.value.metadata["offset"] == str(len(file.data))


def test_frame_of_a_later_version_is_never_cut() -> None:
    file = small(synced_after=5)
    place = {"shard": SHARD, "file_number": NUMBER, "offset": file.offsets[4]}
    later = reseal(file.data[file.offsets[4] :], at=8, changed=bytes([FrameType.WRITER_CHANGE + 1]), **place)
    with pytest.raises(DataCorrupt, match="later version"):
        scanned(file.data[: file.offsets[4]] + later + bytes(64))


def test_frame_of_another_file_is_invalid() -> None:
    file = small(synced_after=5)
    other = seal(append_of(b"x"), shard=SHARD, file_number=NUMBER - 1, offset=len(file.data), synced_to=8)
    assert scanned(file.data + other) == (file.offsets, len(file.data))


def test_data_that_looks_like_a_frame_does_not_count_as_one() -> None:
    inner = seal(append_of(b"x"), shard=SHARD, file_number=NUMBER, offset=1, synced_to=1)
    outer = seal(append_of(inner * 3), shard=SHARD, file_number=NUMBER, offset=0, synced_to=0)
    damaged = bytearray(outer)
    damaged[50] ^= 1
    assert scanned(bytes(damaged) + bytes(64)) == ([], 0)
