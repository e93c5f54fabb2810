"""Starts: where each topic of a stream begins, from what was asked, what a token says, and what the topic is now.

A token's place wins over the start that was asked for, unless that is a newer cursor of the same epoch. A time or a revision
is looked up once, and is a position from then on. Revisions grow with the seq within one stream identity, so the place is
found by halving, with about one short read a bit of the topic's length. A log may hold several streams, one behind the
other, whose revisions begin again: one is looked up in the newest, behind the last gap that says so.
A topic that a token or a cursor with an epoch shows to have existed, and that is gone, is told as deleted in the stream;
any other missing topic refuses the stream. No start is ever before what was asked for: a position above the head is refused.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from eddyline.core.errors import CursorAhead, EddylineError, NotKv, TopicNotFound
from eddyline.core.model.read import READ_LIMIT_MAX, RecordFilter
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import KEY_BYTES_MAX, Gap, GapReason, effective_version
from eddyline.delivery.resume_token import Cursor, Resume, ResumeState
from eddyline.delivery.watch.request import AtRevision, AtTime, Point
from eddyline.delivery.watch.subscription import Phase, StartPosition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.records.record import Record
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.watch.request import TopicRequest, WatchRequest

LOOK_UPS_AT_ONCE: Final = 16
_PROBE_RECORDS: Final = 16
"""A read for one record's version brings a few: those of op GAP have none."""

_GAPS_ALONE: Final = RecordFilter(key_prefixes=(b"\xff" * KEY_BYTES_MAX,))
"""Gaps always pass a filter, and no key begins so: none that is text."""

Start = Cursor | Resume | AtTime | AtRevision | Point


class StartResolver:
    """Resolves starts; see the module."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def resolve(
        self, request: WatchRequest, resumes: Mapping[str, Resume], found: Mapping[str, TopicInfo | TopicNotFound]
    ) -> list[StartPosition]:
        """Where each topic begins, in the order of the request. `found` = what each is now.

        Raises:
            TopicNotFound, NotKv, CursorAhead: of the first topic that cannot start. What a read of the store raises.
        """
        begins: dict[str, StartPosition] = {}
        failures: dict[str, EddylineError] = {}

        async def look_up(topics: Iterator[TopicRequest]) -> None:
            for wanted in topics:
                start = _start(wanted, resumes.get(wanted.topic))
                try:
                    begins[wanted.topic] = await self._begin(wanted, start, found[wanted.topic], request)
                except EddylineError as error:
                    failures[wanted.topic] = error
                if failures:
                    return

        topics = iter(request.topics)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(LOOK_UPS_AT_ONCE, len(request.topics))):
                tasks.create_task(look_up(topics))
        if failures:
            raise next(failures[wanted.topic] for wanted in request.topics if wanted.topic in failures)
        return [begins[wanted.topic] for wanted in request.topics]

    async def _begin(
        self, wanted: TopicRequest, start: Start, found: TopicInfo | TopicNotFound, request: WatchRequest
    ) -> StartPosition:
        if isinstance(found, TopicNotFound):
            known = start.cursor if isinstance(start, Resume) else start
            if isinstance(known, Cursor) and known.epoch:
                return StartPosition(Phase.GONE, known.epoch, known.seq, 0)
            raise found
        heals = wanted.heals and found.kind is Kind.KV
        if isinstance(start, Resume) and found.kind is Kind.KV:
            return _in_snapshot(start, found, heals=heals, resumes=request.resume_snapshots)
        if start is Point.SNAPSHOT:
            if found.kind is not Kind.KV:
                raise NotKv(
                    f"topic {wanted.topic} has no fold, so no snapshot; start at a cursor, TAIL or EARLIEST",
                    topic=wanted.topic,
                )
            resumes = request.resume_snapshots
            return StartPosition(Phase.SNAPSHOT, found.epoch, 0, found.head_seq, heals=heals, resumes=resumes)
        cursor = await self._cursor(start, found)
        if cursor is start and cursor.epoch in (0, found.epoch) and cursor.seq > found.head_seq:
            raise _ahead(cursor, found)
        return _at_cursor(cursor, found, heals=heals, resumes=request.resume_snapshots)

    async def _cursor(self, start: Start, found: TopicInfo) -> Cursor:
        """Where a topic that begins in its log does; one made anew without fold brings all of it, after a gap."""
        match start:
            case Cursor():
                return start
            case Resume():
                return start.cursor
            case AtTime():
                return await self._at_time(start.ts_ms, found)
            case AtRevision():
                return await self._at_revision(start.revision, found)
            case Point.TAIL | Point.SNAPSHOT:
                return Cursor(found.name, found.epoch, found.head_seq)
            case Point.EARLIEST:
                return Cursor(found.name, found.epoch, 0)
            case _:
                assert_never(start)

    async def _at_time(self, ts_ms: int, found: TopicInfo) -> Cursor:
        """Before the first live record at or after a time."""
        place = await self._link.find_seq(found.name, commit_time_ms=ts_ms)
        if place.epoch != found.epoch:
            return Cursor(
                found.name, found.epoch, found.head_seq
            )  # made anew just now, which the tail says in its turn
        if not place.found:
            return Cursor(found.name, found.epoch, place.head_seq)
        return Cursor(found.name, found.epoch, 0 if place.seq <= place.earliest_seq else place.seq - 1)

    async def _at_revision(self, revision: int, found: TopicInfo) -> Cursor:
        """Before the first live record of the topic's newest stream whose version is at or above a revision."""
        begin = await self._newest_stream(found)
        # the cursor is in [low, high]: below low all are older, or of another stream, above high none is
        low, high = begin, found.head_seq
        newest: int | None = None  # of those seen that are older
        while low < high:
            middle = (low + high) // 2
            record = await self._first_after(middle, found)
            if record is None:
                high = middle
                continue
            version = int.from_bytes(effective_version(record.version, record.seq), "big")
            if version >= revision:
                high = middle
            else:
                newest = max(newest or 0, version)
                low = min(record.seq, high)
        if low == found.head_seq and (newest is not None or low == begin) and revision > (newest or 0) + 1:
            raise CursorAhead(
                f"the newest revision of topic {found.name} is {newest or 0}, below {revision}",
                topic=found.name,
                headSeq=found.head_seq,
                newestRevision=newest or 0,
                revision=revision,
            )
        if begin and low == begin:
            return Cursor(found.name, found.epoch, begin - 1)  # what was lost between the streams is told
        first = await self._first_after(0, found) if low else None
        return Cursor(found.name, found.epoch, 0 if first is not None and low < first.seq else low)

    async def _newest_stream(self, found: TopicInfo) -> int:
        """Seq of the gap record behind which the topic's newest stream begins; 0 = it holds one alone.

        Reads the gap records: segments without any are passed over by their footers."""
        begin = after_seq = 0
        while True:
            result = await self._link.read_records(
                found.name,
                after_seq=after_seq,
                epoch=found.epoch,
                limit=READ_LIMIT_MAX,
                record_filter=_GAPS_ALONE,
            )
            for item in result.items:
                if isinstance(item, Gap) and item.own_seq <= found.head_seq and _begins_stream(item):
                    begin = item.own_seq
            if (
                result.next_after_seq >= found.head_seq
                or result.epoch != found.epoch
                or result.next_after_seq <= after_seq
            ):
                return begin
            after_seq = result.next_after_seq

    async def _first_after(self, after_seq: int, found: TopicInfo) -> Record | None:
        """The first live record above `after_seq`; None = none."""
        while True:
            result = await self._link.read_records(
                found.name, after_seq=after_seq, epoch=found.epoch, limit=_PROBE_RECORDS, max_bytes=1
            )
            for item in result.items:
                if isinstance(item, Batch) and item.count:
                    return item.slice(0, 1).to_rows()[0]
            if result.caught_up or result.epoch != found.epoch or result.next_after_seq <= after_seq:
                return None
            after_seq = result.next_after_seq


def _start(wanted: TopicRequest, resume: Resume | None) -> Start:
    """The token's place, unless the request has a newer cursor: of a later epoch, or further on in the same one."""
    start = Point.TAIL if wanted.updates_only and wanted.start is Point.SNAPSHOT else wanted.start
    if resume is None or resume.state is ResumeState.START:
        return start
    if isinstance(start, Cursor) and start.epoch > resume.cursor.epoch:
        return start
    if isinstance(start, Cursor) and start.epoch == resume.cursor.epoch:
        # a cursor at a snapshot's own point was given at its end: the snapshot is complete
        oldest = resume.cursor.seq + (0 if resume.state is not ResumeState.LOG and resume.cursor.seq else 1)
        if start.seq >= oldest:
            return start
    return resume.cursor if resume.state is ResumeState.LOG else resume


def _in_snapshot(resume: Resume, found: TopicInfo, *, heals: bool, resumes: bool) -> StartPosition:
    """A snapshot that broke off; of another topic of this name it begins anew. Raises CursorAhead."""
    same = resume.cursor.epoch == found.epoch
    if same and resume.cursor.seq > found.head_seq:
        raise _ahead(resume.cursor, found)
    after_key = resume.after_key if same and resumes else b""
    return StartPosition(
        Phase.SNAPSHOT,
        found.epoch,
        resume.cursor.seq if after_key else 0,
        found.head_seq,
        heals=heals,
        resumes=resumes,
        after_key=after_key,
    )


def _at_cursor(cursor: Cursor, found: TopicInfo, *, heals: bool, resumes: bool) -> StartPosition:
    if cursor.epoch not in (0, found.epoch):
        old = cursor.epoch, cursor.seq
        return StartPosition(Phase.LOG, found.epoch, 0, found.head_seq, *old, heals=heals, resumes=resumes)
    return StartPosition(Phase.LOG, found.epoch, cursor.seq, found.head_seq, heals=heals, resumes=resumes)


def _ahead(cursor: Cursor, found: TopicInfo) -> CursorAhead:
    return CursorAhead(
        f"the head of topic {found.name} is {found.head_seq}, below the cursor {cursor.seq}",
        topic=found.name,
        headSeq=found.head_seq,
        cursorSeq=cursor.seq,
    )


def _begins_stream(gap: Gap) -> bool:
    """Whether a source's gap is the one of an unknown end, behind which a stream that took another's place is copied."""
    return gap.reason == GapReason.SOURCE_GAP and not gap.source_last
