"""Fold reads: keys and ranges, each a consistent snapshot whose seq the answer carries.

A batch of keys is read on the fold's own thread, between two writes; a few keys that are in memory are read on the event
loop while that thread is idle. Only the loop gives it work, so no write comes in between there either, and no read waits for
the disk. A range is a view made on the fold's thread and paged through on the reader threads. Log reads see every record of
an answer by the time it is returned.
Threading: event loop; RocksDB calls off it, but for those reads from memory.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt, FoldBehind, NotKv, ScanExpired, TopicNotFound
from eddyline.core.model.read import EntryPage, FoldState, RangePage
from eddyline.core.model.topic import Kind
from eddyline.core.records.fold_entry import decode_entry
from eddyline.core.runtime.logging import fields
from eddyline.store.read.point_read import PointRead, StoredPage, check_keys, read_cached
from eddyline.store.write.validation import check_fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.fold.fold import Fold, FoldView
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.read.point_read import PointReadResult
    from eddyline.store.runtime.workers import Worker

logger = logging.getLogger(__name__)

WAIT_S_MAX: Final = 30.0
NOT_REPORTED: Final = "UNSPECIFIED"
"""The contract's name for the status of a source that has not reported since the store started."""
PAGE_ENTRIES: Final = 1024
PAGE_BYTES: Final = 256 << 10
"""A page: 0.4 ms of RocksDB iteration, which holds the GIL, from warm tables, and a few ms from cold ones."""
SCAN_S_MAX: Final = 300.0
"""A view pins the files it reads: after this time a slow reader must start a new scan after its last key."""


class FoldReader:
    """Reads of every fold of a shard."""

    def __init__(
        self,
        *,
        fold: Fold,
        fold_worker: Worker,
        reader_worker: Worker,
        clock: Clock,
        sources: SourceTable,
    ) -> None:
        self._fold = fold
        self._fold_worker = fold_worker
        self._reader_worker = reader_worker
        self._clock = clock
        self._sources = sources
        self._started_s = clock.monotonic_s()
        self.corrupt_count = 0
        """Reads that hit a damaged block."""

    async def get(self, topic: Topic, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        """As `get_stored`, decoded."""
        page = await self.get_stored(topic, keys, min_seq=min_seq)
        pairs = zip(page.keys, page.values, strict=True)
        return EntryPage(
            page.state, tuple([None if value is None else decode_entry(key, value) for key, value in pairs])
        )

    async def get_stored(self, topic: Topic, keys: Sequence[bytes], *, min_seq: int = 0) -> StoredPage:
        """Read the live entries of `keys` in one snapshot, in the order of `keys`; None where a key is not live.

        Raises:
            NotKv, InvalidArgument (no key, too many, one too long, or more than one message of entries), TopicNotFound
                (deleted meanwhile), FoldBehind (`min_seq` not reached in 30 s), FoldLost, DataCorrupt.
        """
        check_keys(keys)
        await self._wait(topic, min_seq)
        head_seq = topic.head_seq
        with self.counting_damage():
            result = self._read_cached(topic, keys)
            if result is None:
                result = await self._read(topic.id, keys)
        values, fold_seq = result
        await topic.wait_head(fold_seq, self._clock, WAIT_S_MAX)
        _check_there(topic, fold_seq, head_seq)
        return StoredPage(self.state(topic, fold_seq), keys, values)

    def get_cached(self, topic: Topic, keys: Sequence[bytes]) -> StoredPage | None:
        """As `get_stored`, in this step of the loop, of few live keys that are in memory; None = the read must wait.

        Raises:
            as `get_stored`.
        """
        check_keys(keys)
        _check_kv(topic)
        with self.counting_damage():
            result = self._read_cached(topic, keys)
        if result is None or result.fold_seq != topic.head_seq:
            return None
        return StoredPage(self.state(topic, result.fold_seq), keys, result.values)

    def _read_cached(self, topic: Topic, keys: Sequence[bytes]) -> PointReadResult | None:
        return read_cached(self._fold, topic.id, keys) if self._fold_worker.is_idle else None

    async def _read(self, topic_id: int, keys: Sequence[bytes]) -> PointReadResult:
        """Read on the fold's thread."""
        point_read = PointRead(self._fold, topic_id, keys)
        try:
            return await self._fold_worker.submit(point_read.run)
        finally:
            point_read.cancel()

    async def scan(
        self, topic: Topic, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncGenerator[RangePage, None]:
        """Read live entries under a prefix and above `after_key`, in byte order, in one snapshot; at least one page.

        Raises:
            NotKv, TopicNotFound (deleted meanwhile), FoldBehind, TooManyScans, ScanExpired (after 300 s), FoldLost,
                DataCorrupt.
        """
        await self._wait(topic, min_seq)
        head_seq = topic.head_seq

        pending_view = PendingView(self._fold, topic.id)
        try:
            view, fold_seq = await self._fold_worker.submit(partial(pending_view.run, key_prefix, after_key))
            await topic.wait_head(fold_seq, self._clock, WAIT_S_MAX)
            _check_there(topic, fold_seq, head_seq)
            deadline_s = self._clock.monotonic_s() + SCAN_S_MAX
            remaining = limit or 1 << 63
            first = True
            while True:
                if self._clock.monotonic_s() > deadline_s:
                    raise ScanExpired(
                        f"the scan took longer than {SCAN_S_MAX:.0f} s; continue after the last key",
                        scanMsMax=round(SCAN_S_MAX * 1000),
                    )
                page = partial(view.next_batch, min(PAGE_ENTRIES, remaining), PAGE_BYTES)
                with self.counting_damage():
                    batch = await self._reader_worker.submit(page)
                remaining -= batch.count
                if batch.count or first:
                    yield RangePage(self.state(topic, fold_seq), batch if batch.count else None)
                first = False
                if not batch.count or remaining <= 0:
                    return
        finally:
            pending_view.close()

    def state(self, topic: Topic, fold_seq: int) -> FoldState:
        """Return the fold's applied seq and its source's state. A source that has not reported since the store started
        counts as silent since the start: an old fold must not look fresh."""
        source_state, staleness_ms = self._sources.staleness(topic.source)
        if topic.source and not source_state:
            source_state = NOT_REPORTED
            staleness_ms = int((self._clock.monotonic_s() - self._started_s) * 1000)
        return FoldState(fold_seq, topic.id, source_state, staleness_ms)

    @contextmanager
    def counting_damage(self) -> Iterator[None]:
        """Count and log damaged blocks; the next start of the store replaces a damaged fold (`open_fold.py`)."""
        try:
            yield
        except DataCorrupt as error:
            self.corrupt_count += 1
            logger.error("fold_read_met_damage", extra=fields(error=error.message))
            raise

    async def _wait(self, topic: Topic, min_seq: int) -> None:
        _check_kv(topic)
        if not min_seq or await topic.wait_head(min_seq, self._clock, WAIT_S_MAX):
            return
        _check_there(topic, topic.head_seq, topic.head_seq)
        raise FoldBehind(
            f"the fold of topic {topic.name} is at {topic.head_seq}, not at {min_seq}",
            topic=topic.name,
            foldSeq=topic.head_seq,
            minSeq=min_seq,
        )


class _OpenView(NamedTuple):
    view: FoldView
    fold_seq: int


class PendingView:
    """A view being opened on the fold's thread for a scan that may be cancelled meanwhile; it is closed in every case.

    The job and the end of the scan may come in either order: the second one closes the view. Closing twice is harmless.
    """

    def __init__(self, fold: Fold, topic_id: int) -> None:
        self._fold = fold
        self._topic_id = topic_id
        self._view: FoldView | None = None
        self._ended = False

    def run(self, key_prefix: bytes, after_key: bytes) -> _OpenView:
        """Open the view; runs on the fold's thread."""
        view = self._view = self._fold.view(self._topic_id, key_prefix=key_prefix, after_key=after_key)
        if self._ended:
            view.close()
        return _OpenView(view, self._fold.applied(self._topic_id))

    def close(self) -> None:
        """End the scan: close the view now, or as soon as it is open."""
        self._ended = True
        if self._view is not None:
            self._view.close()


def _check_kv(topic: Topic) -> None:
    if topic.kind is not Kind.KV:
        raise NotKv(f"topic {topic.name} has no fold", topic=topic.name)
    check_fold(topic)


def _check_there(topic: Topic, fold_seq: int, head_seq: int) -> None:
    """Raise TopicNotFound if the fold was read after the topic's deletion had emptied it: it is below the head then."""
    if topic.deleted or fold_seq < head_seq:
        raise TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name)
