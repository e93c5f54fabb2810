"""Checks after a drill. Pure: each check takes what was seen and says in words what is wrong, if anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import Gap, Op, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from eddyline.cli.drill.support.writers import Put

    Item = Record | Gap

FINDINGS_MAX: Final = 10
"""Enough to see the kind of a loss; a broken cluster would otherwise print thousands of lines."""


def every_seq_once(who: str, items: Iterable[Item], *, after_seq: int, head_seq: int) -> list[str]:
    """Every seq behind `after_seq` up to the head came once, in order, as a record or within a gap."""
    findings: list[str] = []
    repeated: list[int] = []
    expected = after_seq + 1
    for item in items:
        first, last = (item.seq, item.seq) if isinstance(item, Record) else _seqs_of(item)
        if first > expected:
            findings.append(f"{who}: seq {expected} to {first - 1} lost")
        elif first < expected:
            repeated.append(first)
        expected = max(expected, last + 1)
    if repeated:
        findings.append(f"{who}: {len(repeated)} seqs came again, the first {repeated[0]}")
    if expected != head_seq + 1:
        findings.append(f"{who}: ends at seq {expected - 1}, the head is {head_seq}")
    return findings[:FINDINGS_MAX]


def every_append_once(items: Iterable[Item], acknowledged: Mapping[str, int]) -> list[str]:
    """Of every writer, the records 0 to the acknowledged number are there once and in order, and nothing else."""
    findings: list[str] = []
    next_number = dict.fromkeys(acknowledged, 0)
    for item in items:
        if isinstance(item, Gap):
            findings.append(f"topic: a gap at {item.first_seq} to {item.last_seq}")
            continue
        writer, _, number = (item.data or b"").decode().partition(":")
        if writer not in next_number or int(number) != next_number[writer]:
            findings.append(f"topic: seq {item.seq} has {writer}:{number}, not {next_number.get(writer)}")
        next_number[writer] = int(number) + 1
    for writer, count in acknowledged.items():
        if next_number[writer] != count:
            findings.append(f"topic: {writer} had {count} records acknowledged, {next_number[writer]} are there")
    return findings[:FINDINGS_MAX]


def deleted_stay_deleted(items: Iterable[Item], doomed_tag: str, dead_seq: int) -> list[str]:
    """No record of the tag lives up to the seq that an acknowledged delete reached."""
    back = [item.seq for item in items if isinstance(item, Record) and item.tag == doomed_tag and item.seq <= dead_seq]
    return [f"topic: {len(back)} deleted records came back, the first at seq {back[0]}"] if back else []


def every_revision_once(
    items: Sequence[Item], acknowledged: Mapping[int, Put], unknown: set[Put], *, may_be_gone: Iterable[int] = ()
) -> list[str]:
    """Every acknowledged revision came once, in order, with its key and value, or lies in a gap; others were attempts.

    `may_be_gone`: revisions that NATS no longer had when they could be read.
    """
    findings: list[str] = []
    seen: set[int] = set()
    previous = 0
    for item in items:
        if isinstance(item, Gap):
            seen.update(range(item.source_first, item.source_last + 1))
            continue
        revision = int.from_bytes(item.version, "big")
        if revision <= previous:
            findings.append(f"bucket: revision {revision} came after {previous}")
        previous = max(previous, revision)
        seen.add(revision)
        put = (item.key or b"").decode(), item.data if item.op == Op.PUT else None
        wanted = acknowledged.get(revision)
        if wanted is None and put not in unknown:
            findings.append(f"bucket: revision {revision} ({put[0]}) was never written")
        elif wanted is not None and put != wanted:
            findings.append(f"bucket: revision {revision} is {put!r}, written was {tuple(wanted)!r}")
    missing = sorted(acknowledged.keys() - seen - set(may_be_gone))
    if missing:
        findings.append(f"bucket: {len(missing)} acknowledged revisions are missing, the first {missing[0]}")
    return findings[:FINDINGS_MAX]


def messages_of(items: Iterable[Item]) -> list[Item]:
    """Records made from messages, and gaps. A delete without a NATS time comes from a resync: its key disappeared without a
    message."""
    return [item for item in items if isinstance(item, Gap) or item.source_ts_ns]


def same_values(who: str, seen: Mapping[bytes, bytes], fold: Mapping[bytes, bytes]) -> list[str]:
    """The live values at a subscriber are those of the fold."""
    differing = sorted(key for key in seen.keys() | fold.keys() if seen.get(key) != fold.get(key))
    return [f"{who}: {len(differing)} keys differ from the fold, the first {differing[0]!r}"] if differing else []


def _seqs_of(gap: Gap) -> tuple[int, int]:
    # A gap record takes one seq of its own; any other gap covers those it names.
    return (gap.seq, gap.seq) if gap.seq else (gap.first_seq, gap.last_seq)
