"""Book of a simulation: appends with their answers, and the checks of the store after each recovery.

Every record carries an id in its tag, unique in the whole simulation, so that each record read is traced to its append. An
append may be tried several times (retries); the book joins the answers of all tries. After a recovery must hold:

- records read after an earlier recovery: there, unchanged: a recovery syncs the records that it serves
- acknowledged: there, at its seqs; missing only after a power failure, in a DISK topic, under an UNSYNCED gap
- unknown: complete or absent, and so from then on; refused: absent; no record twice, none without an append
- a seq once read with a record never has another one
- a writer's position is never ahead of its records, nor behind them; without power loss it never goes back
- expected versions and heads were true for each append that is there
- a fold equals its log, or after a power failure is ahead of it, and then only until the key is written again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from eddyline.core.errors import TopicNotFound
from eddyline.core.model.topic import Durability, Kind
from eddyline.core.records.record import Gap, GapReason, Op, Record
from tests.support.models.history import read_all

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard


@dataclass(eq=False)
class TrackedAppend:
    """One append, over all its tries."""

    ids: tuple[str, ...]
    ops: tuple[int, ...] = ()
    keys: tuple[bytes | None, ...] = ()
    state: Literal["unknown", "acked", "refused"] = "refused"
    first_seq: int = 0
    lost: bool = False
    writer: str = ""
    number: int = 0
    expected_head: int = -1
    expected_version: tuple[bytes, bytes] | None = None


@dataclass(eq=False)
class TopicBook:
    """One topic of one epoch. `gone` is None while the outcome of its deletion is unknown.

    `excused` = moves of writers that only the fold has: it was ahead of its log after a power failure.
    """

    name: str
    epoch: int
    kind: Kind
    durability: Durability
    gone: bool | None = False
    asks: list[TrackedAppend] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    excused: set[tuple[str, int]] = field(default_factory=set)
    ahead: dict[bytes, int] = field(default_factory=dict)

    def see(self, seq: int, record_id: str | None) -> None:
        """Note a record read or acknowledged: no other record may ever have this seq."""
        assert record_id is not None
        assert self.seen.setdefault(seq, record_id) == record_id, (
            f"{self.name}: seq {seq} was {self.seen[seq]} and is {record_id}"
        )

    @property
    def last_seq(self) -> int:
        """The highest seq read by any reader, a gap's own seq included."""
        return max([0, *self.seen, *(gap.seq for gap in self.gaps)])

    def in_gap(self, first_seq: int, last_seq: int) -> bool:
        """Return whether an UNSYNCED gap covers these seqs."""
        return any(
            gap.reason == GapReason.UNSYNCED and gap.first_seq <= first_seq and last_seq <= gap.last_seq
            for gap in self.gaps
        )


class Book:
    """All topics of a simulation, by epoch."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicBook] = {}
        self.names: dict[str, tuple[Kind, Durability]] = {}

    def current(self, name: str) -> TopicBook | None:
        """Return the newest topic of this name that is not known to be deleted."""
        alive = [topic for topic in self.topics.values() if topic.name == name and topic.gone is not True]
        return max(alive, key=lambda topic: topic.epoch) if alive else None

    def made(self, name: str, epoch: int) -> TopicBook:
        """Note a topic whose creation was acknowledged, or that exists after a crash."""
        kind, durability = self.names[name]
        assert epoch not in self.topics, "an epoch is used once"
        older = [topic.epoch for topic in self.topics.values() if topic.name == name]
        assert epoch > max(older, default=0), "epochs grow"
        topic = self.topics[epoch] = TopicBook(name, epoch, kind, durability)
        return topic

    async def check(self, link: Shard, *, power: bool) -> None:
        """Check a recovered store, before any use, against the book. `power` = a power failure since the last check."""
        for name in sorted(self.names):
            existing = self.current(name)
            try:
                info = await link.get_topic(name)
            except TopicNotFound:
                assert existing is None or existing.gone is None, f"topic {name} was acknowledged and is gone"
                if existing is not None:
                    existing.gone = True
                continue
            if existing is None or info.epoch != existing.epoch:
                assert existing is None or existing.gone is None, f"topic {name} was made anew by nobody"
                if existing is not None:
                    existing.gone = True
                existing = self.made(name, info.epoch)
            existing.gone = False
            await _TopicCheck(existing, link, power).run()


class _TopicCheck:
    """Checks one topic after one recovery."""

    def __init__(self, topic: TopicBook, link: Shard, power: bool) -> None:
        self.topic = topic
        self.link = link
        self.power = power
        self.may_lose = power and topic.durability is Durability.DISK
        self.seqs: dict[str, int] = {}

    async def run(self) -> None:
        topic = self.topic
        records, gaps = await read_all(self.link, topic.name)
        head_seq = (await self.link.get_topic(topic.name)).head_seq
        self._sequence(records, gaps, head_seq)
        assert records[: len(topic.records)] == topic.records, f"{topic.name}: the past has changed"
        assert gaps[: len(topic.gaps)] == topic.gaps, f"{topic.name}: told gaps have changed"
        assert self.may_lose or len(gaps) == len(topic.gaps), f"{topic.name}: a gap without a loss"
        topic.records, topic.gaps = records, gaps
        for record in records:
            assert record.tag is not None
            assert record.tag not in self.seqs, f"{topic.name}: {record.tag} is there twice"
            self.seqs[record.tag] = record.seq
            topic.see(record.seq, record.tag)
        self._positions()
        for ask in topic.asks:
            self._ask(ask)
        nobodys = self.seqs.keys() - {record_id for ask in topic.asks for record_id in ask.ids}
        assert not nobodys, f"{topic.name}: nobody appended {sorted(nobodys)[:3]}"
        if topic.kind is Kind.KV:
            await self._fold()

    def _sequence(self, records: list[Record], gaps: list[Gap], head_seq: int) -> None:
        spans = [(record.seq, record.seq) for record in records] + [(gap.first_seq, gap.seq) for gap in gaps]
        next_seq = 1
        for first, last in sorted(spans):
            assert first == next_seq, f"{self.topic.name}: seq {next_seq} is neither a record nor in a gap"
            next_seq = last + 1
        assert next_seq == head_seq + 1
        times = [record.ts_ms for record in records]
        assert times == sorted(times), "commit times go back"

    def _ask(self, ask: TrackedAppend) -> None:
        topic, seqs = self.topic, [self.seqs.get(record_id) for record_id in ask.ids]
        present = [seq for seq in seqs if seq is not None]
        assert len(present) in (0, len(seqs)), f"{topic.name}: {ask.ids} is there in part"
        if present:
            assert ask.state != "refused", f"{topic.name}: {ask.ids} was refused and is there"
            assert not ask.lost, f"{topic.name}: {ask.ids} was lost and came back"
            assert present == list(range(present[0], present[0] + len(present)))
            assert ask.first_seq in (0, present[0]), f"{topic.name}: {ask.ids} moved"
            ask.state, ask.first_seq = "acked", present[0]
            self._conditions(ask)
        elif ask.state == "acked" and not ask.lost:
            # A retry may have been acknowledged by a fold that is ahead of its log.
            assert self.may_lose or (ask.writer, ask.number) in topic.excused, f"{topic.name}: {ask.ids} is lost"
            assert not ask.first_seq or topic.in_gap(ask.first_seq, ask.first_seq + len(ask.ids) - 1)
            ask.lost = True
        elif ask.state == "unknown":
            ask.state = "refused"

    def _conditions(self, ask: TrackedAppend) -> None:
        topic = self.topic
        if ask.expected_head >= 0:
            assert ask.first_seq == ask.expected_head + 1, f"{topic.name}: {ask.ids} is not where the head was"
        if ask.expected_version is None:
            return
        key, version = ask.expected_version
        before = [record for record in topic.records if record.key == key and record.seq < ask.first_seq]
        last_seq = before[-1].seq if before else 0
        if any(last_seq < gap.seq < ask.first_seq for gap in topic.gaps):
            return  # the fold may have had more than the log
        live = bool(before) and before[-1].op == Op.PUT
        expected = last_seq.to_bytes(8, "big") if live else b""
        assert version == expected, f"{topic.name}: {ask.ids} went in over another version"

    def _positions(self) -> None:
        topic = self.topic
        writers = self.link._table.get(topic.name).writers
        moves: dict[str, list[TrackedAppend]] = {}
        for ask in topic.asks:
            if ask.writer:
                moves.setdefault(ask.writer, []).append(ask)
        for writer, asks in sorted(moves.items()):
            stored = number_of(writers.get(writer).stored)
            assert number_of(writers.get(writer).position) == stored
            there = [ask.number for ask in asks if ask.ids[0] in self.seqs]
            assert len(there) == len(set(there)), f"{topic.name}: {writer} made a move twice"
            assert max(there, default=0) <= stored, f"{topic.name}: {writer} is behind its records"
            known = topic.positions.get(writer, 0)
            assert stored >= known or self.may_lose, f"{topic.name}: {writer} went back from {known} to {stored}"
            for number in sorted({ask.number for ask in asks if ask.number <= stored} - set(there)):
                told = (
                    topic.kind is Kind.KV and bool(topic.gaps) and (self.may_lose or (writer, number) in topic.excused)
                )
                assert told, f"{topic.name}: {writer} is at {stored}, and its {number} is not there"
                topic.excused.add((writer, number))
            topic.positions[writer] = stored

    async def _fold(self) -> None:
        topic = self.topic
        expected: dict[bytes, int] = {}
        for record in topic.records:
            assert record.key is not None
            expected[record.key] = record.seq if record.op == Op.PUT else 0
        keys = sorted({key for ask in topic.asks for key in ask.keys if key is not None} | expected.keys()) or [b"none"]
        page = await self.link.batch_get_entries(topic.name, keys)
        assert page.state.fold_seq == (await self.link.get_topic(topic.name)).head_seq
        ranged = [
            row async for rows in self.link.range_entries(topic.name) if rows.batch for row in rows.batch.to_rows()
        ]
        assert ranged == [entry for entry in page.entries if entry is not None]
        ahead: dict[bytes, int] = {}
        for key, entry in zip(keys, page.entries, strict=True):
            seq, log_seq = entry.seq if entry is not None else 0, expected.get(key, 0)
            if seq == log_seq:
                continue
            ahead[key] = seq
            if key in topic.ahead and topic.ahead[key] == seq:
                continue
            assert self.may_lose, f"{topic.name}: fold and log differ at {key!r}: {seq}, not {log_seq}"
            if seq:
                assert topic.in_gap(seq, seq), f"{topic.name}: the fold is not ahead of its log at {key!r}"
            else:
                erased = [
                    a for a in topic.asks for k, op in zip(a.keys, a.ops, strict=True) if k == key and op != Op.PUT
                ]
                assert any(ask.ids[0] not in self.seqs for ask in erased), f"{topic.name}: {key!r} is lost"
        topic.ahead = ahead


def position_of(number: int) -> bytes:
    """Return a writer's position after its move `number`."""
    return number.to_bytes(4, "big") if number else b""


def number_of(position: bytes) -> int:
    """Return the number of the move that led to a position."""
    return int.from_bytes(position, "big")
