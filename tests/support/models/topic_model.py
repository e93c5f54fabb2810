"""One topic by the semantics alone: what is kept of its log, and the fold of all that was ever committed.

Every event carries its time; commit times never go back. A copy is independent, so a test can compute the outcome if only
some of the requests had happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.topic import Kind
from eddyline.core.records.match import MatchField
from eddyline.core.records.record import Op, Record
from tests.support.models.retained_log import Answer, Retained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.model.topic import TopicConfig
    from eddyline.core.records.match import Match


class Moment(NamedTuple):
    """When something happens: by the wall clock, which dates commits, and by the time that ages are counted in."""

    wall_ms: int
    age_ms: int


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
    """See the module."""

    kind: Kind
    kept: Retained
    fold: dict[bytes, Record] = field(default_factory=dict)
    last_ts_ms: int = 0
    past: Past = field(default_factory=Past)

    def copy(self) -> TopicModel:
        """An independent one."""
        return replace(self, kept=replace(self.kept, rows=list(self.kept.rows)), fold=dict(self.fold))

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

    def _stamp(self, now: Moment) -> int:
        self.last_ts_ms = max(self.last_ts_ms, now.wall_ms)
        return self.last_ts_ms
