"""Names, plans and manifests of an export. Values and their JSON; no cluster, no Spark.

    topic=<t>/day=<YYYY-MM-DD>/part-<epoch>-<first>-<last>.parquet     records of one split, of one UTC day of their commit
    _eddyline/<t>/<epoch>-<first>.plan.json                            a range and its splits, before anything is written
    _eddyline/<t>/<epoch>-<first>-<end>.manifest.json                  what became of it: the bookmark

Numbers in names have 20 digits, so that names sort as the log does. A topic's `:` is `%3A` in names.
I1: an epoch and a first seq have one plan for ever: whoever tries again, or at the same time, does the same work over the
same names.
I2: a manifest closes: rows + gaps + deleted = end_seq - first_seq.
I3: manifests of an epoch join on: each begins where one before it ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from eddyline.core.errors import DataCorrupt, InvalidArgument
from eddyline.export.split.pieces import TopicSplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT: Final = 1
STATE: Final = "_eddyline"
NAME_BYTES_MAX: Final = 255
"""Of a directory's name on every common file system."""
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Day of gap rows, which have no time: read as null by whoever reads partitions in Hive's form."""
LOST_LISTED_MAX: Final = 1_000
"""Ranges that a manifest lists; `gaps` counts all."""
_PLAN: Final = re.compile(r"(\d{20})-(\d{20})\.plan\.json")
_MANIFEST: Final = re.compile(r"(\d{20})-(\d{20})-(\d{20})\.manifest\.json")
_PART: Final = re.compile(r"part-(\d{20})-(\d{20})-(\d{20})\.parquet")
_TEMPORARY: Final = re.compile(r"_part-\d{20}-\d{20}-\d{20}\.parquet\.[0-9a-f]+\.tmp")


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one topic: `first_seq` inclusive, `end_seq` exclusive."""

    topic: str
    epoch: int
    first_seq: int
    end_seq: int

    @property
    def length(self) -> int:
        """Seqs in it."""
        return self.end_seq - self.first_seq


@dataclass(frozen=True, slots=True)
class Plan:
    """A span, and the splits that cover it: first and last seq, records at most, bytes at the store. `created_ms` = when the
    topic was made: with its epoch it tells it from any other store's."""

    span: Span
    splits: tuple[tuple[int, int, int, int], ...]
    created_ms: int

    def pieces(self) -> list[TopicSplit]:
        """The splits, to be read."""
        return [
            TopicSplit(self.span.topic, self.span.epoch, first, last, record_count=records, nbytes=nbytes)
            for first, last, records, nbytes in self.splits
        ]

    @classmethod
    def of(cls, span: Span, pieces: Iterable[TopicSplit], *, created_ms: int) -> Plan:
        """The plan of pieces that cover a span."""
        splits = tuple((piece.first, piece.last, piece.record_count, piece.nbytes) for piece in pieces)
        return cls(span, splits, created_ms)


@dataclass(frozen=True, slots=True)
class PartFile:
    """A finished file: `xxh3` of its bytes, in hex."""

    name: str
    day: str
    rows: int
    bytes: int
    xxh3: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range that is lost, both inclusive, and why."""

    first_seq: int
    last_seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The outcome of one span of seqs. `gap_rows` are rows of files that stand for gaps, and are in no other count.
    `abandoned` = the topic went away before it was all there: what is missing is in `gaps`."""

    span: Span
    rows: int
    gaps: int
    deleted: int
    files: tuple[PartFile, ...]
    lost: tuple[LostRange, ...] = ()
    gap_rows: int = 0
    abandoned: bool = False

    def __post_init__(self) -> None:
        assert self.rows + self.gaps + self.deleted == self.span.length, "I2"


def topic_dir(topic: str) -> str:
    """Directory of a topic's rows.

    Raises:
        InvalidArgument: the topic's name is too long for one.
    """
    name = f"topic={quote(topic, safe='')}"
    if len(name) > NAME_BYTES_MAX:
        raise InvalidArgument(f"the name of topic {topic} is too long for a directory name", field="topic")
    return name


def state_dir(topic: str) -> str:
    """Directory of a topic's plans and manifests."""
    return f"{STATE}/{quote(topic, safe='')}"


def part_name(piece: TopicSplit, day: str) -> str:
    """Name of the file of a split's records of one day."""
    return f"{topic_dir(piece.topic)}/day={day}/part-{piece.epoch:020d}-{piece.first:020d}-{piece.last:020d}.parquet"


def plan_name(topic: str, epoch: int, first_seq: int) -> str:
    """Name of the plan that begins here."""
    return f"{state_dir(topic)}/{epoch:020d}-{first_seq:020d}.plan.json"


def manifest_name(span: Span) -> str:
    """Name of a span's manifest."""
    return f"{state_dir(span.topic)}/{span.epoch:020d}-{span.first_seq:020d}-{span.end_seq:020d}.manifest.json"


def leftovers(names: Iterable[str], span: Span, kept: Iterable[str]) -> list[str]:
    """Of a topic's files those of a span that are not kept: parts that have no rows any more."""
    wanted = set(kept)
    found = []
    for name in names:
        match = _PART.fullmatch(name.rpartition("/")[2])
        if match is None or name in wanted:
            continue
        epoch, first, last = (int(text) for text in match.groups())
        if epoch == span.epoch and span.first_seq <= first and last < span.end_seq:
            found.append(name)
    return found


def temporary_names(names: Iterable[str]) -> list[str]:
    """Of a topic's files those that were never finished, or are being written."""
    return [name for name in names if _TEMPORARY.fullmatch(name.rpartition("/")[2])]


@dataclass(frozen=True, slots=True)
class History:
    """The content of a topic's state directory."""

    spans: tuple[Span, ...]
    """Of manifests, in order."""
    planned: tuple[tuple[int, int], ...]
    """Epoch and first seq of plans that have no manifest, in order."""

    def bookmark(self, epoch: int) -> int | None:
        """The seq that an epoch's next export begins with; None = it has none yet."""
        ends = [span.end_seq for span in self.spans if span.epoch == epoch]
        return ends[-1] if ends else None

    def last_first(self, epoch: int) -> int | None:
        """First seq of an epoch's last manifest, whose plan has it too; None = it has none yet."""
        firsts = [span.first_seq for span in self.spans if span.epoch == epoch]
        return firsts[-1] if firsts else None

    def other_epoch(self, epoch: int) -> int | None:
        """The newest epoch that was exported and is not this one."""
        others = [span.epoch for span in self.spans if span.epoch != epoch]
        return others[-1] if others else None


def history_of(topic: str, names: Iterable[str]) -> History:
    """Read what the names of a state directory say.

    Raises:
        DataCorrupt: a manifest is missing between others (I3).
    """
    spans: list[Span] = []
    plans: list[tuple[int, int]] = []
    for name in sorted(names):
        last = name.rpartition("/")[2]
        if match := _MANIFEST.fullmatch(last):
            span = Span(topic, *(int(text) for text in match.groups()))
            if spans and spans[-1].epoch == span.epoch and spans[-1].end_seq != span.first_seq:
                raise DataCorrupt(
                    f"a manifest of topic {topic} is missing: seq {spans[-1].end_seq} is next, but {name} starts at"
                    f" {span.first_seq}",
                    file=name,
                )
            spans.append(span)
        elif match := _PLAN.fullmatch(last):
            plans.append((int(match[1]), int(match[2])))
    done = {(span.epoch, span.first_seq) for span in spans}
    return History(tuple(spans), tuple(plan for plan in plans if plan not in done))


def plan_to_json(plan: Plan) -> bytes:
    """A plan's file."""
    return _json(
        {
            "format": FORMAT,
            **asdict(plan.span),
            "created_ms": plan.created_ms,
            "splits": [list(split) for split in plan.splits],
        }
    )


def plan_from_json(content: bytes, name: str) -> Plan:
    """A plan from its file.

    Raises:
        DataCorrupt: it is none of this format.
    """
    found = _parsed(content, name)
    try:
        splits = tuple(
            (int(first), int(last), int(records), int(nbytes)) for first, last, records, nbytes in found["splits"]
        )
        created_ms = int(found["created_ms"])
        span = Span(str(found["topic"]), int(found["epoch"]), int(found["first_seq"]), int(found["end_seq"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataCorrupt(f"{name} is not a plan: {error}", file=name) from error
    if not _covers(span, splits):
        raise DataCorrupt(f"{name}: its splits do not cover its range", file=name)
    return Plan(span, splits, created_ms)


def manifest_to_json(manifest: Manifest) -> bytes:
    """A manifest's file."""
    told = {
        "format": FORMAT,
        **asdict(manifest.span),
        "rows": manifest.rows,
        "gaps": manifest.gaps,
        "deleted": manifest.deleted,
        "gap_rows": manifest.gap_rows,
        "abandoned": manifest.abandoned,
        "lost": [asdict(lost) for lost in manifest.lost[:LOST_LISTED_MAX]],
        "files": [asdict(file) for file in manifest.files],
    }
    return _json(told)


def _covers(span: Span, splits: Sequence[tuple[int, int, int, int]]) -> bool:
    at = span.first_seq
    for first, last, _, _ in splits:
        if first != at or last < first:
            return False
        at = last + 1
    return at == span.end_seq


def _json(told: dict[str, object]) -> bytes:
    return (json.dumps(told, indent=1) + "\n").encode()


def _parsed(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
        version = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"{name} cannot be read: {error}", file=name) from error
    if version != FORMAT:
        raise DataCorrupt(f"{name} has format {version}; this version reads {FORMAT}", file=name)
    return found  # type: ignore[no-any-return]  # what JSON gave, checked where it is used
