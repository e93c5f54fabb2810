"""A local fold kept in step: the events of a watch become changes, bases and marks of its keeper.

I1: behind every change the fold is that of the topic at the place it says, under its prefixes.
I2: what was lost is healed: behind a gap, at a cursor that the topic has not reached (a store restored from an older
copy) and every `refresh_s` the whole fold is read again and replaced in one step. Until then the old one is served. A
topic that was deleted leaves an empty fold, and is waited for. Deletes of records by their keys are silent in a topic's
log; a refresh brings them.
Failure: what a watch raises; a full memory and a failed disk end it. Its present content stays readable.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.frame import FoldPosition
from eddyline.client.watch.events import CaughtUp, Lost, Position, Records, SnapshotBegan, SnapshotEnded, TopicGone
from eddyline.client.watch.plan import WatchTopic
from eddyline.core.errors import CursorAhead, DataCorrupt, TopicNotFound
from eddyline.core.records.fold_entry import PLACE, PLAIN_SHAPE, encode_entry
from eddyline.core.records.record import Op
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from eddyline.client.local_fold.frame import Change
    from eddyline.client.local_fold.storage import FoldStorage
    from eddyline.client.watch.events import WatchEvent
    from eddyline.client.watch.plan import Start
    from eddyline.client.watch.watch import Watch
    from eddyline.client.watch.watch_source import WatchSource
    from eddyline.core.errors import EddylineError
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock, Timer

SYNC_S: Final = 1.0
"""How often the file is synced: what a power failure takes, and what comes again after it. One fdatasync a second."""
MARK_S: Final = 30.0
"""How often a quiet fold notes that it is level: what `as_of_ms` lags at most. 56 bytes each, 160 KB a day."""
REFRESH_S: Final = 86_400.0
"""How often the whole fold is read again. A day: as long as the store takes to erase what was deleted."""
HEAL_CAP_S: Final = 30.0
"""How far apart snapshots come when one is behind a gap again and again, or a deleted topic is looked for."""
_REMOVES: Final = frozenset((int(Op.DELETE), int(Op.PURGE)))


class FoldStep(Enum):
    """An event of a local fold that follows its topic."""

    SNAPSHOT = "snapshot"
    """The whole fold was read again."""
    LEVEL = "level"
    """It has what the topic had when the watch began; from here on it follows."""
    GAP = "gap"
    """Records were lost on the way: the whole fold is read again."""
    CURSOR_AHEAD = "cursor_ahead"
    """The topic is behind it: the whole fold is read again."""
    REFRESH = "refresh"
    """Its time is over: the whole fold is read again."""
    DELETED = "deleted"
    """The topic was deleted: nothing is live, until it is made again."""


class _WatchPhase(Enum):
    """The events that a watch may bring next; any other is a defect, which must not reach the file."""

    START = "start"
    BASE = "base"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How a fold is followed; `refresh_s` 0 = never. `on_step` hears what happens, the others as a watch's do."""

    refresh_s: float = REFRESH_S
    on_step: Callable[[FoldStep], None] = noop
    on_retry: Callable[[EddylineError], None] = noop
    on_resume: Callable[[], None] = noop


FOLLOW: Final = FollowOptions()


class Follower:
    """One run of following; `level` and `as_of_ms` say how it stands."""

    def __init__(
        self,
        keeper: FoldStorage,
        client: WatchSource,
        options: FollowOptions,
        *,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        self.level = False
        """True = connected, and with all that delivery had at its newest frame."""
        self._keeper = keeper
        self._client = client
        self._options = options
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=HEAL_CAP_S)
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._phase = _WatchPhase.LOG

    @property
    def as_of_ms(self) -> int:
        """When the fold was last known to be level, in wall clock milliseconds; 0 = not in this run."""
        watch = self._watch
        if not self.level or watch is None or watch.heard_s is None:
            return 0
        return self._clock.now_ms() - round((self._clock.monotonic_s() - watch.heard_s) * 1000)

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            EddylineError: TopicNotFound (of one that never was there), NotKv, FoldLost, DataCorrupt, MemoryFull and what
                else no retry can mend. OSError: of the file system.
        """
        self._tick()
        try:
            heals = False
            while True:
                step = await self._one_watch("snapshot" if heals else self._start())
                heals = step is not FoldStep.DELETED
                self._options.on_step(step)
                if step is not FoldStep.REFRESH:
                    await sleep(self._clock, self._backoff.next_delay_s())
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _start(self) -> Start:
        place = self._keeper.place
        return "snapshot" if place is None or place.deleted else Position(place.epoch, place.seq)

    async def _one_watch(self, start: Start) -> FoldStep:
        """Follow until another watch is needed; why."""
        self._phase = _WatchPhase.START if start == "snapshot" else _WatchPhase.LOG
        scope = self._keeper.scope
        wanted = WatchTopic(scope.topic, start, scope.key_prefixes)
        async with self._client.watch(wanted, on_retry=self._away, on_resume=self._options.on_resume) as watch:
            self._watch = watch
            try:
                while True:
                    event = await self._next(watch)
                    step = FoldStep.REFRESH if event is None else await self._take(event)
                    if step is not None:
                        return step
            except CursorAhead:
                return FoldStep.CURSOR_AHEAD
            except TopicNotFound:
                if self._keeper.place is None:
                    raise
                await self._delete()
                return FoldStep.DELETED
            finally:
                self._lose_touch()

    async def _take(self, event: WatchEvent) -> FoldStep | None:
        """Take an event; why another watch is needed, None = go on."""
        keeper = self._keeper
        match event:
            case Records():
                self._expect(_WatchPhase.BASE if event.in_snapshot else _WatchPhase.LOG)
                if event.in_snapshot:
                    await keeper.add_base(fold_changes(event.records))
                else:
                    await keeper.commit(fold_changes(event.records), self._place(event.position))
            case Lost():
                return FoldStep.GAP
            case SnapshotBegan():
                await keeper.begin_base(self._clock.now_ms())
                self._phase = _WatchPhase.BASE
            case SnapshotEnded():
                self._expect(_WatchPhase.BASE)
                await keeper.finish_base(self._place(event.position), event.count)
                self._phase = _WatchPhase.LOG
                self._options.on_step(FoldStep.SNAPSHOT)
            case CaughtUp():
                self.level = True
                self._backoff.reset()
                keeper.mark(self.as_of_ms)
                self._options.on_step(FoldStep.LEVEL)
            case TopicGone():
                await self._delete()
                return FoldStep.DELETED
            case _:
                pass  # a later version's event changes nothing that is kept
        return None

    def _expect(self, phase: _WatchPhase) -> None:
        if self._phase is not phase:
            raise DataCorrupt(f"the watch sent an event of its {phase.value} in its {self._phase.value}")

    def _place(self, position: Position) -> FoldPosition:
        known = self._keeper.place.as_of_ms if self._keeper.place is not None else 0
        return FoldPosition(position.epoch, position.seq, self.as_of_ms or known)

    async def _delete(self) -> None:
        if self._keeper.place is not None and not self._keeper.place.deleted:
            await self._keeper.delete()

    async def _next(self, watch: Watch) -> WatchEvent | None:
        """Return the next event; None = the fold is due to be read again first."""
        place = self._keeper.place
        if not self._options.refresh_s or place is None or not self.level:
            return await anext(watch)
        left_s = self._options.refresh_s - (self._clock.now_ms() - self._keeper.snapshot_ms) / 1000
        if left_s <= 0:
            return None
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            if task is not None:
                task.cancel()

        task = asyncio.current_task()
        cancels_before = task.cancelling() if task is not None else 0
        timer = self._clock.call_later(left_s, expire)
        try:
            return await anext(watch)
        except asyncio.CancelledError:
            if expired and task is not None and task.uncancel() <= cancels_before:
                return None
            raise
        finally:
            timer.cancel()

    def _away(self, error: EddylineError) -> None:
        self._lose_touch()
        self._options.on_retry(error)

    def _lose_touch(self) -> None:
        self._keeper.mark(self.as_of_ms)
        self.level = False

    def _tick(self) -> None:
        place, as_of_ms = self._keeper.place, self.as_of_ms
        if place is not None and as_of_ms - place.as_of_ms >= MARK_S * 1000:
            self._keeper.mark(as_of_ms)
        self._keeper.upkeep()
        self._timer = self._clock.call_later(SYNC_S, self._tick)


def fold_changes(records: Sequence[Record]) -> list[Change]:
    """The changes that records make to a fold, in order; a record without key, or of an op that folds nothing, makes
    none."""
    changes: list[Change] = []
    for record in records:
        key, op = record.key, record.op
        if key is None:
            continue
        if op == Op.PUT:
            changes.append((key, _entry_of(record)))
        elif op in _REMOVES:
            changes.append((key, None))
    return changes


def _entry_of(record: Record) -> bytes:
    # Answers say the seq as the version where none was set; the entry's bytes need not.
    own = record.version == record.seq.to_bytes(8, "big")
    if record.data is not None and own and not record.meta and record.tag is None and record.node is None:
        return PLAIN_SHAPE + PLACE.pack(record.seq, record.ts_ms, record.source_ts_ns) + record.data
    return encode_entry(record._replace(version=b"") if own else record)
