"""A test's requests to a store and its answers, and the check of the store, live and after every recovery.

A topic's history is its requests, in order. A recovered topic must be what the semantics make of some prefix of it:

- acknowledged: it is in the prefix; after power loss an append of a DISK topic may be missing, with all behind it, and an
  UNSYNCED gap then covers every seq that was ever acknowledged. Unanswered: whole or absent. Refused: absent
- floors, counts, bytes, settings, and every gap are exactly those of that prefix, read from several places
- a fold has the entries and the writers' positions of that prefix; after power loss it may be that of a longer one
- a topic acknowledged as created exists, one acknowledged as deleted does not, and an epoch is larger than all before it

The recovered state becomes the new truth, and the history continues. Commit times are those of the test's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from eddyline.core.errors import EpochMismatch, TopicNotEmpty
from eddyline.core.model.topic import Durability, Kind, TopicConfig, TopicInfo
from eddyline.core.records.record import Gap, GapReason, Record
from tests.support.models.retained_log import Retained
from tests.support.models.topic_model import Moment, TopicModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.store.fold.fold import WriterState
    from eddyline.store.shard.shard import Shard

End: TypeAlias = Literal["kill", "power", "clean"]
"""How a life of the store ended."""


@dataclass(eq=False)
class Event:
    """A request to change a topic, as a change of its model. `lasts` = once acknowledged it outlives power loss."""

    do: Callable[[TopicModel], object]
    lasts: bool
    is_acknowledged: bool = False


class Seen(NamedTuple):
    """A topic's observable state: reads by the seq they began after, and its fold's entries and writers if it has one."""

    info: TopicInfo
    reads: dict[int, list[Record | Gap]]
    entries: dict[bytes, Record]
    writers: dict[str, WriterState]


@dataclass(eq=False)
class TopicHistory:
    """One topic of one epoch: `made` and `gone` are True once acknowledged; `gone` None = that is unknown. `removed` = seqs
    acknowledged as deleted."""

    name: str
    kind: Kind
    config: TopicConfig
    made: bool = False
    gone: bool | None = False
    epoch: int = 0
    events: list[Event] = field(default_factory=list)
    removed: frozenset[int] = frozenset()
    settled: TopicModel = field(init=False)

    def __post_init__(self) -> None:
        self.settled = TopicModel(self.kind, Retained(self.config))

    def begin(self, do: Callable[[TopicModel], object], *, lasts: bool) -> Event:
        """Add a request that starts now."""
        event = Event(do, lasts)
        self.events.append(event)
        return event

    def refused(self, event: Event) -> None:
        """Remove a request that was refused for certain."""
        self.events.remove(event)

    def states(self) -> list[TopicModel]:
        """The topic after each prefix of the requests, the empty one first."""
        states = [self.settled.copy()]
        for event in self.events:
            state = states[-1].copy()
            event.do(state)
            states.append(state)
        return states

    @property
    def model(self) -> TopicModel:
        """The topic after all requests."""
        state = self.settled.copy()
        for event in self.events:
            event.do(state)
        return state

    def check_epoch(self, epoch: int) -> None:
        """Check the epoch that a request expects; 0 = any. Raises EpochMismatch."""
        if epoch and epoch != self.epoch:
            raise EpochMismatch(f"the epoch is {self.epoch}")

    def check_deletion(self, now: Moment, *, if_epoch: int, if_empty: bool) -> None:
        """Check the conditions of a deletion. Raises: EpochMismatch, TopicNotEmpty."""
        self.check_epoch(if_epoch)
        model = self.model
        model.kept.settle(now.age_ms)
        if if_empty and not model.is_empty:
            raise TopicNotEmpty("the topic has records")

    def check(self, seen: Seen, now: Moment) -> None:
        """Compare a live topic, with nothing in flight, with the acknowledged history. Raises AssertionError."""
        model = self.model
        model.kept.settle(now.age_ms)
        found = differences(model, seen)
        if not _is_fold_of(model, seen):
            found.append(_fold_difference(model, seen))
        assert not found, f"{self.name}: {found}"

    def recovered(self, seen: Seen, end: End, now: Moment) -> None:
        """Hold the topic against what it may be after this end, and go on from there. Raises AssertionError."""
        assert not self.epoch or seen.info.epoch == self.epoch, f"{self.name} is another topic"
        assert seen.info.kind is self.kind
        self.epoch, self.made, self.gone = seen.info.epoch, True, False
        states = self.states()
        answered = [number for number, event in enumerate(self.events, 1) if event.is_acknowledged]
        lasting = [number for number in answered if self.events[number - 1].lasts]
        acknowledged = max(answered, default=0)
        least = max(lasting, default=0) if end == "power" else acknowledged
        acknowledged_seq = states[acknowledged].kept.head_seq
        assert seen.info.head_seq >= acknowledged_seq, f"{self.name}: an acknowledged seq may come again"
        found = list[str]()
        for number in reversed(range(least, len(states))):
            model, gap_seqs = states[number].copy(), list[int]()
            if model.kept.config.durability is Durability.EPHEMERAL:
                assert end != "clean" or seen.info.head_seq == acknowledged_seq
                model.restart_ephemeral(seen.info.head_seq)
                first = seen.reads[0][0] if seen.reads[0] else None
                if isinstance(first, Gap):  # floors of records in memory are not logged: which of equal ones is open
                    model.kept.evict_reason = GapReason(first.reason)
            else:
                gap_seqs = _lose(model, seen, now)
                if number < acknowledged and not gap_seqs:
                    continue
            model.kept.settle(now.age_ms)
            different = differences(model, seen)
            folds = states[number:] if gap_seqs and end == "power" else [states[number]]
            fold = next((state for state in folds if _is_fold_of(state, seen)), None)
            if fold is None:
                different.append(_fold_difference(states[number], seen))
            elif fold.kept.head_seq > seen.info.head_seq:
                different.append(f"the fold is at {fold.kept.head_seq}, above the head")
            if gap_seqs and end != "power":
                different.append(f"a gap after {end}")
            if gap_seqs and gap_seqs[0] <= acknowledged_seq:
                different.append(f"the gap record {gap_seqs[0]} has a seq that was acknowledged for other records")
            if not different:
                assert fold is not None
                model.fold, model.writers, model.moves = fold.fold, fold.writers, fold.moves
                model.past.recovered(seen.info.head_seq, seen.entries)
                self.settled, self.events = model, []
                return
            found.append(f"after {number} of {len(self.events)} ({acknowledged} acknowledged): {different}")
        raise AssertionError(f"{self.name} is nothing that it may be: {found}")


def _is_fold_of(model: TopicModel, seen: Seen) -> bool:
    """A LOG topic has no fold: its writers are those of its log."""
    return seen.entries == model.fold and (seen.info.kind is not Kind.KV or seen.writers == model.writers)


def _fold_difference(model: TopicModel, seen: Seen) -> str:
    return f"fold {_short(seen.entries)} with writers {seen.writers}, not {_short(model.fold)} with writers {model.writers}"


def differences(model: TopicModel, seen: Seen) -> list[str]:
    """In what a topic is not its model; its fold is the caller's."""
    kept, info = model.kept, seen.info
    shown: dict[str, tuple[object, object]] = {
        "config": (info.config, kept.config),
        "head": (info.head_seq, kept.head_seq),
        "earliest": (info.earliest_seq, kept.earliest_seq),
        "evict floor": (info.evict_floor, kept.evict_floor),
        "count": (info.record_count, kept.record_count),
        "bytes": (info.record_bytes, kept.record_bytes),
    }
    found = [f"{what} {has}, not {due}" for what, (has, due) in shown.items() if has != due]
    for after_seq, items in seen.reads.items():
        due = kept.read(after_seq)
        if items != due:
            found.append(f"after {after_seq} {_short(items)}, not {_short(due)}")
    return found


@dataclass
class History:
    """All topics ever, in the order of their creation requests."""

    topics: list[TopicHistory] = field(default_factory=list)
    erased: list[bytes] = field(default_factory=list)
    """Values that an acknowledged erasure removed from the disk."""

    def begin(self, name: str, kind: Kind, config: TopicConfig) -> TopicHistory:
        """Add a topic whose creation starts now."""
        topic = TopicHistory(name, kind, config)
        self.topics.append(topic)
        return topic

    def created(self, topic: TopicHistory, epoch: int) -> None:
        """The store acknowledged a creation. Raises AssertionError: the epoch is not larger than all before it."""
        assert epoch > max(other.epoch for other in self.topics), "an epoch is used once, and grows"
        topic.epoch, topic.made = epoch, True

    def current(self) -> list[TopicHistory]:
        """The newest topic of each name, except those whose deletion was acknowledged."""
        newest = {topic.name: topic for topic in self.topics}
        return [topic for topic in newest.values() if topic.gone is not True]

    async def check(self, link: Shard, now: Moment) -> None:
        """Compare a live store, with nothing in flight, with the acknowledged history. Raises AssertionError."""
        for topic in self.current():
            topic.check(await look(link, topic.name), now)
        check_totals(link)

    async def judge(self, link: Shard, end: End, now: Moment) -> None:
        """Compare a recovered store with all requests and answers; continue from it. Raises AssertionError."""
        there = {info.name: info for info in await link.list_topics("", "", 10_000)}
        for name in {topic.name for topic in self.topics}:
            self._settle_name(name, there.pop(name, None))
        assert not there, f"no request made {sorted(there)}"
        for topic in self.current():
            topic.recovered(await look(link, topic.name), end, now)
        check_totals(link)

    def _settle_name(self, name: str, info: TopicInfo | None) -> None:
        """Which topic of this name is there."""
        ours = [topic for topic in self.topics if topic.name == name and topic.gone is not True]
        for topic in ours:
            is_it = info is not None and (topic.epoch or info.epoch) == info.epoch and topic is ours[-1]
            if topic.epoch and info is not None and topic.epoch == info.epoch:
                is_it = True
            if not is_it:
                assert topic.gone is None or not topic.made, f"topic {name} was acknowledged and is gone"
                topic.gone = True
        alive = [topic for topic in ours if topic.gone is not True]
        assert len(alive) == int(info is not None), f"topic {name} came back"
        known = {topic.epoch for topic in self.topics if topic.epoch and topic not in alive}
        assert info is None or info.epoch not in known, f"the epoch of {name} was given before"


def check_totals(link: Shard) -> None:
    """The counts of the status equal those of its topics. Raises AssertionError."""
    topics, status = link._table.all(), link.status()
    assert status.segment_count == sum(len(topic.segments) for topic in topics)
    assert status.segment_bytes == sum(topic.segments.file_bytes for topic in topics)
    assert status.unsegmented_bytes == sum(topic.index.frame_bytes for topic in topics)


async def look(link: Shard, name: str) -> Seen:
    """All that a topic shows."""
    info = await link.get_topic(name)
    middle = (info.evict_floor + info.head_seq) // 2
    places = {0, max(info.evict_floor - 1, 0), info.evict_floor, middle, info.head_seq}
    reads = {after_seq: await read_items(link, name, after_seq) for after_seq in sorted(places)}
    entries: dict[bytes, Record] = {}
    writers: dict[str, WriterState] = {}
    if info.kind is Kind.KV:
        writers = link._engine.fold.writers(info.epoch)
        async for page in link.range_entries(name):
            for row in page.batch.to_rows() if page.batch is not None else ():
                assert row.key is not None
                entries[row.key] = row
        found = await link.batch_get_entries(name, [*entries, b"not there"])
        assert list(found.entries) == [*entries.values(), None]
        assert found.state.fold_seq == info.head_seq
    assert await link.get_topic(name) == info, "a look has changed something"
    return Seen(info, reads, entries, writers)


async def read_items(link: Shard, topic: str, after_seq: int = 0, *, limit: int = 10_000) -> list[Record | Gap]:
    """Return all that a topic has above a seq, as rows and gaps in their order; `limit` = records of one read."""
    items, epoch = list[Record | Gap](), 0
    while True:
        result = await link.read_records(topic, after_seq=after_seq, epoch=epoch, limit=limit)
        for item in result.items:
            items.extend([item] if isinstance(item, Gap) else item.to_rows())
        assert result.next_after_seq > after_seq or result.caught_up, "a read stands still"
        after_seq, epoch = result.next_after_seq, result.epoch
        if result.caught_up:
            return items


async def read_all(link: Shard, topic: str) -> tuple[list[Record], list[Gap]]:
    """Every record and gap of a topic."""
    items = await read_items(link, topic)
    return [item for item in items if isinstance(item, Record)], [item for item in items if isinstance(item, Gap)]


def _lose(model: TopicModel, seen: Seen, now: Moment) -> list[int]:
    """Put the UNSYNCED gaps behind the model's head into it, as they are seen. Returns the seqs of their records."""
    gap_seqs = list[int]()
    for item in seen.reads[0]:
        if isinstance(item, Gap) and item.reason == GapReason.UNSYNCED and item.seq > model.kept.head_seq:
            model.lose(item.last_seq, now)
            gap_seqs.append(item.seq)
    return gap_seqs


def _short(content: object) -> str:
    text = str(content)
    return text if len(text) < 600 else f"{text[:300]} … {text[-300:]}"
