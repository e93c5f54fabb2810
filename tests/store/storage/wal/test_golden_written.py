"""The store's present output equals the golden files of the current formats: a change needs a version of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import ConfigChange, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.fs import write_all
from eddyline.store.log.control import config_of, segment_change_of
from eddyline.store.log.deletion import decode_delete, decode_evict
from eddyline.store.storage import identity
from eddyline.store.storage.layout import Layout, wal_file, wal_numbers
from eddyline.store.storage.segment import footer_codec as segment_footer
from eddyline.store.storage.segment.reader import read_footer
from eddyline.store.storage.wal import frame
from eddyline.store.storage.wal.frame import CARRIED, FrameType
from eddyline.store.storage.wal.scan import scan
from eddyline.store.storage.wal.wal import Wal
from tests.support.golden import golden
from tests.support.manual_clock import ManualClock
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.storage.segments import BASE, PATH, all_batches, bytes_at, disk_with, written
from tests.support.storage.wal_frames import DIRECTORY, SHARD
from tests.support.storage.written_frames import (
    CHANGES,
    CHECKPOINT,
    CONFIG,
    DELETES,
    EVICTION,
    FILE_BYTES,
    NUMBER,
    written_bodies,
    written_wal,
)
from tests.support.store.simulated import append, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location


def frames_of(data: bytes) -> tuple[list[WalFrame], list[int]]:
    """Frames of a file with number 2, and the checkpoints in its marks."""
    fs = SimFs()
    fs.mkdir(DIRECTORY)
    write_all(fs.open(DIRECTORY / f"{NUMBER:016x}.wal", create=True), [data], 0)
    frames, marks = list["WalFrame"](), list[int]()

    def on_frame(frame: WalFrame, location: Location) -> None:
        frames.append(frame)

    Wal.recover(fs, DIRECTORY, SHARD, FILE_BYTES, on_frame, first_number=NUMBER, on_mark=marks.append)
    return frames, marks


def base_entries() -> Batch:
    """Entries of a fold in key order: each with the seq, the time and the version that wrote it."""
    return Batch.from_rows(
        [
            Record(9, 1_009, 0, Op.PUT, b"", b"empty key", None, "n"),
            Record(3, 1_003, 7, Op.PUT, b"a", b"", "é", None, (), b"\1\2"),
            Record(11, 1_011, 0, Op.PUT, b"b\xff", b"\0\xff", "", None),
        ]
    )


def fresh_base() -> bytes:
    fs = SimFs()
    written(fs, [base_entries()], source=BASE, rows_max=2)
    return bytes_at(fs)


def test_versions_have_their_golden_files() -> None:
    assert (frame.VERSION, identity.FORMAT, segment_footer.FORMAT) == (1, 1, 1), "a new version needs new golden files"


def test_written_wal_file_has_the_golden_bytes() -> None:
    assert written_wal() == golden("wal-2.wal")


def test_golden_wal_file_decodes_to_the_written_frames() -> None:
    frames, marks = frames_of(golden("wal-2.wal"))
    assert marks == [CHECKPOINT]
    assert [one.type for one in frames] == [body.type for body in written_bodies()]
    assert {one.type for one in frames} | {FrameType.CHECKPOINT_MARK} == set(FrameType)
    controls = {kind: [one.control or {} for one in frames if one.type is kind] for kind in FrameType}
    assert [config_of(body) for body in controls[FrameType.TOPIC_CREATE]] == [TopicConfig(), CONFIG]
    (update,) = controls[FrameType.CONFIG_UPDATE]
    assert (config_of(update), update["config_version"]) == (CONFIG, 2)
    assert tuple(decode_delete(body) for body in controls[FrameType.DELETE]) == DELETES
    assert [decode_evict(body) for body in controls[FrameType.EVICT_WATERMARK]] == [EVICTION]
    assert tuple(segment_change_of(body) for body in controls[FrameType.SEGMENT_CHANGE]) == CHANGES
    (carried,) = [one for one in frames if one.flags & CARRIED]
    assert (carried.first_seq, carried.count) == (12, 1)


def test_fresh_base_has_the_golden_bytes() -> None:
    assert fresh_base() == golden("base-1.arrow")


def test_golden_base_is_read_back() -> None:
    fs = disk_with(golden("base-1.arrow"))
    footer = read_footer(fs, PATH)
    assert (footer.source, footer.summary.rows, footer.summary.first_seq, footer.summary.last_seq) == (BASE, 3, 3, 11)
    assert Batch.concat(all_batches(fs)) == base_entries()


async def test_running_store_writes_no_key_that_the_golden_file_lacks() -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    async with sim_store(fs, fold, clock) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=3))
        await link.create_topic("kv", Kind.KV, TopicConfig(priority=3, dedupe_node=False))
        await link.create_topic("from-nats", Kind.KV, TopicConfig())
        await append(link, "kv", puts(("a", "1"), ("b", "2")))
        topic = link._table.get("kv")
        link._engine.reserve(topic, topic.staged_seq + 70_000)
        await append(link, "kv", puts(("c", "3")))
        live = frames_on(fs)
    async with sim_store(fs, fold.kill(), clock, wal_file_bytes=1 << 20) as link:
        for batch in (rows(*"abc"), rows(*"def")):
            await append(link, "log", batch)
        await link._parts.checkpointer.run()
        await link.update_topic("log", ConfigChange(cap_records=2))
        await link.delete_records("log", before_seq=6)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"a"))
        await link.put_source(SourceDefinition("s", "from-nats", "bucket"))
        await link.acquire_lease("s", holder="h", lease_ms=5_000)
        await link.delete_source("s")
        topic = link._table.get("log")
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
        await link.delete_topic("log")
        written_keys: dict[FrameType, set[str]] = {}
        for one in frames_of(golden("wal-2.wal"))[0]:
            written_keys.setdefault(one.type, set()).update(one.control or {})
        written_keys[FrameType.CHECKPOINT_MARK] = {"checkpoint", "previous_bytes"}
        live += frames_on(fs)
        assert {one.type for one in live} == set(FrameType)
        assert any(one.flags & CARRIED for one in live)
        for one in live:
            assert set(one.control or {}) <= written_keys.get(one.type, set()), one


def frames_on(fs: SimFs) -> list[WalFrame]:
    """Every frame of a simulated store's only WAL shard."""
    directory, frames = Layout(settings().directory).wal_shard(0), list["WalFrame"]()
    for number in wal_numbers(fs.listdir(directory)):
        path = wal_file(directory, number)
        data = fs.open(path).pread(1 << 30, 0)
        scan(data, path, shard=0, file_number=number, complete=False, on_frame=lambda one, at: frames.append(one))
    return frames
