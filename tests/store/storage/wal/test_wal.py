"""The WAL on a healthy disk and on a failing one: positions, rotation, reads, and the effect of failures."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Thread

import pytest

from eddyline.core.errors import DataCorrupt, Throttled
from eddyline.core.runtime.fs import RealFs, write_all
from eddyline.core.runtime.logging import PlainFormatter
from eddyline.store.storage.layout import wal_file, wal_spare
from eddyline.store.storage.wal.frame import FrameType, parse_frame
from eddyline.store.storage.wal.wal import FILLED_GROUP_BYTES_MAX, Location, WalEnd, WalFailed
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.storage.wal_frames import (
    DIRECTORY,
    FILE_BYTES,
    SHARD,
    append_of,
    every_body,
    payload_of,
    put,
    recover,
)

BIG = b"big" * FILE_BYTES


def raw(fs: SimFs, number: int) -> bytes:
    return fs.open(wal_file(DIRECTORY, number)).pread(1 << 20, 0)


def test_first_start_opens_a_zero_filled_file_number_one() -> None:
    fs = SimFs()
    recover(fs)
    assert fs.listdir(DIRECTORY) == ["0000000000000001.wal"]
    assert raw(fs, 1) == bytes(FILE_BYTES)


def test_frames_are_read_back_and_recovered_in_order_with_their_locations() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    locations = put(wal, every_body()[:5]) + put(wal, every_body()[5:], sync=False)
    read = [wal.read(location) for location in locations]
    handed_on = [frame for frame in read if frame.type is not FrameType.CHECKPOINT_MARK]
    again = recover(fs)
    assert again.locations == [place for place, frame in zip(locations, read, strict=True) if frame in handed_on]
    assert [frame.type for frame in again.frames] == [frame.type for frame in handed_on]
    assert [frame.control for frame in again.frames] == [frame.control for frame in handed_on]
    assert [frame.marks for frame in again.frames] == [frame.marks for frame in handed_on]
    assert [frame.first_seq for frame in read] == [body.first_seq for body in every_body()]


def test_frames_record_the_synced_offset_of_their_placement() -> None:
    wal = recover(SimFs()).wal
    (first,) = put(wal, [append_of(b"1")], sync=False)
    second, third = put(wal, [append_of(b"2"), append_of(b"3")])
    (fourth,) = put(wal, [append_of(b"4")])
    synced_to = [wal.read(location).synced_to for location in (first, second, third, fourth)]
    assert synced_to == [0, 0, 0, third.offset + third.length]


def test_unsynced_and_total_bytes_are_reported() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    size = append_of(b"1").length_bytes
    put(wal, [append_of(b"1")])
    put(wal, [append_of(b"2")], sync=False)
    assert (wal.unsynced_bytes, wal.bytes_total) == (size, 2 * size)
    wal.sync()
    assert (wal.unsynced_bytes, wal.bytes_total) == (0, 2 * size)
    assert recover(fs).wal.bytes_total == 2 * size


def test_sync_without_new_bytes_does_not_touch_the_disk() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    put(wal, [append_of(b"1")])
    calls = fs.calls
    wal.sync()
    assert fs.calls == calls


def test_every_start_cuts_the_newest_file_and_opens_the_next_number() -> None:
    fs = SimFs()
    (location,) = put(recover(fs).wal, [append_of(b"1")])
    recover(fs)
    assert len(raw(fs, 1)) == location.length
    recover(fs)
    assert len(raw(fs, 2)) == 0
    assert fs.listdir(DIRECTORY) == [f"000000000000000{number}.wal" for number in (1, 2, 3)]


def test_torn_tail_is_logged_with_its_file_and_offset(caplog: pytest.LogCaptureFixture) -> None:
    fs = SimFs()
    (location,) = put(recover(fs).wal, [append_of(b"1")])
    path = wal_file(DIRECTORY, 1)
    fs.open(path).pwritev([b"torn"], location.length)
    recover(fs)
    (warning,) = caplog.records
    line = PlainFormatter("store").format(warning)
    assert line.endswith(f"wal_tail_cut file={path} offset={location.length}")


def test_rotation_cuts_the_full_file_to_its_last_frame_and_syncs_it() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    bodies = [append_of(b"%03d" % number + bytes(900), seq=number) for number in range(1, 10)]
    locations = put(wal, bodies, sync=False)
    assert [location.file_number for location in locations] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert len(raw(fs, 1)) == 4 * locations[0].length
    assert len(raw(fs, 3)) == FILE_BYTES
    assert wal.unsynced_bytes == locations[-1].offset + locations[-1].length
    for seed in range(20):
        assert recover(fs.reboot("power", seed=seed)).locations[:8] == locations[:8]
    assert [payload_of(wal.read(location))[:3] for location in locations] == [b"%03d" % n for n in range(1, 10)]


def test_frame_may_fill_a_file_to_its_last_byte() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    rest = FILE_BYTES - append_of(b"").length_bytes
    locations = put(wal, [append_of(bytes(rest)), append_of(b"next")])
    assert locations[0] == Location(1, 0, FILE_BYTES)
    assert locations[1].file_number == 2
    assert recover(fs).locations == locations


@pytest.mark.parametrize("prepared", [False, True])
def test_frame_larger_than_a_file_gets_a_larger_file_of_its_own(prepared: bool) -> None:
    fs = SimFs()
    wal = recover(fs).wal
    if prepared:
        wal.prepare_spare()
    locations = put(wal, [append_of(b"small"), append_of(BIG), append_of(b"small")])
    assert [location.file_number for location in locations] == [1, 2, 3]
    assert len(raw(fs, 2)) == locations[1].offset + locations[1].length > FILE_BYTES
    assert len(raw(fs, 3)) == FILE_BYTES
    assert recover(fs).payloads == [b"small", BIG, b"small"]


def test_rotation_takes_the_prepared_spare() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    assert not wal.spare_ready
    wal.prepare_spare()
    assert wal.spare_ready
    calls = fs.calls
    wal.prepare_spare()
    assert fs.calls == calls
    assert fs.listdir(DIRECTORY) == ["0000000000000001.wal", "spare"]
    put(wal, [append_of(bytes(FILE_BYTES - 100)), append_of(b"1")])
    assert fs.listdir(DIRECTORY) == ["0000000000000001.wal", "0000000000000002.wal"]
    assert not wal.spare_ready


def test_spare_of_an_earlier_run_is_refilled() -> None:
    fs = SimFs()
    recover(fs)
    write_all(fs.open(wal_spare(DIRECTORY), create=True), [b"\xee" * 3 * FILE_BYTES], 0)
    recover(fs)
    assert raw(fs, 2) == bytes(FILE_BYTES)


def test_unknown_names_are_ignored() -> None:
    fs = SimFs()
    recover(fs)
    bad_names = ["0000000000000009.wal.tmp", "9.wal", "000000000000000G.wal", "notes"]
    for name in bad_names:
        fs.open(DIRECTORY / name, create=True)
    put(recover(fs).wal, [append_of(b"1")])
    assert recover(fs).payloads == [b"1"]
    assert set(bad_names) < set(fs.listdir(DIRECTORY))


@pytest.mark.parametrize("missing", [1, 2])
def test_missing_file_is_named_in_the_error(missing: int) -> None:
    fs = SimFs()
    for _ in range(3):
        recover(fs)
    fs.unlink(wal_file(DIRECTORY, missing))
    with pytest.raises(DataCorrupt) as caught:
        recover(fs)
    assert caught.value.metadata == {"file": str(wal_file(DIRECTORY, missing)), "offset": "0"}


def test_files_of_another_shard_are_corrupt() -> None:
    fs = SimFs()
    put(recover(fs).wal, [append_of(b"1")])
    recover(fs)
    with pytest.raises(DataCorrupt, match="wrong checksum"):
        recover(fs, shard=1)


def test_read_of_a_damaged_frame_names_file_and_offset() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    _, location = put(wal, [append_of(b"1"), append_of(b"2")])
    write_all(fs.open(wal_file(DIRECTORY, 1)), [b"?"], location.offset + 60)
    with pytest.raises(DataCorrupt) as caught:
        wal.read(location)
    assert caught.value.metadata == {"file": str(wal_file(DIRECTORY, 1)), "offset": str(location.offset)}


def test_read_error_of_the_disk_is_corruption_and_others_are_not() -> None:
    fs = FaultyFs(SimFs())
    wal = recover(fs).wal
    (location,) = put(wal, [append_of(b"1")])
    fs.next_fault("pread", error=errno.EIO)
    with pytest.raises(DataCorrupt, match="EIO"):
        wal.read(location)
    fs.next_fault("open", error=errno.EMFILE)
    with pytest.raises(Throttled, match=os.strerror(errno.EMFILE)):
        wal.read(location)
    assert payload_of(wal.read(location)) == b"1"
    fs.next_fault("open", error=errno.ENOENT)
    with pytest.raises(DataCorrupt, match="missing"):
        wal.read(location)


def test_failed_fdatasync_is_never_retried_and_stops_all_writes() -> None:
    fs = FaultyFs(SimFs())
    wal = recover(fs).wal
    (synced,) = put(wal, [append_of(b"1")])
    wal.write(wal.place([append_of(b"2")]))
    fs.next_fault("fdatasync", error=errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        wal.sync()
    calls = fs.calls.copy()
    assert wal.failed
    with pytest.raises(WalFailed):
        wal.sync()
    with pytest.raises(WalFailed):
        wal.write(wal.place([append_of(b"3")]))
    assert fs.calls == calls
    assert payload_of(wal.read(synced)) == b"1"


@pytest.mark.parametrize(
    ("operation", "call"),
    [("pwritev", 1), ("fdatasync", 1), ("truncate", 1), ("fsync", 1), ("fsync", 2), ("rename", 1), ("fsync_dir", 1)],
)
def test_failure_anywhere_in_a_rotation_stops_all_writes(operation: str, call: int) -> None:
    fs = FaultyFs(SimFs())
    wal = recover(fs).wal
    put(wal, [append_of(b"1")])
    group = wal.place([append_of(BIG)])
    fs.faults.append(Fault(operation, fs.calls[operation] + call, errno.ENOSPC))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        wal.write(group)
    assert wal.failed
    with pytest.raises(WalFailed):
        wal.write(wal.place([append_of(b"3")]))
    assert recover(fs).payloads == [b"1"]


def test_short_write_is_completed_and_a_write_without_progress_stops_all_writes() -> None:
    fs = FaultyFs(SimFs())
    wal = recover(fs).wal
    fs.next_fault("pwritev", short=50)
    (location,) = put(wal, [append_of(b"1")])
    assert payload_of(wal.read(location)) == b"1"
    fs.next_fault("pwritev")
    with pytest.raises(OSError, match="no progress"):
        put(wal, [append_of(b"2")])
    assert wal.failed


def test_spare_that_cannot_be_filled_does_no_harm_until_the_rotation() -> None:
    fs = FaultyFs(SimFs())
    wal = recover(fs).wal
    fs.next_fault("pwritev", error=errno.ENOSPC)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        wal.prepare_spare()
    assert not wal.failed
    assert not wal.spare_ready
    put(wal, [append_of(bytes(FILE_BYTES - 100)), append_of(b"1")])
    assert len(recover(fs).frames) == 2


def test_spare_is_prepared_on_a_thread_while_another_writes_and_a_third_reads(tmp_path: Path) -> None:
    wal = recover(RealFs(), directory=tmp_path / "wal").wal
    locations = list[Location]()

    def prepare() -> None:
        for _ in range(50):
            wal.prepare_spare()

    def read() -> None:
        for _ in range(50):
            for location in locations[-3:]:
                wal.read(location)

    threads = [Thread(target=prepare), Thread(target=read)]
    for thread in threads:
        thread.start()
    for number in range(100):
        locations.extend(put(wal, [append_of(b"%03d" % number + bytes(700))], sync=number % 10 == 0))
    for thread in threads:
        thread.join()
    wal.close()
    again = recover(RealFs(), directory=tmp_path / "wal")
    assert [payload[:3] for payload in again.payloads] == [b"%03d" % number for number in range(100)]
    again.wal.close()


def rotated(fs: SimFs) -> list[Location]:
    """Nine records over three files, all synced."""
    return put(recover(fs).wal, [append_of(b"%03d" % n + bytes(900), seq=n) for n in range(1, 10)])


def test_file_begins_with_the_length_of_its_predecessor() -> None:
    fs = SimFs()
    locations = rotated(fs)
    mark = parse_frame(memoryview(raw(fs, 2)), 0, shard=SHARD, file_number=2, offset=0)
    assert mark.type is FrameType.CHECKPOINT_MARK
    assert mark.control == {"checkpoint": 0, "previous_bytes": locations[3].offset + locations[3].length}


@pytest.mark.parametrize("frames_left", range(4))
def test_file_shortened_at_a_frame_contradicts_its_successor(frames_left: int) -> None:
    fs = SimFs()
    locations = rotated(fs)
    path = wal_file(DIRECTORY, 1)
    fs.open(path).truncate(locations[frames_left].offset)
    with pytest.raises(DataCorrupt) as refused:
        recover(fs)
    assert refused.value.metadata["file"] == str(path)
    assert int(refused.value.metadata["offset"]) == locations[frames_left].offset


def test_end_of_a_clean_stop_must_match_and_nothing_is_cut() -> None:
    fs = SimFs()
    wal = recover(fs).wal
    (location,) = put(wal, [append_of(b"1")])
    end = wal.end
    assert end == WalEnd(1, location.length)
    path = wal_file(DIRECTORY, 1)
    assert recover(fs.reboot("kill"), expected=end).payloads == [b"1"]
    damaged = fs.reboot("kill")
    damaged.open(path).pwritev([b"\xff"], location.length - 1)
    before = raw(damaged, 1)
    with pytest.raises(DataCorrupt):
        recover(damaged, expected=end)
    assert raw(damaged, 1) == before
    gone = fs.reboot("kill")
    gone.unlink(path)
    with pytest.raises(DataCorrupt) as refused:
        recover(gone, expected=end)
    assert refused.value.metadata["file"] == str(path)


@pytest.mark.parametrize(("group_bytes", "filled"), [(100, True), (FILLED_GROUP_BYTES_MAX + 1, False)])
def test_spare_is_filled_for_small_groups_and_sparse_for_large_ones(group_bytes: int, filled: bool) -> None:
    disk = FaultyFs(SimFs())
    wal = recover(disk).wal
    put(wal, [append_of(bytes(FILE_BYTES))])
    put(wal, [append_of(b"x" * group_bytes)])
    put(wal, [append_of(bytes(FILE_BYTES + 1))])
    write_all(disk.open(wal_spare(DIRECTORY), create=True), [b"\xee" * 3 * FILE_BYTES], 0)
    calls = disk.calls["pwritev"]
    wal.prepare_spare()
    assert (disk.calls["pwritev"] > calls) is filled
    spare = disk.open(wal_spare(DIRECTORY))
    assert spare.pread(1 << 20, 0) == bytes(FILE_BYTES)
