"""What a test asked of a store and what it was told, and the judgement of a store recovered after a crash.

Each append carries values unique in the history, so that every record found can be traced to its append. What must hold:

- acknowledged: there, at its seq, once; after a power failure a DISK append may be missing if an UNSYNCED gap covers its seq
- unknown (asked, never answered): whole or not at all
- refused: not there
- seqs found are ascending and joined without hole by records and gaps; a seq once acknowledged never holds anything else
- a fold is what its log's records give; after a power failure it may be ahead, never behind an entry's newest record
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.core.errors import TopicNotFound
from eddyline.core.record import Gap, GapReason, Op, Record
from eddyline.core.topic import Durability, Kind

if TYPE_CHECKING:
    from eddyline.store.link import LocalLink
    from tests.support.sim_fs import CrashKind


@dataclass
class Asked:
    """One append: its values, and its first seq once it was acknowledged."""

    values: tuple[bytes, ...]
    keys: tuple[bytes, ...] = ()
    first_seq: int = 0
    refused: bool = False


@dataclass
class TopicHistory:
    """One topic: `made` and `gone` are True once told, None while unknown."""

    name: str
    kind: Kind
    durability: Durability
    made: bool = False
    gone: bool | None = False
    epoch: int = 0
    appends: list[Asked] = field(default_factory=list)


@dataclass
class History:
    """All topics, by name; names are not used twice."""

    topics: dict[str, TopicHistory] = field(default_factory=dict)


async def judge(history: History, link: LocalLink, crash: CrashKind) -> None:
    """Hold a recovered store against the history. Raises AssertionError."""
    for topic in history.topics.values():
        try:
            info = await link.get_topic(topic.name)
        except TopicNotFound:
            assert topic.gone is not False or not topic.made, f"topic {topic.name} was acknowledged and is gone"
            continue
        assert topic.gone is not True, f"topic {topic.name} came back"
        assert not topic.epoch or info.epoch == topic.epoch
        records, gaps = await read_all(link, topic.name)
        _judge_sequence(records, gaps, info.head_seq)
        _judge_appends(topic, records, gaps, crash)
        if topic.kind is Kind.KV:
            await _judge_fold(topic, link, records, crash)


async def read_all(link: LocalLink, topic: str) -> tuple[list[Record], list[Gap]]:
    """Every record and gap of a topic."""
    records, gaps, after_seq = list[Record](), list[Gap](), 0
    while True:
        result = await link.read_records(topic, after_seq=after_seq, limit=10_000)
        for item in result.items:
            if isinstance(item, Gap):
                gaps.append(item)
            else:
                records.extend(item.to_rows())
        after_seq = result.next_after_seq
        if result.caught_up:
            return records, gaps


def _judge_sequence(records: list[Record], gaps: list[Gap], head_seq: int) -> None:
    covered = [(record.seq, record.seq) for record in records]
    covered += [(gap.first_seq, gap.seq) for gap in gaps]
    next_seq = 1
    for first, last in sorted(covered):
        assert first == next_seq, f"seq {next_seq} is neither a record nor in a gap"
        next_seq = last + 1
    assert next_seq == head_seq + 1


def _judge_appends(topic: TopicHistory, records: list[Record], gaps: list[Gap], crash: CrashKind) -> None:
    by_value: dict[bytes, int] = {}
    for record in records:
        value = record.data if record.data is not None else record.key
        assert value is not None
        assert value not in by_value, f"{value!r} is there twice"
        by_value[value] = record.seq
    asked_values: set[bytes] = set()
    for append in topic.appends:
        asked_values.update(append.values)
        found = [by_value.get(value) for value in append.values]
        present = [seq for seq in found if seq is not None]
        assert len(present) in (0, len(found)), f"append {append.values} is there in part"
        if append.refused:
            assert not present, f"append {append.values} was refused and is there"
        if present:
            assert present == list(range(present[0], present[0] + len(present)))
            assert append.first_seq in (0, present[0]), f"append {append.values} moved"
        elif append.first_seq:
            last_seq = append.first_seq + len(append.values) - 1
            lost = [g for g in gaps if g.first_seq <= append.first_seq and last_seq <= g.last_seq]
            told = bool(lost) and lost[0].reason == GapReason.UNSYNCED
            assert crash == "power" and topic.durability is Durability.DISK and told, f"{append.values} is lost"
    assert set(by_value) <= asked_values, "records that nobody appended"


async def _judge_fold(topic: TopicHistory, link: LocalLink, records: list[Record], crash: CrashKind) -> None:
    expected: dict[bytes, int] = {}
    for record in records:
        assert record.key is not None
        expected[record.key] = record.seq if record.op == Op.PUT else 0
    written = {key for append in topic.appends for key in append.keys} | set(expected)
    if not written:
        return
    page = await link.batch_get_entries(topic.name, sorted(written))
    for key, entry in zip(sorted(written), page.entries, strict=True):
        seq = entry.seq if entry is not None else 0
        if crash == "kill":
            assert seq == expected.get(key, 0), f"fold and log differ at {key!r}"
        elif entry is not None and expected.get(key, 0) != seq:
            assert seq > expected.get(key, 0), f"fold is behind its log at {key!r}"
