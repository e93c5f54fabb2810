"""The oracle: what a store's topics must be, by the contract alone, in plain Python over rows.

It validates appends as the store must (existence, epoch, ops and keys, idempotency key, writer, versions, head), gives what
a reader may see, and after a crash compares the recovered state with all requests:

- acknowledged: there, whole, at its seqs. Unknown (staged, never answered): whole or absent, and none missing before one
  that is there. Refused: absent, since it was never staged.
- after a power failure a DISK topic may have lost a tail, which an UNSYNCED gap then covers, up to at least the last seq
  ever acknowledged; its fold and its writers' positions may be ahead of the log, at a moment of the same history.

An accepted state becomes the new truth, and the history continues. It knows nothing of frames, groups, clocks or files:
commit times come from the store and only have to be in order. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from eddyline.core.errors import (
    EpochMismatch,
    HeadMismatch,
    IdempotencyConflict,
    InvalidArgument,
    InvalidOp,
    KeyRequired,
    NotKv,
    StaleFence,
    StalePosition,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    VersionMismatch,
)
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, Op, Record, effective_version
from eddyline.core.store_link.protocol import AppendResult
from eddyline.store.fold.fold import WriterState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.log.append import AppendRequest

_KV_OPS = (Op.PUT, Op.DELETE, Op.PURGE)
_NO_WRITER = WriterState(0, b"")


@dataclass
class Attempt:
    """A staged append: its rows at their seqs, and its answer once there is one."""

    request: AppendRequest
    rows: tuple[Record, ...]
    first_seq: int
    last_seq: int
    result: AppendResult | None = None


class Staged(NamedTuple):
    """The verdict on an append that is taken: a new attempt, or the one that it repeats."""

    attempt: Attempt
    repeats: Literal["", "key", "position"] = ""

    def check(self, result: AppendResult) -> None:
        """Hold an acknowledgement against the verdict. Raises AssertionError."""
        assert result.deduplicated == bool(self.repeats)
        seqs, expected = (result.first_seq, result.last_seq), (self.attempt.first_seq, self.attempt.last_seq)
        # A position is compared for equality alone: its retry may be answered without the seqs.
        assert seqs == expected or (self.repeats == "position" and seqs == (0, 0)), f"{seqs}, not {expected}"
        if not self.repeats:
            self.attempt.result = result


class Seen(NamedTuple):
    """The observable state of a recovered topic; `entries` and `writers` are None if the topic has no fold or they were not
    read."""

    epoch: int
    head_seq: int
    items: tuple[Record | Gap, ...]
    entries: dict[bytes, Record] | None = None
    writers: dict[str, WriterState] | None = None


@dataclass
class State:
    """A topic after some prefix of its appends."""

    head_seq: int = 0
    items: list[Record | Gap] = field(default_factory=list)
    fold: dict[bytes, Record] = field(default_factory=dict)
    writers: dict[str, WriterState] = field(default_factory=dict)
    keys: dict[str, Attempt] = field(default_factory=dict)
    positions: dict[str, Attempt] = field(default_factory=dict)
    """The attempt that moved each writer last."""

    def take(self, attempt: Attempt) -> None:
        """Go on by one append."""
        self.head_seq = attempt.last_seq
        self.items.extend(attempt.rows)
        for row in attempt.rows:
            if row.key is not None and row.op == Op.PUT:
                self.fold[row.key] = row
            elif row.key is not None and row.op in (Op.DELETE, Op.PURGE):
                self.fold.pop(row.key, None)
        request = attempt.request
        if request.idempotency_key:
            self.keys[request.idempotency_key] = attempt
        if request.writer is not None:
            self.writers[request.writer.writer] = WriterState(request.writer.fence, request.writer.new)
            self.positions[request.writer.writer] = attempt

    @property
    def is_empty(self) -> bool:
        """True = no record is there, in the log or, where the log lost it, in the fold; gaps are none."""
        return not self.fold and not any(isinstance(item, Record) for item in self.items)

    def copy(self) -> State:
        """An independent one over the same attempts."""
        return replace(
            self,
            items=list(self.items),
            fold=dict(self.fold),
            writers=dict(self.writers),
            keys=dict(self.keys),
            positions=dict(self.positions),
        )


@dataclass
class Topic:
    """One topic. `making` and `going` while the store has not answered its creation or deletion."""

    name: str
    kind: Kind
    config: TopicConfig
    epoch: int = 0
    making: bool = True
    going: bool = False
    settled: State = field(default_factory=State)
    staged: State = field(default_factory=State)
    attempts: list[Attempt] = field(default_factory=list)
    """Staged since `settled`, in order."""

    def visible(self) -> State:
        """The records for readers when nothing is in flight: all acknowledged appends."""
        state = self.settled.copy()
        for attempt in self.attempts:
            if attempt.result is not None:
                state.take(attempt)
        return state

    def states(self) -> list[State]:
        """The state after each prefix of what was staged, the empty one first."""
        states = [self.settled.copy()]
        for attempt in self.attempts:
            state = states[-1].copy()
            state.take(attempt)
            states.append(state)
        return states


class Oracle:
    """Topics by name; see the module."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}

    def create_topic(self, name: str, kind: Kind, config: TopicConfig) -> Topic:
        """Begin to make a topic; `made` ends it. Raises: TopicExists."""
        if name in self.topics:
            raise TopicExists(f"topic {name} exists")
        topic = self.topics[name] = Topic(name, kind, config)
        return topic

    def made(self, topic: Topic, epoch: int) -> None:
        """The store has acknowledged it."""
        assert epoch > max((other.epoch for other in self.topics.values()), default=0), (
            "an epoch is used once, and grows"
        )
        topic.epoch, topic.making = epoch, False

    def delete_topic(self, name: str, *, if_epoch: int = 0, if_empty: bool = False) -> Topic:
        """Begin to delete; `gone` ends it. Raises: TopicNotFound, EpochMismatch, TopicNotEmpty."""
        topic = self._get(name)
        if if_epoch and if_epoch != topic.epoch:
            raise EpochMismatch(f"epoch is {topic.epoch}")
        if if_empty and not topic.staged.is_empty:
            raise TopicNotEmpty(f"topic {name} has records")
        topic.going = True
        return topic

    def gone(self, topic: Topic) -> None:
        """The store has acknowledged it."""
        del self.topics[topic.name]

    def stage(self, request: AppendRequest, now_ms: int) -> Staged:
        """Judge an append at the moment it is staged. Raises: what the store must refuse it with."""
        topic = self._get(request.topic)
        rows = request.batch.to_rows()
        _check_request(topic, request, rows)
        repeated = _repeated_by_key(topic, request, rows, now_ms)
        if repeated is not None:
            return Staged(repeated, "key")
        repeated = _repeated_by_position(topic.staged, request)
        if repeated is not None:
            return Staged(repeated, "position")
        for key, version in request.expected_versions:
            entry = topic.staged.fold.get(key)
            live = b"" if entry is None else effective_version(entry.version, entry.seq)
            if live != version:
                raise VersionMismatch(f"key {key!r}", key=key.hex(), version=live.hex())
        head_seq = topic.staged.head_seq
        if request.expected_head_seq is not None and request.expected_head_seq != head_seq:
            raise HeadMismatch(f"head is {head_seq}", headSeq=head_seq)
        placed = tuple(row._replace(seq=head_seq + 1 + i, ts_ms=0) for i, row in enumerate(rows))
        attempt = Attempt(request, placed, head_seq + 1, head_seq + len(rows))
        topic.attempts.append(attempt)
        topic.staged.take(attempt)
        return Staged(attempt)

    def check_live(self, name: str, seen: Seen) -> None:
        """Hold a running store, nothing under way, against what was acknowledged. Raises AssertionError."""
        topic = self.topics[name]
        assert seen.epoch == topic.epoch
        state = topic.visible()
        assert seen.head_seq == state.head_seq
        assert _timeless(seen.items) == state.items
        if seen.entries is not None:
            assert _entries(seen) == state.fold
        if seen.writers is not None:
            assert seen.writers == state.writers

    def recovered(self, name: str, seen: Seen | None, crash: Literal["kill", "power"]) -> None:
        """Compare a topic of a recovered store (None = it does not exist) with all requests, and continue from it.

        Raises:
            AssertionError: it must not be so.
        """
        topic = self.topics[name]
        if seen is None:
            assert topic.making or topic.going, f"topic {name} is lost"
            del self.topics[name]
            return
        assert seen.epoch == topic.epoch or topic.making, f"topic {name} is another one"
        topic.epoch = seen.epoch
        topic.making = topic.going = False
        topic.settled = _settle(topic, seen, crash)
        topic.staged = topic.settled.copy()
        topic.attempts = []

    def _get(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None or topic.making or topic.going:
            raise TopicNotFound(f"no topic {name}")
        return topic


def _check_request(topic: Topic, request: AppendRequest, rows: Sequence[Record]) -> None:
    if request.epoch and request.epoch != topic.epoch:
        raise EpochMismatch(f"epoch is {topic.epoch}")
    if request.expected_versions and topic.kind is not Kind.KV:
        raise NotKv(f"topic {topic.name} has no fold")
    if not rows or (request.writer is not None and not request.writer.new):
        raise InvalidArgument("nothing to append, or nowhere to go")
    allowed = _KV_OPS if topic.kind is Kind.KV else (Op.APPEND,)
    if any(row.op not in allowed for row in rows):
        raise InvalidOp(f"not an op of {topic.kind.name}")
    if topic.kind is Kind.KV and any(row.key is None for row in rows):
        raise KeyRequired("no key")


def _repeated_by_key(topic: Topic, request: AppendRequest, rows: Sequence[Record], now_ms: int) -> Attempt | None:
    known = topic.staged.keys.get(request.idempotency_key) if request.idempotency_key else None
    if known is None:
        return None
    if known.result is not None and now_ms - known.result.ts_ms > topic.config.idempotency_window_ms:
        return None
    if [row._replace(seq=0) for row in known.rows] != [row._replace(seq=0, ts_ms=0) for row in rows]:
        raise IdempotencyConflict("other content")
    return known


def _repeated_by_position(staged: State, request: AppendRequest) -> Attempt | None:
    move = request.writer
    if move is None:
        return None
    fence, position = staged.writers.get(move.writer, _NO_WRITER)
    if move.fence < fence:
        raise StaleFence(f"fence is {fence}", fence=fence)
    if position and move.new == position:
        return staged.positions[move.writer]
    if move.previous != position:
        raise StalePosition("another position", position=position.hex())
    return None


def _settle(topic: Topic, seen: Seen, crash: Literal["kill", "power"]) -> State:
    """The state that a recovered topic is in, one of those that it may be in."""
    states = topic.states()
    acked_count = sum(attempt.result is not None for attempt in topic.attempts)
    assert all(attempt.result is not None for attempt in topic.attempts[:acked_count]), "acknowledged out of order"
    items, lost = _without_new_loss(seen, topic)
    matching = [index for index, state in enumerate(states) if state.items == items]
    assert matching, f"topic {topic.name}: what is there is no prefix of what was appended"
    log_index = matching[0]
    if lost is None:
        assert log_index >= acked_count, f"topic {topic.name}: acknowledged appends are lost, and no gap says so"
        assert seen.head_seq == states[log_index].head_seq
    else:
        assert crash == "power", f"topic {topic.name}: a gap after a kill"
        assert topic.config.durability is Durability.DISK or log_index >= acked_count, f"{topic.name}: FSYNC lost"
        assert (lost.first_seq, lost.seq) == (states[log_index].head_seq + 1, lost.last_seq + 1)
        assert lost.last_seq >= states[acked_count].head_seq, f"topic {topic.name}: an acknowledged seq may come again"
        assert seen.head_seq == lost.seq
    state = states[log_index].copy()
    if topic.kind is Kind.KV and seen.entries is not None:
        ahead = states[log_index:] if lost is not None else [states[log_index]]
        fitting = [one for one in ahead if one.fold == _entries(seen) and seen.writers in (None, one.writers)]
        assert fitting, f"topic {topic.name}: the fold is at no moment of the history"
        assert fitting[0].head_seq <= seen.head_seq, f"topic {topic.name}: the fold is ahead of the head"
        state.fold, state.writers, state.positions = fitting[0].fold, fitting[0].writers, fitting[0].positions
    state.head_seq = seen.head_seq
    state.items = _timeless(seen.items)
    _date_answers(state, seen)
    return state


def _without_new_loss(seen: Seen, topic: Topic) -> tuple[list[Record | Gap], Gap | None]:
    """The items, and the UNSYNCED gap that this recovery put behind them."""
    items = _timeless(seen.items)
    last = items[-1] if items else None
    if isinstance(last, Gap) and last.reason == GapReason.UNSYNCED and last not in topic.settled.items:
        return items[:-1], last
    return items, None


def _date_answers(state: State, seen: Seen) -> None:
    """Appends that were never answered and are there count as answered: their idempotency windows run from their commit."""
    times = {item.seq: item.ts_ms for item in seen.items if isinstance(item, Record)}
    for key, attempt in state.keys.items():
        if attempt.result is None and attempt.first_seq in times:
            answered = AppendResult(attempt.first_seq, attempt.last_seq, 0, times[attempt.first_seq])
            state.keys[key] = replace(attempt, result=answered)


def _timeless(items: Sequence[Record | Gap]) -> list[Record | Gap]:
    """The items without their commit times, which must be in order."""
    times = [item.ts_ms for item in items if isinstance(item, Record)]
    assert times == sorted(times), "commit times are out of order"
    return [item._replace(ts_ms=0) if isinstance(item, Record) else item for item in items]


def _entries(seen: Seen) -> dict[bytes, Record]:
    assert seen.entries is not None
    return {key: entry._replace(ts_ms=0) for key, entry in seen.entries.items()}
