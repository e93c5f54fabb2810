"""What a subscriber must see, by the semantics alone: the log under its filter, and the values it makes of it.

`Seen` takes a subscriber's frames across any number of streams and keeps what it was given; `judge` compares that with the
topic's records. One topic, without loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.core.record import Op
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from eddyline.core.record import Record


@dataclass(frozen=True, slots=True)
class Wish:
    """Filters and options of one topic of a watch."""

    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    ignore_deletes: bool = False
    metadata_only: bool = False

    def shows(self, record: Record) -> bool:
        """Whether a record passes."""
        return (
            (not self.key_prefixes or (record.key or b"").startswith(self.key_prefixes))
            and (not self.tags or record.tag in self.tags)
            and (record.node is None or record.node not in self.exclude_nodes)
            and not (self.ignore_deletes and record.op in (Op.DELETE, Op.PURGE))
        )

    def topic(self, name: str) -> pb.WatchTopic:
        """The request's topic, without a start."""
        return pb.WatchTopic(
            topic=name,
            key_prefixes=self.key_prefixes,
            tags=self.tags,
            exclude_nodes=self.exclude_nodes,
            ignore_deletes=self.ignore_deletes,
            metadata_only=self.metadata_only,
        )


def shown(record: types.Record) -> tuple[object, ...]:
    """What a row says; its data, or the length of what was left out."""
    data = record.data if record.HasField("data") else None
    size = record.data_bytes if record.HasField("data_bytes") else None
    return record.seq, int(record.op), record.key, data, size, record.tag, record.node


def expected(record: Record, wish: Wish) -> tuple[object, ...]:
    """What a row of this record must say."""
    data = record.data
    hidden = wish.metadata_only and data is not None
    size = len(data) if data is not None and hidden else None
    shown_data = None if hidden else data
    return record.seq, int(record.op), record.key, shown_data, size, record.tag or "", record.node or ""


def fold_of(records: Iterable[Record], *, up_to_seq: int) -> dict[bytes, Record]:
    """The live records by key at a seq."""
    fold: dict[bytes, Record] = {}
    for record in records:
        if record.seq > up_to_seq:
            break
        assert record.key is not None
        fold.pop(record.key, None)
        if record.op == Op.PUT:
            fold[record.key] = record
    return fold


@dataclass
class Seen:
    """What one subscriber has of one topic, and its place to resume at."""

    wish: Wish
    records: Callable[[], list[Record]]
    first_seq: int = 1
    """The first seq that it is to have, where it never has a snapshot."""
    cursor: types.Cursor | None = None
    within: bool = False
    snapshot_seq: int = 0
    snapshots: int = 0
    resumed: int = 0
    kept: pb.SnapshotResume = field(default_factory=pb.SnapshotResume)
    values: dict[bytes, tuple[object, ...]] = field(default_factory=dict)
    log: list[tuple[object, ...]] = field(default_factory=list)

    def copy(self) -> Seen:
        """As it is now: what a resume by a token alone goes back to."""
        return Seen(
            self.wish,
            self.records,
            self.first_seq,
            self.cursor,
            self.within,
            self.snapshot_seq,
            self.snapshots,
            self.resumed,
            self.kept,
            dict(self.values),
            list(self.log),
        )

    def take(self, frame: pb.WatchTopicsResponse) -> None:
        """Take a frame of the topic, minding what it promises by itself."""
        kind = frame.WhichOneof("frame")
        match kind:
            case "snapshot_begin":
                self.values, self.log, self.within = {}, [], True
                self.kept = pb.SnapshotResume()
            case "snapshot_resume":
                assert self.within, "only what broke off is resumed"
                self.resumed += 1
                self.kept = frame.snapshot_resume
                self.values = {
                    key: value for key, value in self.values.items() if key <= frame.snapshot_resume.after_key
                }
            case "snapshot_end":
                assert self.within
                self.within = False
                self.snapshots += 1
                self.snapshot_seq = frame.snapshot_end.fold_seq
                fold = fold_of(self.records(), up_to_seq=self.snapshot_seq)
                wanted = {key: expected(record, self.wish) for key, record in fold.items() if self.wish.shows(record)}
                assert self.values == wanted, f"not the fold at {self.snapshot_seq}"
            case "rows" if self.within:
                for record in frame.rows.records:
                    assert record.key > self.kept.after_key or record.seq > self.kept.fold_seq, "brought before"
                self._apply(frame)
            case "rows":
                assert self.cursor is None or frame.rows.records[0].seq > self.cursor.seq, "a double"
                assert frame.rows.records[-1].seq <= frame.cursor.seq
                self.log += map(shown, frame.rows.records)
                self._apply(frame)
            case "progress":
                assert not self.within
            case other:
                raise AssertionError(f"{other} was not asked for")
        if not self.within:
            assert self.cursor is None or kind == "snapshot_end" or frame.cursor.seq >= self.cursor.seq
            self.cursor = frame.cursor

    def judge(self) -> None:
        """At its place it has exactly what the log says."""
        assert not self.within
        assert self.cursor is not None
        begin = self.snapshot_seq if self.snapshots else self.first_seq - 1
        wanted = [
            expected(record, self.wish)
            for record in self.records()
            if begin < record.seq <= self.cursor.seq and self.wish.shows(record)
        ]
        assert self.log == wanted

    def _apply(self, frame: pb.WatchTopicsResponse) -> None:
        for record in frame.rows.records:
            self.values.pop(record.key, None)
            if record.op == types.OP_PUT:
                self.values[record.key] = shown(record)
