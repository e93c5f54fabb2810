"""Frames for storage tests: one of every kind with fixed content, and a WAL on any disk with what it replays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from eddyline.store.storage.wal.frame import AppendMark, FrameBody, FrameType, append_body, control_body
from eddyline.store.storage.wal.wal import Location, Wal, WalEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.wal.frame import WalFrame

DIRECTORY: Final = Path("/wal")
SHARD: Final = 0
FILE_BYTES: Final = 4096
TS_MS: Final = 1_700_000_000_000


class Replayed:
    """A recovered WAL and what it gave."""

    def __init__(self, wal: Wal, frames: list[WalFrame], locations: list[Location]) -> None:
        self.wal = wal
        self.frames = frames
        self.locations = locations

    @property
    def payloads(self) -> list[bytes]:
        """The first record's data of each Append frame."""
        return [payload_of(frame) for frame in self.frames if frame.type is FrameType.APPEND]


def recover(
    fs: Fs,
    *,
    directory: Path = DIRECTORY,
    shard: int = SHARD,
    file_bytes: int = FILE_BYTES,
    expected: WalEnd | None = None,
) -> Replayed:
    """Recover the WAL of `directory`, made if it is missing."""
    if not fs.exists(directory):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
    frames, locations = list["WalFrame"](), list[Location]()

    def on_frame(frame: WalFrame, location: Location) -> None:
        frames.append(frame)
        locations.append(location)

    return Replayed(Wal.recover(fs, directory, shard, file_bytes, on_frame, expected=expected), frames, locations)


def append_of(data: bytes, *, seq: int = 1, topic_id: int = 1) -> FrameBody:
    """An Append frame of one record."""
    return append_body(topic_id, Batch.from_rows([Record(data=data)]).with_seqs(seq, TS_MS))


def payload_of(frame: WalFrame) -> bytes:
    """The first record's data."""
    assert frame.batch is not None
    return frame.batch.to_rows()[0].data or b""


def put(wal: Wal, bodies: Sequence[FrameBody], *, sync: bool = True) -> list[Location]:
    """Place, write, and maybe sync."""
    group = wal.place(bodies)
    wal.write(group)
    if sync:
        wal.sync()
    return group.locations


def every_record() -> list[Record]:
    """Records that fill every column, absent and empty cells included."""
    return [
        Record(op=Op.PUT, key=b"a", data=b"one", tag="red", node="n1", version=b"\1", source_ts_ns=5),
        Record(op=Op.PUT, key=b"b", data=b"", tag=None, node="", meta=(MetaEntry("kind", b"x"), MetaEntry("", b""))),
        Record(op=Op.DELETE, key=b"a", node=None, source_ts_ns=-1),
        Record(op=Op.PURGE, key=b"\0\xff", tag="", version=bytes(10)),
        Record(op=Op.GAP, data=encode_gap(Gap(0, 0, GapReason.SOURCE_GAP, 0, 0, 0, b"stream", 7, 9))),
    ]


def every_body() -> list[FrameBody]:
    """One frame of every type, and of every shape of an Append."""
    records = every_record()
    full = Batch.from_rows(records).with_seqs(1, TS_MS)
    marks = (
        AppendMark(1, b"key-1", bytes(range(16))),
        AppendMark(2, b"", b"", "writer-1", 3, b"", b"pos-1"),
        AppendMark(2, b"key-2", bytes(16), "writer-1", 3, b"pos-1", b"pos-2"),
    )
    empty = Batch.from_rows([]).with_seqs(6, TS_MS + 1)
    create: dict[str, str | int] = {"durability": "DISK", "kind": "KV", "name": "téléphone"}
    return [
        control_body(FrameType.TOPIC_CREATE, 1, create, ts_ms=TS_MS),
        control_body(FrameType.HEAD_WATERMARK, 1, None, first_seq=65_536, ts_ms=TS_MS),
        append_body(1, full, marks),
        append_body(1, empty, (AppendMark(0, b"", b"", "writer-1", 3, b"pos-2", b"pos-3"),)),
        append_of(b"plain", seq=6),
        control_body(FrameType.CONFIG_UPDATE, 1, {"durability": "FSYNC"}, ts_ms=TS_MS + 2),
        control_body(FrameType.DELETE, 1, {"before_seq": 3}, first_seq=6, ts_ms=TS_MS + 2),
        control_body(FrameType.EVICT_WATERMARK, 1, {"floor_seq": 2}, ts_ms=TS_MS + 2),
        control_body(FrameType.SEGMENT_CHANGE, 1, {"added": "seg-1-2"}, ts_ms=TS_MS + 2),
        control_body(FrameType.CHECKPOINT_MARK, 0, {"number": 1}, ts_ms=TS_MS + 2),
        control_body(FrameType.WRITER_CHANGE, 1, {"bucket": "b", "change": "put", "source": "s"}, ts_ms=TS_MS + 2),
        control_body(FrameType.TOPIC_DELETE, 1, {"name": "téléphone"}, ts_ms=-1),
    ]
