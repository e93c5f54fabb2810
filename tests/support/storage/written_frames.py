"""One frame of every type as the store writes it: bodies through the codecs, and a mark as a file with a predecessor has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.log.control import SegmentChange, config_body, segment_change_body, topic_body
from eddyline.store.log.deletion import DeleteBody, Deletion, EvictBody, encode_delete, encode_evict
from eddyline.store.log.seq_set import SeqSet
from eddyline.store.storage.layout import SegmentId
from eddyline.store.storage.segment.footer import SegmentSummary
from eddyline.store.storage.wal.frame import FrameType, append_body, carried_body, control_body
from eddyline.store.storage.wal.wal import Wal
from tests.support.sim.fs import SimFs
from tests.support.storage.wal_frames import DIRECTORY, SHARD, TS_MS, append_of, every_record, put, recover

if TYPE_CHECKING:
    from eddyline.store.storage.wal.frame import FrameBody

FILE_BYTES: Final = 8192
NUMBER: Final = 2
CHECKPOINT: Final = 3
CONFIG: Final = TopicConfig(Durability.EPHEMERAL, 1_000, 60_000, 500, 1 << 20, Discard.REJECT, 7, dedupe_node=False)
CHANGES: Final = (
    SegmentChange(
        "merge",
        9,
        add=(SegmentSummary(4, 11, 8, 5, 1, 155, 3610, TS_MS, TS_MS + 2, 7),),
        remove=(SegmentId(4, 9, 6), SegmentId(10, 11, 7)),
        segmented_seq=11,
    ),
    SegmentChange("base", 10, base=BaseEntry(11, 9, 3, 2048), erase_due_ms=TS_MS + 5),
    SegmentChange("fold", 10, fold_lost=True),
    SegmentChange("unsynced", 10, base_wanted=True),
)


def seqs(*numbers: int) -> SeqSet:
    """A set of these."""
    made = SeqSet()
    for number in numbers:
        made.add(number)
    return made


DELETES: Final = (
    DeleteBody(Deletion(3, 11), SeqSet(), 2, 96),
    DeleteBody(Deletion(0, 11, Match(MatchField.KEY, MatchKind.PREFIX, b"a\xff")), seqs(5, 7), 2, 70),
    DeleteBody(Deletion(9, 11, Match(MatchField.TAG, MatchKind.EQ, "é".encode())), seqs(8), 1, 33),
)
EVICTION: Final = EvictBody(5, 4, 128)


def written_bodies() -> list[FrameBody]:
    """Every body but a mark's, which is the WAL's own."""
    at = {"ts_ms": TS_MS + 2}
    batch = Batch.from_rows(every_record()).with_seqs(1, TS_MS)
    carried = Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"v")]).with_seqs(12, TS_MS - 1)
    config = {**config_body(CONFIG), "config_version": 2}
    lease: dict[str, str | int] = {"change": "lease", "fence": 4, "holder": "h", "lease_ms": 5_000, "source": "s"}
    return [
        control_body(FrameType.TOPIC_CREATE, 1, dict(topic_body("téléphone", Kind.KV, TopicConfig())), ts_ms=TS_MS),
        control_body(FrameType.TOPIC_CREATE, 2, dict(topic_body("log", Kind.LOG, CONFIG)), ts_ms=TS_MS),
        control_body(FrameType.HEAD_WATERMARK, 1, None, first_seq=65_536, ts_ms=TS_MS),
        append_body(1, batch),
        append_of(b"plain", seq=6),
        carried_body(1, carried),
        control_body(FrameType.CONFIG_UPDATE, 1, config, **at),
        *[control_body(FrameType.DELETE, 1, encode_delete(body), **at) for body in DELETES],
        control_body(FrameType.EVICT_WATERMARK, 1, encode_evict(EVICTION), **at),
        *[control_body(FrameType.SEGMENT_CHANGE, 1, segment_change_body(change), **at) for change in CHANGES],
        control_body(FrameType.WRITER_CHANGE, 1, {"bucket": "b", "change": "put", "source": "s"}, **at),
        control_body(FrameType.WRITER_CHANGE, 1, lease, **at),
        control_body(FrameType.WRITER_CHANGE, 1, {"change": "delete", "source": "s"}, **at),
        control_body(FrameType.TOPIC_DELETE, 1, {"name": "téléphone"}, **at),
    ]


def written_wal() -> bytes:
    """File number 2 of a shard: a mark, every frame; the second half knows that the first was synced."""
    fs = SimFs()
    first = recover(fs, file_bytes=FILE_BYTES).wal
    put(first, [append_of(b"in the file before")])
    wal = Wal.recover(fs, DIRECTORY, SHARD, FILE_BYTES, lambda frame, location: None, checkpoint=CHECKPOINT)
    bodies = written_bodies()
    put(wal, bodies[:5])
    put(wal, bodies[5:])
    end = wal.end
    assert end.file_number == NUMBER
    return fs.open(DIRECTORY / f"{NUMBER:016x}.wal").pread(end.file_bytes, 0)
