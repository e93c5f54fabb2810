"""One topic by the semantics alone: the appends that it takes, the kept part of its log, and the fold of all commits.

`take` decides as the store must: it refuses an append by its ops and keys, its writer, expected versions, expected head or
the topic's caps, in this order, and answers a repeated one with the seqs of the first. It knows nothing of frames, groups
or files. Every event carries its time; commit times never go back. A copy is independent, so a test can compute the outcome
if only some of the requests had happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from eddyline.core.errors import (
    HeadMismatch,
    IdempotencyConflict,
    InvalidArgument,
    InvalidOp,
    KeyRequired,
    NotKv,
    RecordTooLarge,
    StaleFence,
    StalePosition,
    TopicFull,
    VersionMismatch,
)
from eddyline.core.model.topic import Kind
from eddyline.core.records.match import MatchField
from eddyline.core.records.record import Op, Record, effective_version
from eddyline.store.fold.fold import WriterState
from tests.support.models.retained_log import Answer, Full, Retained, counted_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.model.topic import TopicConfig
    from eddyline.core.records.match import Match
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.store.log.append import AppendRequest

KV_OPS: Final = (Op.PUT, Op.DELETE, Op.PURGE)
NO_WRITER: Final = WriterState(0, b"")


class Moment(NamedTuple):
    """When something happens: by the wall clock, which dates commits, and by the time that ages are counted in."""

    wall_ms: int
    age_ms: int


class TakenAppend(NamedTuple):
    """An append that was taken: its rows as requested, their seqs, and its commit time."""

    rows: tuple[Record, ...]
    first_seq: int
    last_seq: int
    ts_ms: int


class DueAnswer(NamedTuple):
    """The answer due to an append: the seqs of its records, or of the append that it repeats by its key or position."""

    append: TakenAppend
    repeats: Literal["", "key", "position"] = ""

    def check(self, answer: AppendResult) -> None:
        """Compare the store's answer. Raises AssertionError."""
        assert answer.deduplicated == bool(self.repeats)
        seqs, due = (answer.first_seq, answer.last_seq), (self.append.first_seq, self.append.last_seq)
        # A store compares positions, and need not know the seqs of the append that moved one.
        assert seqs == due or (self.repeats == "position" and seqs == (0, 0)), f"appended at {seqs}, not {due}"


@dataclass(eq=False)
class Past:
    """All records that a topic had at any time; shared by the copies of a model, so it also holds records that only might
    have existed.

    `removed` = seqs deleted on purpose; `lost` = those that power took, with the seq of the gap record that tells it;
    `erased` = keys taken out of the fold, by the head at that moment; `folds` = the fold as recoveries found it, by the
    head they found.
    """

    rows: dict[int, Record] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    lost: dict[int, int] = field(default_factory=dict)
    erased: dict[int, set[bytes]] = field(default_factory=dict)
    folds: dict[int, dict[bytes, Record]] = field(default_factory=dict)

    def recovered(self, head_seq: int, fold: dict[bytes, Record]) -> None:
        """Records above the head never existed."""
        self.rows = {seq: row for seq, row in self.rows.items() if seq <= head_seq}
        self.folds[head_seq] = dict(fold)


@dataclass
class TopicModel:
    """See the module. `keys` = appends by their idempotency key; `moves` = the append that moved each writer last."""

    kind: Kind
    kept: Retained
    fold: dict[bytes, Record] = field(default_factory=dict)
    last_ts_ms: int = 0
    past: Past = field(default_factory=Past)
    keys: dict[str, TakenAppend] = field(default_factory=dict)
    writers: dict[str, WriterState] = field(default_factory=dict)
    moves: dict[str, TakenAppend] = field(default_factory=dict)

    def copy(self) -> TopicModel:
        """Return an independent copy."""
        return replace(
            self,
            kept=replace(self.kept, rows=list(self.kept.rows)),
            fold=dict(self.fold),
            keys=dict(self.keys),
            writers=dict(self.writers),
            moves=dict(self.moves),
        )

    @property
    def is_empty(self) -> bool:
        """True = no record is left, in the log or, where the log lost it, in the fold; gap records do not count."""
        return not self.fold and not self.kept.records

    def take(self, request: AppendRequest, now: Moment) -> DueAnswer:
        """Commit an append, unless it repeats another one. The caller checks the epoch.

        Raises:
            the error that the store must refuse it with.
        """
        rows = tuple(request.batch.to_rows())
        _check_rows(self.kind, rows, request)
        earlier = self._repeated(rows, request, now)
        if earlier is not None:
            return earlier
        self._check_conditions(request)
        self._check_size(rows)
        first_seq = self.kept.head_seq + 1
        try:
            self.append(rows, now)
        except Full:
            raise TopicFull("the topic is full") from None
        taken = TakenAppend(rows, first_seq, self.kept.head_seq, self.last_ts_ms)
        if request.idempotency_key:
            self.keys[request.idempotency_key] = taken
        if request.writer is not None:
            self.writers[request.writer.writer] = WriterState(request.writer.fence, request.writer.new)
            self.moves[request.writer.writer] = taken
        return DueAnswer(taken)

    def append(self, records: Sequence[Record], now: Moment) -> list[Record]:
        """Commit records; they are returned as placed. Raises: Full."""
        placed = self.kept.append(records, now.age_ms, max(self.last_ts_ms, now.wall_ms))
        self._stamp(now)
        for row in placed:
            self.past.rows[row.seq] = row
            if row.key is not None and row.op == Op.PUT:
                self.fold[row.key] = row
            elif row.key is not None and row.op in (Op.DELETE, Op.PURGE):
                self.fold.pop(row.key, None)
        return placed

    def delete(self, now: Moment, *, before_seq: int = 0, match: Match | None = None) -> Answer:
        """Remove records up to the head on purpose; on a KV topic a key match takes out of the fold too."""
        self._stamp(now)
        self.kept.settle(now.age_ms)
        bound_seq, before = self.kept.head_seq, {row.seq for row in self.kept.rows}
        answer = self.kept.delete(now.age_ms, before_seq=before_seq, match=match, bound_seq=bound_seq)
        self.past.removed |= before - {row.seq for row in self.kept.rows}
        if match is not None and self.kind is Kind.KV and match.field is MatchField.KEY:
            through_seq = min(bound_seq, before_seq - 1) if before_seq else bound_seq
            erased = [key for key, row in self.fold.items() if match.covers(key) and row.seq <= through_seq]
            for key in erased:
                del self.fold[key]
            self.past.erased.setdefault(bound_seq, set()).update(erased)
        self.kept.settle(now.age_ms)
        return answer

    def update(self, now: Moment, config: TopicConfig) -> None:
        """Other settings; what was due by the old ones goes first."""
        if config == self.kept.config:
            return
        self._stamp(now)
        self.kept.settle(now.age_ms)
        self.kept.config = config
        self.kept.settle(now.age_ms)

    def lose(self, last_seq: int, now: Moment) -> None:
        """The store reported a power loss: seqs up to `last_seq` hold nothing, and the next one the gap record."""
        lost = [seq for seq in self.past.rows if self.kept.head_seq < seq <= last_seq]
        gap = self.kept.lose(last_seq - self.kept.head_seq, now.age_ms, self._stamp(now))
        self.past.lost.update(dict.fromkeys(lost, gap.seq))
        self.past.rows[gap.seq] = gap

    def restart_ephemeral(self, head_seq: int) -> None:
        """All was in memory; seqs go on behind `head_seq`."""
        self.kept.head_seq = head_seq
        if self.kept.evict_floor < head_seq:
            self.kept.restart_ephemeral()

    def _repeated(self, rows: tuple[Record, ...], request: AppendRequest, now: Moment) -> DueAnswer | None:
        """Return the answer to a repeated append; None = it is a new one."""
        keyed = self.keys.get(request.idempotency_key) if request.idempotency_key else None
        if keyed is not None and now.age_ms - keyed.ts_ms <= self.kept.config.idempotency_window_ms:
            if keyed.rows != rows:
                raise IdempotencyConflict("the key stands for other content")
            return DueAnswer(keyed, "key")
        move = request.writer
        if move is None:
            return None
        fence, position = self.writers.get(move.writer, NO_WRITER)
        if move.fence < fence:
            raise StaleFence(f"the fence is {fence}", fence=fence)
        if position and move.new == position:
            return DueAnswer(self.moves[move.writer], "position")
        if move.previous != position:
            raise StalePosition("the writer is at another position", position=position.hex())
        return None

    def _check_conditions(self, request: AppendRequest) -> None:
        for key, expected in request.expected_versions:
            entry = self.fold.get(key)
            version = b"" if entry is None else effective_version(entry.version, entry.seq)
            if version != expected:
                raise VersionMismatch(f"key {key!r} has another version", key=key.hex(), version=version.hex())
        head_seq = self.kept.head_seq
        if request.expected_head_seq is not None and request.expected_head_seq != head_seq:
            raise HeadMismatch(f"the head is {head_seq}", headSeq=head_seq)

    def _check_size(self, rows: Sequence[Record]) -> None:
        config = self.kept.config
        if 0 < config.cap_records < len(rows) or 0 < config.cap_bytes < sum(map(counted_size, rows)):
            raise RecordTooLarge("the append is larger than a cap")

    def _stamp(self, now: Moment) -> int:
        self.last_ts_ms = max(self.last_ts_ms, now.wall_ms)
        return self.last_ts_ms


def _check_rows(kind: Kind, rows: Sequence[Record], request: AppendRequest) -> None:
    """Check an append by the topic's kind alone; a source also appends gap records."""
    if request.expected_versions and kind is not Kind.KV:
        raise NotKv("the topic has no fold")
    if request.writer is not None and not request.writer.new:
        raise InvalidArgument("the writer's new position is missing")
    if request.source:
        return
    if not rows:
        raise InvalidArgument("the append has no record")
    allowed = KV_OPS if kind is Kind.KV else (Op.APPEND,)
    if any(row.op not in allowed for row in rows):
        raise InvalidOp(f"not an op of a {kind.name} topic")
    if kind is Kind.KV and not all(row.key for row in rows):
        raise KeyRequired("a record has no key")
