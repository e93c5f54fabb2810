"""Wait until the store has applied a revision of a bucket.

The stored position of each source that copies the bucket decides: at or past the revision, and of the same stream,
everything up to it is applied, whatever happened to the key since (written again, deleted, filtered). The stream is the
same if its creation time is, if the source is in no state that says otherwise, and if its last applied message is not
from before the write: a stream that was rolled back assigns revisions again that a position has passed. Waiters of one
source share one poll: it reads the position, and then waits for the topic's head to move, at most `POLL_S`, since a
position may move without a record. So a thousand waiters cost the store as much as one.
Failure: while the store is away, polls are retried until the waiter's time is over.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import (
    ApplyPending,
    BucketNotCopied,
    CursorAhead,
    EddylineError,
    InvalidArgument,
    SourceNotFound,
    StoreUnreachable,
    TopicNotFound,
)
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.source import OTHER_STREAM_STATES
from eddyline.core.model.topic import check_name
from eddyline.core.records.record import Op
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep, wait_event
from eddyline.ingest.copy.filter import Filter, describe_source
from eddyline.ingest.copy.position import NO_TIME, decode_position
from eddyline.ingest.resync.resume_check import held_stop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from eddyline.core.model.source import SourceInfo
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.position import StreamPosition

POLL_S: Final = 0.5
"""Bounds the delay until a position is seen that moved without a record (the source keeps none of the messages)."""
RETRY_S_MAX: Final = 1.0
FILTERS_SHOWN: Final = 3
"""Sources whose filters a refusal lists."""

_NOTHING: Final = RecordFilter(ops=(int(Op.APPEND),))
"""Matches no record of a KV topic: the read only returns the head."""


class WrittenRevision(NamedTuple):
    """A write: of the stream created at `created_ns`, not before `since_ns` by NATS's clock."""

    created_ns: int
    revision: int
    since_ns: int


class AppliedWaiter:
    """Waits for positions of sources, one poll a source."""

    def __init__(self, link: StoreLink, *, clock: Clock, rng: Random) -> None:
        self._link = link
        self._clock = clock
        self._rng = rng
        self._watched: dict[str, _WatchedSource] = {}

    async def sources_of(self, bucket: str, key: bytes, source: str = "", *, timeout_s: float) -> tuple[str, ...]:
        """Names of the sources that copy `key` of `bucket`; only `source`, if one is named.

        Raises:
            InvalidName, SourceNotFound: of the one named. BucketNotCopied: none copies the bucket, or this key of it.
            StoreUnreachable: no answer within `timeout_s`.
        """
        if source:
            check_name(source, "source")
        try:
            async with asyncio.timeout(timeout_s):
                infos: Sequence[SourceInfo]
                infos = (await self._link.get_source(source),) if source else await self._link.list_sources()
        except TimeoutError:
            raise StoreUnreachable("the store did not answer in time; nothing was written") from None
        copying = [info.definition for info in infos if info.definition.bucket == bucket]
        if not copying:
            refusal = (
                f"source {source} does not copy bucket {bucket}" if source else f"no source copies bucket {bucket}"
            )
            raise BucketNotCopied(f"{refusal}; nothing was written", bucket=bucket, source=source)
        names = tuple(definition.name for definition in copying if Filter(definition).matches(key))
        if not names:
            filters_text = "; ".join(describe_source(definition) for definition in copying[:FILTERS_SHOWN])
            raise BucketNotCopied(
                f"no source copies this key of bucket {bucket} ({filters_text}); nothing was written",
                bucket=bucket,
                source=source,
            )
        return names

    async def wait(self, source: str, written: WrittenRevision, *, bucket: str, until_s: float) -> None:
        """Wait until `source` has applied `written`, at most to `until_s`.

        Raises:
            ApplyPending: the time is over, or the source is gone.
        """
        watched = self._watched.get(source)
        if watched is None:
            watched = self._watched[source] = _WatchedSource(source, self._link, self._clock, Backoff(self._rng))
        watched.waiters += 1
        try:
            while not watched.covers(written):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0 or watched.gone:
                    raise ApplyPending(
                        f"written into bucket {bucket} at revision {written.revision}, not applied yet by source "
                        f"{source}: {watched.described(written)}",
                        bucket=bucket,
                        revision=written.revision,
                        source=source,
                    )
                if watched.polling:
                    await wait_event(self._clock, watched.polled, left_s)
                else:
                    await watched.poll(written, left_s)
        finally:
            watched.waiters -= 1
            if not watched.waiters:
                del self._watched[source]


class _WatchedSource:
    """One source that has waiters."""

    def __init__(self, name: str, link: StoreLink, clock: Clock, backoff: Backoff) -> None:
        self._name = name
        self._link = link
        self._clock = clock
        self._backoff = backoff
        self._position: StreamPosition | None = None
        self._trouble = ""
        self._state = ""
        self._of_another = False
        self.gone = False
        self.waiters = 0
        self.polling = False
        self.polled = asyncio.Event()
        """Set at the end of the present poll, and replaced by a new one."""

    def covers(self, written: WrittenRevision) -> bool:
        """True = everything up to the revision is applied."""
        position = self._position
        if position is None or self._of_another or position.created_ns != written.created_ns:
            return False
        return position.revision >= written.revision and (
            position.time_ns == NO_TIME or position.time_ns >= written.since_ns
        )

    def described(self, written: WrittenRevision) -> str:
        """Position and state of the source as text."""
        if self._trouble:
            return self._trouble
        revision = self._position.revision if self._position is not None else 0
        of = " of the previous stream" if revision >= written.revision else ""
        return f"it is at revision {revision}{of}, state {self._state or 'not reported'}"

    async def poll(self, written: WrittenRevision, left_s: float) -> None:
        """Read the position; if it does not cover the caller's revision, wait for a change."""
        self.polling = True
        try:
            await self._poll(written, left_s)
        except TimeoutError:
            self._trouble = "the store did not answer in time"
        except (SourceNotFound, TopicNotFound) as error:
            self.gone, self._trouble = True, error.message
        except EddylineError as error:
            # The write is done, whatever fails here: the waiter's error has the last reason.
            self._trouble = f"store: {error.message}"
            await sleep(self._clock, min(self._backoff.next_delay_s(), RETRY_S_MAX, left_s))
        finally:
            self.polling = False
            self.polled.set()
            self.polled = asyncio.Event()

    async def _poll(self, written: WrittenRevision, left_s: float) -> None:
        # The link's own timeout may be longer than the caller's.
        async with asyncio.timeout(left_s):
            info = await self._link.get_source(self._name)
        self._state = info.report.state
        try:
            self._position, self._trouble = decode_position(info.position), ""
            stop_holds = held_stop(info.stop, self._position) is not None
            self._of_another = stop_holds or self._state in OTHER_STREAM_STATES
        except InvalidArgument as error:
            self._position, self._trouble = None, error.message
        self._backoff.reset()
        if self.covers(written):
            return
        await self._wait_head_moved(info, min(POLL_S, left_s))

    async def _wait_head_moved(self, info: SourceInfo, wait_s: float) -> None:
        """Wait until the topic's head differs from that in `info`, at most `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._link.read_records(
                    info.definition.topic,
                    after_seq=info.head_seq,
                    limit=1,
                    wait_ms=max(int(wait_s * 1000), 1),
                    record_filter=_NOTHING,
                )
        except CursorAhead:
            # Another topic of the name: the head in `info` is not its own.
            await sleep(self._clock, wait_s)
        except TimeoutError:
            pass  # the head did not move; the next poll reads the position again
