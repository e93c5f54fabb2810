"""One subscriber's observations of one topic, over all its resumes, and their check at the end of a simulation.

By then it is known what each topic ever had. A view is right if it is exactly the log under its filter from its start on:
each record once, in order and as committed; a missing record is under a gap in its place, or was deleted on request. No
stream shows what was deleted before it was opened. No cursor or token is past what came with it. A snapshot is
the fold at its seq, also one that broke off and went on, and a map that is kept by what came is the fold at its cursor.
caught_up comes at the heads of the opening or above them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from eddyline.core.codec.records import answer_from_columns, answer_from_rows, gap_from_pb
from eddyline.core.model.topic import Kind
from eddyline.core.records.gap import OF_SOURCE, gap_of
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.delivery.feed.encode import NO_DATA
from eddyline.delivery.resume_token import Resume, ResumeState
from eddyline.v1 import delivery_pb2 as pb
from tests.support.models.filter_spec import Wish, length
from tests.support.models.topic_model import Past

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eddyline.v1 import types_pb2

FLOORS: Final = (GapReason.CAP, GapReason.TTL, GapReason.EPHEMERAL)
SHOWN_OF_TRACE: Final = 14


class Head(NamedTuple):
    """A topic's position; epoch 0 = it did not exist."""

    epoch: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """A stream was opened without a place: what the topic's heads were before that and after it."""

    point: pb.StartPoint.ValueType
    before: Head
    after: Head


@dataclass(frozen=True, slots=True)
class Level:
    """caught_up came; the topic's head before that stream was opened."""

    target: Head


@dataclass(frozen=True, slots=True)
class Opened:
    """Another stream was opened: by then the deletion of these seqs of the topic was acknowledged."""

    epoch: int = 0
    removed: frozenset[int] = frozenset()


Entry: TypeAlias = Opened | Started | Level | Resume | pb.WatchTopicsResponse
"""The events: a stream, a start, caught_up, a token, a frame."""


@dataclass(frozen=True)
class Truth:
    """One topic of one epoch, as it was. `gone` None = its deletion was not acknowledged; `order` = the seqs of its past;
    not `fold_is_known` = its fold does not follow from its log alone."""

    kind: Kind
    gone: bool | None
    floor: int
    past: Past
    order: list[int]
    fold_is_known: bool = True


def lossless(records: Sequence[Record], kind: Kind) -> Truth:
    """The state of a topic that exists and has lost nothing."""
    rows = {record.seq: record for record in records}
    return Truth(kind, gone=False, floor=0, past=Past(rows=rows), order=sorted(rows))


@dataclass
class View:
    """One subscriber's log of one topic. `lazy` = it may resume below what a token said, where its filter hid all;
    `resumes` = snapshots that break off may go on."""

    who: str
    topic: str
    wish: Wish
    lazy: bool = False
    resumes: bool = False
    entries: list[Entry] = field(default_factory=list)

    def trace(self, upto: int) -> str:
        """The last entries before that one and itself, in words."""
        first = max(0, upto + 1 - SHOWN_OF_TRACE)
        lines = [f"  {at} {in_words(self.entries[at])}" for at in range(first, min(upto + 1, len(self.entries)))]
        return "\n".join([f"{self.who} on {self.topic} {self.wish}:", *lines])


class Judge:
    """Goes through a view; `count` is of records that were right."""

    def __init__(self, view: View, topics: Mapping[int, Truth]) -> None:
        self._view, self._topics = view, topics
        self._epoch = 0
        self._seq = 0
        self._optional = 0
        self._opened = Opened()
        self._start: Started | None = None
        self._building: dict[bytes, Record] | None = None
        self._kept: pb.SnapshotResume | None = None
        self._brought = 0
        self._fresh = True
        self._to_build = False
        self._map: dict[bytes, Record] | None = None
        self._gone = False
        self.count = 0
        self.gaps = 0
        self.snapshots = 0
        self.resumed = 0
        self.levels = 0

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and seq that the subscriber has come to."""
        return self._epoch, self._seq

    def go(self) -> None:
        """Judge all of it. Raises AssertionError with the place."""
        at = 0
        try:
            for entry in self._view.entries:
                self._take(entry)
                at += 1
            self._judge_map()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._view.trace(at)}") from error

    def _take(self, entry: Entry) -> None:
        match entry:
            case Opened():
                self._opened = entry
                self._fresh = True
            case Started():
                self._start = entry
                self._to_build = entry.point == pb.START_POINT_SNAPSHOT
            case Level():
                self._on_caught_up(entry.target)
            case Resume():
                self._token(entry)
            case _:
                self._frame(entry)

    # entries -----------------------------------------------------------------------------------------------------

    def _on_caught_up(self, target: Head) -> None:
        self.levels += 1
        if self._gone or not target.epoch or not self._epoch or self._epoch > target.epoch:
            return
        assert self._epoch == target.epoch, f"caught_up in epoch {self._epoch}, {target.epoch} was there before"
        assert not self._to_build, "caught_up before the snapshot was complete"
        assert self._seq >= target.seq, f"caught_up at {self._seq}, {target.seq} was the head before"

    def _token(self, resume: Resume) -> None:
        if self._gone:
            return
        epoch, seq = resume.cursor.epoch, resume.cursor.seq
        self._adopt(epoch)
        within = resume.state in (ResumeState.SNAPSHOT, ResumeState.KEYS)
        if self._to_build and within and epoch > self._epoch:
            self._epoch, self._building = epoch, None  # it resumed into a snapshot, which replaces all that came
        assert epoch == self._epoch, f"a token in epoch {epoch}, the subscriber is in {self._epoch}"
        if within:
            # an empty snapshot may come again
            assert self._to_build or self._is_log() or not self._seq, "a token within a snapshot that is complete"
            return
        assert not self._to_build, "a token behind a snapshot that is not complete"
        if self._view.lazy and seq < self._seq:
            return
        assert seq >= self._seq, f"a token at {seq}, {self._seq} was told before"
        self._progress(seq)

    def _frame(self, frame: pb.WatchTopicsResponse) -> None:
        assert not self._gone, "a frame of a topic that was told to be gone"
        kind, cursor = frame.WhichOneof("frame"), frame.cursor
        match kind:
            case "gap":
                self._gap(gap_from_pb(frame.gap), cursor)
            case "snapshot_begin":
                self._adopt(cursor.epoch)
                at_nothing = not self._seq  # an empty snapshot may come again
                assert self._to_build or at_nothing, "a snapshot that was not asked for"
                assert cursor.epoch >= self._epoch
                self._epoch, self._building, self._to_build = cursor.epoch, {}, True
                self._kept, self._brought, self._fresh = None, 0, False
            case "snapshot_resume":
                self._resume_snapshot(frame.snapshot_resume)
            case "snapshot_end":
                self._snapshot(frame.snapshot_end.fold_seq, frame.snapshot_end.count)
            case "rows" | "columns" if self._to_build:
                self._bring(rows_of(frame, self._view.wish))
            case "rows" | "columns":
                self._adopt(cursor.epoch)
                assert cursor.epoch == self._epoch, f"records of epoch {cursor.epoch} in {self._epoch}"
                self._progress(cursor.seq, rows_of(frame, self._view.wish))
            case "progress":
                self._adopt(cursor.epoch)
                assert cursor.epoch == self._epoch, f"progress of epoch {cursor.epoch} in {self._epoch}"
                assert not self._to_build, "progress within a snapshot"
                self._progress(cursor.seq)
            case "topic_deleted":
                self._adopt(frame.topic_deleted.epoch)
                assert frame.topic_deleted.epoch == self._epoch, "another topic was told to be gone"
                truth = self._topics.get(self._epoch)
                assert truth is None or truth.gone is not False, f"{self._epoch} is there, and was told to be gone"
                self._gone = True
            case _:
                raise AssertionError(f"{kind} was not expected")

    def _adopt(self, epoch: int) -> None:
        """The first word of where a start without a place has begun."""
        start = self._start
        if start is None:
            return
        self._start, self._epoch, self._seq, self._optional = None, epoch, 0, 0
        self._map = {} if start.point == pb.START_POINT_EARLIEST else None
        if start.point == pb.START_POINT_TAIL:
            self._seq = start.before.seq if start.before.epoch == epoch else 0
            self._optional = start.after.seq if start.after.epoch == epoch else 1 << 62

    def _is_log(self) -> bool:
        truth = self._topics.get(self._epoch)
        return truth is not None and truth.kind is Kind.LOG

    def _gap(self, gap: Gap, cursor: types_pb2.Cursor) -> None:
        self.gaps += 1
        if gap.reason == GapReason.RECREATED:
            self._adopt(gap.old_epoch)
            assert gap.old_epoch == self._epoch, f"epoch {gap.old_epoch} was told to be over, in {self._epoch}"
            assert gap.new_epoch > gap.old_epoch
            old = self._topics.get(gap.old_epoch)
            assert old is None or old.gone is not False, f"{gap.old_epoch} was told to be made anew, and is there"
            self._epoch, self._seq, self._optional, self._map = gap.new_epoch, 0, 0, {}
            self._building = None
            self._to_build = self._to_build and not self._is_log()
            return
        self._adopt(cursor.epoch)
        assert not self._to_build, "a gap within a snapshot"
        if gap.first_seq > self._seq + 1:
            self._progress(gap.first_seq - 1)
        if self._view.lazy and gap.reason in FLOORS and gap.own_seq <= self._seq:
            return
        assert gap.own_seq > self._seq, f"a gap up to {gap.own_seq} at {self._seq}"
        truth = self._topics.get(self._epoch)
        if truth is not None:
            if gap.reason in FLOORS:
                floor = truth.floor
                assert gap.last_seq <= floor, f"a gap to {gap.last_seq}, the floor is {floor}"
            else:
                row = truth.past.rows.get(gap.own_seq)
                assert row is not None, f"nobody lost {gap}"
                self._not_deleted(gap.own_seq)
                assert row.op == Op.GAP
                assert gap == gap_of(row.seq, row.data or b""), f"told {gap}"
        if gap.reason not in OF_SOURCE:
            self._map = None
        self._seq = gap.own_seq
        self._progress(cursor.seq)

    def _resume_snapshot(self, kept: pb.SnapshotResume) -> None:
        """One that broke off goes on: what it had brought up to a key stands as it was at a seq."""
        building = self._building
        assert self._view.resumes, "a snapshot goes on, and that was not asked for"
        assert self._view.wish.by_key, "what the filter hides cannot be told of a snapshot that goes on"
        assert building is not None, "no snapshot had begun"
        self._building = {key: row for key, row in building.items() if key <= kept.after_key}
        if self._fresh:
            self._brought, self._fresh = 0, False
        self._kept = kept
        self.resumed += 1

    def _bring(self, rows: Sequence[Record]) -> None:
        """Entries of a snapshot, or of one that goes on first what changed of its keys meanwhile."""
        building, kept = self._building, self._kept
        assert building is not None, "values before a snapshot's beginning"
        for row in rows:
            assert row.key is not None
            changed = kept is not None and row.key <= kept.after_key
            if changed:
                assert kept is not None
                assert row.seq > kept.fold_seq, f"{row.key!r} at {row.seq} was brought before"
                building.pop(row.key, None)
            else:
                assert row.key not in building, f"{row.key!r} is there twice"
                self._brought += 1
            if row.op == Op.PUT:
                building[row.key] = row
            else:
                assert changed, f"{row.key!r} is not a value"

    def _snapshot(self, fold_seq: int, count: int) -> None:
        self.snapshots += 1
        building = self._building
        assert building is not None, "the end of no snapshot"
        assert self._brought == count, f"{self._brought} values came, {count} were sent"
        assert self._kept is not None or len(building) == count
        truth = self._topics.get(self._epoch)
        if truth is not None:
            self._compare(building, fold_seq, truth)
        self._map, self._building, self._to_build = dict(building), None, False
        self._seq, self._optional = fold_seq, 0

    # what all come to --------------------------------------------------------------------------------------------

    def _progress(self, seq: int, rows: Sequence[Record] = ()) -> None:
        """The subscriber stands at `seq`: all that it wants up to there has come, `rows` with the last step."""
        truth = self._topics.get(self._epoch)
        last_seq = self._seq
        for row in rows:
            assert last_seq < row.seq <= seq, f"{row.seq} came at {last_seq}, with a cursor at {seq}"
            last_seq = row.seq
            assert self._view.wish.shows(row), f"{row.key!r} was not asked for"
            self._not_deleted(row.seq)
            if self._map is not None and row.key is not None:
                self._map.pop(row.key, None)
                if row.op == Op.PUT:
                    self._map[row.key] = row
        assert seq >= self._seq, f"a cursor at {seq}, {self._seq} was told before"
        if truth is not None:
            self._complete(truth, seq, {row.seq: row for row in rows})
        self.count += len(rows)
        self._seq = seq

    def _not_deleted(self, seq: int) -> None:
        removed = self._opened.removed if self._opened.epoch == self._epoch else ()
        assert seq not in removed, f"{seq} was deleted before the stream was opened"

    def _complete(self, truth: Truth, seq: int, came: dict[int, Record]) -> None:
        past = truth.past
        for found, row in came.items():
            known = past.rows.get(found)
            assert known is None or same(self._view.wish.seen(known), row), f"{found} is {known}, and {row} came"
        order = truth.order
        for due in order[bisect_right(order, self._seq) : bisect_right(order, seq)]:
            if due in came or due <= self._optional:
                continue
            known = past.rows[due]
            if known.op != Op.GAP and not self._view.wish.shows(known):
                continue
            # who deletes the record of a gap on purpose deletes what it told, too
            assert past.lost.get(due, due) in past.removed, f"{due} was missed: {known}"
            self._map = None

    def _compare(self, values: dict[bytes, Record], seq: int, truth: Truth) -> None:
        if not truth.fold_is_known:
            return
        fold, loose = fold_at(truth, seq)
        wish = self._view.wish
        expected = {key: wish.seen(row) for key, row in fold.items() if wish.shows(row)}
        for key in (values.keys() | expected.keys()) - loose:
            has, due = values.get(key), expected.get(key)
            assert has is not None, f"{key!r} is not there at {seq}, {due} is due"
            assert due is not None, f"{key!r} is there at {seq}: {has}"
            assert same(due, has), f"at {seq} {has}, not {due}"

    def _judge_map(self) -> None:
        """The subscriber's fold of the received items. Erased keys go silently."""
        truth = self._topics.get(self._epoch)
        if self._map is None or self._gone or self._to_build or truth is None or truth.kind is not Kind.KV:
            return
        if not (self._view.wish.by_key and truth.fold_is_known):
            return  # a key whose newer value is hidden keeps its old one
        fold, loose = fold_at(truth, self._seq)
        erased = loose.union(*truth.past.erased.values())
        expected = {key: row.seq for key, row in fold.items() if self._view.wish.shows(row) and key not in erased}
        found = {key: row.seq for key, row in self._map.items() if key not in erased}
        assert found == expected, f"at {self._seq} the subscriber has {found}, the fold {expected}"


def fold_at(truth: Truth, seq: int) -> tuple[dict[bytes, Record], set[bytes]]:
    """A fold at a seq, and the keys of which nobody knows whether they were erased before or after that moment."""
    past = truth.past
    base = max((found for found in past.folds if found <= seq), default=0)
    fold = dict(past.folds.get(base, {}))
    order = truth.order
    for at in order[bisect_right(order, base) : bisect_right(order, seq)]:
        row = past.rows[at]
        if row.key is not None:
            fold.pop(row.key, None)
            if row.op == Op.PUT:
                fold[row.key] = row
        for key in past.erased.get(at, ()):
            fold.pop(key, None)
    return fold, past.erased.get(base, set()) | past.erased.get(seq, set())


def same(left: Record, right: Record) -> bool:
    """Equal, as far as a subscriber sees it; a version that was not given is shown in one form and not in the other."""
    return left._replace(version=b"") == right._replace(version=b"")


def rows_of(frame: pb.WatchTopicsResponse, wish: Wish) -> list[Record]:
    """A frame's records; without data its length takes the place of the data, which must be absent."""
    if frame.WhichOneof("frame") == "columns":
        rows = answer_from_columns(frame.columns).to_rows()
        sizes = memoryview(frame.columns.data_bytes).cast("I").tolist() if frame.columns.data_bytes else []
    else:
        rows = answer_from_rows(frame.rows).to_rows()
        sizes = [row.data_bytes if row.HasField("data_bytes") else NO_DATA for row in frame.rows.records]
    if not wish.metadata_only:
        return rows
    assert not any(row.data for row in rows), "data came, and was not asked for"
    return [row._replace(data=None if size == NO_DATA else length(size)) for row, size in zip(rows, sizes, strict=True)]


def in_words(entry: Entry) -> str:
    """One line."""
    match entry:
        case Opened():
            return f"stream, deleted of {entry.epoch}: {sorted(entry.removed)}"
        case Started():
            return f"start {pb.StartPoint.Name(entry.point)} between {entry.before} and {entry.after}"
        case Level():
            return f"caught_up, target {entry.target}"
        case Resume():
            return f"token {entry.state.name} {entry.cursor.epoch}:{entry.cursor.seq}"
    kind = entry.WhichOneof("frame")
    said = f"{kind} to {entry.cursor.epoch}:{entry.cursor.seq}"
    if kind in ("rows", "columns"):
        return f"{said} {[(row.seq, row.key) for row in rows_of(entry, Wish())]}"
    return f"{said} {str(getattr(entry, kind or '')).split()}"
