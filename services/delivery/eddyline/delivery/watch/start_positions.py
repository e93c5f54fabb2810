"""Start positions: the start of each topic of a stream, from its request, its token, and the topic's present state.

A token's position takes precedence over the requested start, unless that is a newer cursor of the same epoch. A time or
a revision is looked up once, and is a position from then on. Revisions grow with the seq within one stream identity, so
a binary search finds the position, with about one short read per bit of the topic's length. A log may hold several
streams in sequence, whose revisions start again: the newest one is searched, after the last gap that marks a new
stream.
A topic that existed according to a token or a cursor with an epoch, and is missing, is reported as deleted in the
stream; any other missing topic fails the stream. No start is before the requested one: a position above the head fails
it.
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
from eddyline.delivery.watch.request import FromRevision, FromTime, StartPoint
from eddyline.delivery.watch.subscription import StartPosition, SubscriptionPhase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.records.record import Record
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.delivery.watch.request import TopicRequest, WatchRequest

LOOK_UPS_AT_ONCE: Final = 16
_PROBE_RECORDS: Final = 16
"""A read for one record's version returns a few: records of op GAP have none."""

_GAPS_ALONE: Final = RecordFilter(key_prefixes=(b"\xff" * KEY_BYTES_MAX,))
"""Gaps always pass a filter, and no key that is text begins so."""

Start = Cursor | Resume | FromTime | FromRevision | StartPoint


class StartResolver:
    """Resolves the starts of a request."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def resolve(
        self, request: WatchRequest, resumes: Mapping[str, Resume], infos: Mapping[str, TopicInfo | TopicNotFound]
    ) -> list[StartPosition]:
        """Return the start position of each topic, in the order of the request. `infos` = present state of the topics.

        Raises:
            TopicNotFound, NotKv, CursorAhead: of the first topic that cannot start. The errors of a read of the store.
        """
        starts: dict[str, StartPosition] = {}
        failures: dict[str, EddylineError] = {}

        async def look_up(topics: Iterator[TopicRequest]) -> None:
            for request_topic in topics:
                start = _start(request_topic, resumes.get(request_topic.topic))
                try:
                    starts[request_topic.topic] = await self._begin(
                        request_topic, start, infos[request_topic.topic], request
                    )
                except EddylineError as error:
                    failures[request_topic.topic] = error
                if failures:
                    return

        topics = iter(request.topics)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(LOOK_UPS_AT_ONCE, len(request.topics))):
                tasks.create_task(look_up(topics))
        if failures:
            raise next(
                failures[request_topic.topic] for request_topic in request.topics if request_topic.topic in failures
            )
        return [starts[request_topic.topic] for request_topic in request.topics]

    async def _begin(
        self, wanted: TopicRequest, start: Start, info: TopicInfo | TopicNotFound, request: WatchRequest
    ) -> StartPosition:
        if isinstance(info, TopicNotFound):
            cursor = start.cursor if isinstance(start, Resume) else start
            if isinstance(cursor, Cursor) and cursor.epoch:
                return StartPosition(SubscriptionPhase.GONE, cursor.epoch, cursor.seq, 0)
            raise info
        heals = wanted.heals and info.kind is Kind.KV
        if isinstance(start, Resume) and info.kind is Kind.KV:
            return _in_snapshot(start, info, heals=heals, resumes=request.resume_snapshots)
        if start is StartPoint.SNAPSHOT:
            if info.kind is not Kind.KV:
                raise NotKv(
                    f"topic {wanted.topic} has no fold, so no snapshot; start at a cursor, TAIL or EARLIEST",
                    topic=wanted.topic,
                )
            resumes = request.resume_snapshots
            return StartPosition(SubscriptionPhase.SNAPSHOT, info.epoch, 0, info.head_seq, heals=heals, resumes=resumes)
        cursor = await self._cursor(start, info)
        if cursor is start and cursor.epoch in (0, info.epoch) and cursor.seq > info.head_seq:
            raise _ahead(cursor, info)
        return _at_cursor(cursor, info, heals=heals, resumes=request.resume_snapshots)

    async def _cursor(self, start: Start, info: TopicInfo) -> Cursor:
        """Return the cursor of a start in the log; a topic recreated without a fold delivers its whole log, after a gap."""
        match start:
            case Cursor():
                return start
            case Resume():
                return start.cursor
            case FromTime():
                return await self._at_time(start.ts_ms, info)
            case FromRevision():
                return await self._at_revision(start.revision, info)
            case StartPoint.TAIL | StartPoint.SNAPSHOT:
                return Cursor(info.name, info.epoch, info.head_seq)
            case StartPoint.EARLIEST:
                return Cursor(info.name, info.epoch, 0)
            case _:
                assert_never(start)

    async def _at_time(self, ts_ms: int, info: TopicInfo) -> Cursor:
        """Return the cursor before the first live record at or after a time."""
        match = await self._link.find_seq(info.name, commit_time_ms=ts_ms)
        if match.epoch != info.epoch:
            return Cursor(info.name, info.epoch, info.head_seq)  # just recreated, which the tail reports in its turn
        if not match.found:
            return Cursor(info.name, info.epoch, match.head_seq)
        return Cursor(info.name, info.epoch, 0 if match.seq <= match.earliest_seq else match.seq - 1)

    async def _at_revision(self, revision: int, info: TopicInfo) -> Cursor:
        """Return the cursor before the first live record at or after a revision, in the topic's newest stream."""
        stream_start = await self._newest_stream(info)
        # the cursor is in [low, high]: records below low are older, or of another stream; none above high is
        low, high = stream_start, info.head_seq
        newest: int | None = None  # newest version of the older records seen
        while low < high:
            middle = (low + high) // 2
            record = await self._first_after(middle, info)
            if record is None:
                high = middle
                continue
            version = int.from_bytes(effective_version(record.version, record.seq), "big")
            if version >= revision:
                high = middle
            else:
                newest = max(newest or 0, version)
                low = min(record.seq, high)
        if low == info.head_seq and (newest is not None or low == stream_start) and revision > (newest or 0) + 1:
            raise CursorAhead(
                f"the newest revision of topic {info.name} is {newest or 0}, below {revision}",
                topic=info.name,
                headSeq=info.head_seq,
                newestRevision=newest or 0,
                revision=revision,
            )
        if stream_start and low == stream_start:
            return Cursor(info.name, info.epoch, stream_start - 1)  # the gap between the streams is reported
        first = await self._first_after(0, info) if low else None
        return Cursor(info.name, info.epoch, 0 if first is not None and low < first.seq else low)

    async def _newest_stream(self, info: TopicInfo) -> int:
        """Return the seq of the gap record after which the topic's newest stream begins; 0 = it has only one stream.

        Reads the gap records: segments without any are skipped by their footers.
        """
        stream_start = after_seq = 0
        while True:
            result = await self._link.read_records(
                info.name,
                after_seq=after_seq,
                epoch=info.epoch,
                limit=READ_LIMIT_MAX,
                record_filter=_GAPS_ALONE,
            )
            for item in result.items:
                if isinstance(item, Gap) and item.own_seq <= info.head_seq and _begins_stream(item):
                    stream_start = item.own_seq
            if (
                result.next_after_seq >= info.head_seq
                or result.epoch != info.epoch
                or result.next_after_seq <= after_seq
            ):
                return stream_start
            after_seq = result.next_after_seq

    async def _first_after(self, after_seq: int, info: TopicInfo) -> Record | None:
        """Return the first live record above `after_seq`; None = none."""
        while True:
            result = await self._link.read_records(
                info.name, after_seq=after_seq, epoch=info.epoch, limit=_PROBE_RECORDS, max_bytes=1
            )
            for item in result.items:
                if isinstance(item, Batch) and item.count:
                    return item.slice(0, 1).to_rows()[0]
            if result.caught_up or result.epoch != info.epoch or result.next_after_seq <= after_seq:
                return None
            after_seq = result.next_after_seq


def _start(wanted: TopicRequest, resume: Resume | None) -> Start:
    """Return the token's position, unless the request has a newer cursor: of a later epoch, or ahead in the same one."""
    start = StartPoint.TAIL if wanted.updates_only and wanted.start is StartPoint.SNAPSHOT else wanted.start
    if resume is None or resume.state is ResumeState.START:
        return start
    if isinstance(start, Cursor) and start.epoch > resume.cursor.epoch:
        return start
    if isinstance(start, Cursor) and start.epoch == resume.cursor.epoch:
        # a cursor at a snapshot's own point was sent at its end: the snapshot is complete
        oldest = resume.cursor.seq + (0 if resume.state is not ResumeState.LOG and resume.cursor.seq else 1)
        if start.seq >= oldest:
            return start
    return resume.cursor if resume.state is ResumeState.LOG else resume


def _in_snapshot(resume: Resume, info: TopicInfo, *, heals: bool, resumes: bool) -> StartPosition:
    """Return the position of an interrupted snapshot; of a recreated topic it starts over. Raises CursorAhead."""
    same = resume.cursor.epoch == info.epoch
    if same and resume.cursor.seq > info.head_seq:
        raise _ahead(resume.cursor, info)
    after_key = resume.after_key if same and resumes else b""
    return StartPosition(
        SubscriptionPhase.SNAPSHOT,
        info.epoch,
        resume.cursor.seq if after_key else 0,
        info.head_seq,
        heals=heals,
        resumes=resumes,
        after_key=after_key,
    )


def _at_cursor(cursor: Cursor, info: TopicInfo, *, heals: bool, resumes: bool) -> StartPosition:
    if cursor.epoch not in (0, info.epoch):
        old = cursor.epoch, cursor.seq
        return StartPosition(SubscriptionPhase.LOG, info.epoch, 0, info.head_seq, *old, heals=heals, resumes=resumes)
    return StartPosition(SubscriptionPhase.LOG, info.epoch, cursor.seq, info.head_seq, heals=heals, resumes=resumes)


def _ahead(cursor: Cursor, info: TopicInfo) -> CursorAhead:
    return CursorAhead(
        f"the head of topic {info.name} is {info.head_seq}, below the cursor {cursor.seq}",
        topic=info.name,
        headSeq=info.head_seq,
        cursorSeq=cursor.seq,
    )


def _begins_stream(gap: Gap) -> bool:
    """Return True if a source's gap has an unknown end: after it a stream is copied that replaced another."""
    return gap.reason == GapReason.SOURCE_GAP and not gap.source_last
