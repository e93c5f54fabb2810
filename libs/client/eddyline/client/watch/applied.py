"""A watch by callback: batches are applied one after the other, and the cursors are stored behind each.

    await watch_applied(client, "prices", write_to_database, cursors=CursorFile(Path("prices.cursor")))

At least once: cursors are stored only after `apply` returned, so a crash in between brings the batch again, and `apply`
should be idempotent (by key, or by seq). Exactly once: where `apply` stores `batch.cursors` itself, in the transaction
of what it does, and the next run is given them as a mapping.
I1: a batch is not begun before the one before it was applied and its cursors stored; nothing is skipped.
So the place where a topic without a cursor begins (a tail's, say) is settled and stored before anything of it comes;
where `apply` keeps the cursors, they are in the first batch. Only one that begins with a snapshot has none until its
end.
I2: stored cursors never lie behind what was not applied: within a snapshot they stay until its end was applied, so that
it comes again, and so they do before a gap that a snapshot is to heal. Any other gap moves them once it was applied.
I3: they follow a watch whose filters hide all that comes, a heartbeat behind it: a batch without events gives an
`apply` that keeps them; where they are kept for it, it is not called.
I4: a topic that was deleted keeps its cursor, whose epoch says that it had been there: a watch that starts at it has
`TopicGone` again and goes on with the others, or, where the name was re-created, a gap RECREATED and all of the new
topic. Bounded: what is read ahead is at most another batch, `READ_AHEAD_BYTES`, and a frame.
Failure: an exception of `apply`, or of storing, ends it as itself, with the cursors where they were. A cancel does too;
a batch that was being applied by then is awaited where it cannot be cancelled, and its cursors are stored.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eddyline.client.watch.events import (
    Lost,
    Position,
    Records,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotResumed,
    TopicGone,
)
from eddyline.client.watch.plan import wanted_topics
from eddyline.client.watch.worker_thread import WorkerThread
from eddyline.core.errors import EddylineError, InvalidArgument
from eddyline.core.records.record_sequence import key_data_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eddyline.client.watch.cursor_file import CursorStore
    from eddyline.client.watch.events import WatchEvent
    from eddyline.client.watch.plan import Start, WatchTopic
    from eddyline.client.watch.watch import Watch
    from eddyline.client.watch.watch_source import WatchSource
    from eddyline.core.records.record import Record

BATCH_RECORDS: Final = 1_000
BATCH_RECORDS_MAX: Final = 100_000
READ_AHEAD_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events in order, and the place per topic behind them: what a watch that goes on after this batch starts at.

    Without events the places alone have moved, behind what the filters hide: only for who keeps them, by a mapping.
    """

    events: tuple[WatchEvent, ...]
    cursors: Mapping[str, Position]

    def records(self) -> Iterator[Record]:
        """All records of the batch, for who watches one topic and does not mind where they are from."""
        for event in self.events:
            if isinstance(event, Records):
                yield from event.records


Apply = Callable[[WatchBatch], Awaitable[None] | None]
"""The consumer of batches: a coroutine function, which runs on the loop, or any other, on one thread throughout."""


@dataclass(frozen=True, slots=True)
class AppliedOptions:
    """`batch_records`: the most records in a batch, 1 = record by record. The others are as those of `Client.watch`."""

    start: Start = "snapshot"
    key_prefixes: tuple[bytes, ...] = ()
    batch_records: int = BATCH_RECORDS
    on_retry: Callable[[EddylineError], None] | None = None
    on_resume: Callable[[], None] | None = None


APPLIED: Final = AppliedOptions()


async def watch_applied(
    client: WatchSource,
    topics: str | WatchTopic | Sequence[str | WatchTopic],
    apply: Apply,
    *,
    cursors: CursorStore | Mapping[str, Position],
    options: AppliedOptions = APPLIED,
) -> None:
    """Watch topics and apply what comes, until cancelled or until every topic was deleted.

    `cursors`: where they are kept; a mapping = where to start, `apply` keeping them itself. A topic that has none there
    starts as the watch says, and where that is now is stored before the first event.

    Raises:
        EddylineError: what a watch raises; what came before it is applied first. InvalidArgument: `batch_records` is
            not 1 to `BATCH_RECORDS_MAX`. And whatever `apply` and `cursors` raise.
    """
    if not 1 <= options.batch_records <= BATCH_RECORDS_MAX:
        raise InvalidArgument(f"a batch takes 1 to {BATCH_RECORDS_MAX} records", field="batch_records")
    worker = WorkerThread("watch-applied")
    try:
        store = None if isinstance(cursors, Mapping) else cursors
        stored = dict(cursors if isinstance(cursors, Mapping) else await worker.run(cursors.load))
        wanted = wanted_topics(topics, start=options.start, key_prefixes=options.key_prefixes)
        wanted = [replace(topic, start=stored.get(topic.name, topic.start)) for topic in wanted]
        async with client.watch(wanted, on_retry=options.on_retry, on_resume=options.on_resume) as watch:
            known = watch.positions
            await watch.settle()
            stored = watch.positions
            if store is not None and stored != known:
                await worker.run(lambda: store.save(stored))
            await _Applying(watch, apply, worker, store, stored, batch_records=options.batch_records).run()
    finally:
        worker.close()


@dataclass(slots=True)
class _Moved:
    """Places that moved behind what filters hide, since the event before: the newest of each topic."""

    places: dict[str, Position]


class _Applying:
    """One watch, read ahead on one task and applied on another."""

    def __init__(
        self,
        watch: Watch,
        apply: Apply,
        worker: WorkerThread,
        store: CursorStore | None,
        cursors: dict[str, Position],
        *,
        batch_records: int,
    ) -> None:
        self._watch = watch
        self._apply = apply
        self._worker = worker
        self._store = store
        self._cursors = cursors
        self._batch_records = batch_records
        self._on_loop = inspect.iscoroutinefunction(apply) or inspect.iscoroutinefunction(
            getattr(apply, "__call__", None)  # noqa: B004 # an object whose call is a coroutine function
        )
        self._ahead: deque[WatchEvent | _Moved] = deque()
        self._ahead_records = 0
        self._ahead_bytes = 0
        self._snapshots: set[str] = set()
        self._moved = asyncio.Event()
        self._failure: EddylineError | None = None
        self._over = False
        watch.on_progress = self._on_progress

    async def run(self) -> None:
        """Until all is applied.

        Raises:
            as `watch_applied`.
        """
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read())
            try:
                await self._apply_all()
            except Exception as error:  # raised below as itself: out of here it would come in a group
                failure = error
            reading.cancel()
        if failure is not None:
            raise failure

    async def _read(self) -> None:
        try:
            async for event in self._watch:
                for piece in _pieces(event, self._batch_records):
                    while self._ahead_records >= self._batch_records or self._ahead_bytes >= READ_AHEAD_BYTES:
                        await self._wait()
                    self._ahead.append(piece)
                    self._count(piece, 1)
                    self._moved.set()
        except EddylineError as error:
            self._failure = error
        self._over = True
        self._moved.set()

    async def _apply_all(self) -> None:
        while True:
            while not self._ahead:
                if self._over:
                    if self._failure is not None:
                        raise self._failure
                    return
                await self._wait()
            await self._apply_one(self._take())

    def _take(self) -> WatchBatch:
        events: list[WatchEvent] = []
        left = self._batch_records
        while self._ahead and left >= _records_in(self._ahead[0]):
            event = self._ahead.popleft()
            if isinstance(event, _Moved):
                self._cursors.update(event.places)
                continue
            events.append(event)
            self._count(event, -1)
            left -= _records_in(event)
            self._move_cursors(event)
        self._moved.set()
        return WatchBatch(tuple(events), dict(self._cursors))

    def _move_cursors(self, event: WatchEvent) -> None:
        match event:
            case Records() if not event.in_snapshot:
                self._cursors[event.topic] = event.position
            case Lost() if event.topic not in self._snapshots:
                # Where it is to be healed, this is the place before it.
                self._cursors[event.topic] = event.position
            case SnapshotBegan() | SnapshotResumed():
                self._snapshots.add(event.topic)
            case SnapshotEnded():
                self._snapshots.discard(event.topic)
                self._cursors[event.topic] = event.position
            case TopicGone():
                self._cursors.setdefault(event.topic, Position(event.epoch, 0))  # I4
            case _:
                pass  # I2

    def _on_progress(self, topic: str, place: Position) -> None:
        last = self._ahead[-1] if self._ahead else None
        if isinstance(last, _Moved):
            last.places[topic] = place
        else:
            self._ahead.append(_Moved({topic: place}))
        self._moved.set()

    async def _apply_one(self, batch: WatchBatch) -> None:
        if not batch.events and self._store is not None:
            await self._worker.run(lambda: self._save(batch))
            return
        if self._on_loop:
            applied = self._apply(batch)
        else:
            applied = await self._worker.run(lambda: self._apply_here(batch))
        if applied is not None:
            await applied
            await self._worker.run(lambda: self._save(batch))

    def _apply_here(self, batch: WatchBatch) -> Awaitable[None] | None:
        applied = self._apply(batch)
        if applied is None:
            # At once, so that a cancel does not come in between.
            self._save(batch)
        return applied

    def _save(self, batch: WatchBatch) -> None:
        if self._store is not None:
            self._store.save(batch.cursors)

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _count(self, event: WatchEvent, sign: int) -> None:
        self._ahead_records += sign * _records_in(event)
        if isinstance(event, Records):
            self._ahead_bytes += sign * key_data_bytes(event.records)


def _records_in(event: WatchEvent | _Moved) -> int:
    """How much of a batch an event takes."""
    if isinstance(event, _Moved):
        return 0
    return max(1, len(event.records)) if isinstance(event, Records) else 1


def _pieces(event: WatchEvent, records_max: int) -> Iterator[WatchEvent]:
    """An event in parts of at most so many records, each with its place."""
    if not isinstance(event, Records) or len(event.records) <= records_max:
        yield event
        return
    for at in range(0, len(event.records), records_max):
        part = event.records[at : at + records_max]
        last = at + records_max >= len(event.records)
        place = event.position if last or event.in_snapshot else event.position._replace(seq=part[-1].seq)
        sizes = event.data_bytes[at : at + records_max]
        yield replace(event, records=part, position=place, data_bytes=sizes, batch_end=event.batch_end and last)
