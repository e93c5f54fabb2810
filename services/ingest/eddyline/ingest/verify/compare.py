"""Comparison of a source's fold with its bucket: sums of all keys first, then keys one by one where the sums differ.

Pass 1 reads the bucket's newest messages and the fold, and keeps a count and a hash for each group of keys (`key_sums`).
If all agree, the two are equal. Pass 2 reads both sides again and holds the keys of the groups that differ, KEYS_HELD_MAX
at a time, at most ROUNDS_MAX times; keys that differ are rechecked on both sides until they agree or `settle_s` is over
(`recheck`). So an equal source costs 2 MiB whatever its size, and one that differs everywhere some 160 MiB. Any replica
can compare any source. A comparison changes neither side.

Every key beyond the bounds is reported: keys that differ behind the first CANDIDATES_MAX are counted as first seen
(`unconfirmed_count`), groups behind ROUNDS_MAX x KEYS_HELD_MAX keys are counted as such (`unexamined_count`). One
comparison at a time a replica; WAITING_MAX others wait.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import ForeignSubjects, NotKv, Throttled
from eddyline.core.records.record import Op
from eddyline.ingest.verify.key_sums import KeyGroup, KeySums, Prefixes
from eddyline.ingest.verify.recheck import CandidateKey, Recheck
from eddyline.ingest.verify.sides import LiveValue, Sides, keys_and_values, live_entry, live_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream

KEYS_HELD_MAX: Final = 250_000
"""Of each side: 230 bytes a key, 110 MiB for both. Fewer cost more readings if much differs."""
ROUNDS_MAX: Final = 8
"""Readings of both sides in pass 2: minutes for ten million keys."""
CANDIDATES_MAX: Final = 100_000
"""Keys that are rechecked, 500 bytes each. One pass over so many takes some 20 s of the server's time and ours."""
WAITING_MAX: Final = 16
RETRY_AFTER_MS: Final = 5_000
PROGRESS_INTERVAL_S: Final = 0.5


class DifferenceKind(IntEnum):
    """Kind of difference. The numbers are the contract's."""

    MISSING = 1
    SURPLUS = 2
    VALUE = 3
    DEAD_LETTER = 4


class VerifyStage(IntEnum):
    """Stage of a verification. The numbers are the contract's."""

    COUNTS = 1
    HASHES = 2
    KEYS = 3
    REPAIR = 4


class Difference(NamedTuple):
    """A key whose fold entry differs from the bucket. Revision 0 = not live there."""

    key: bytes
    kind: DifferenceKind
    bucket_revision: int
    fold_revision: int


class PrefixDrift(NamedTuple):
    """Keys of one prefix, of which some differ. b"" = all keys without a prefix of their own."""

    prefix: bytes
    bucket_count: int
    fold_count: int
    difference_count: int


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """Outcome of a comparison; `differences` by key, dead letters last, cut to the requested limit. The rest is the
    contract's."""

    bucket_count: int
    fold_count: int
    difference_count: int
    differences: tuple[Difference, ...]
    position_revision: int
    prefixes: tuple[PrefixDrift, ...] = ()
    unsettled_count: int = 0
    unexamined_count: int = 0
    unconfirmed_count: int = 0
    dead_letter_count: int = 0
    missing_count: int = 0
    surplus_count: int = 0
    value_count: int = 0

    @property
    def is_right(self) -> bool:
        """True = no key differs but for dead letters, and none was left out."""
        return self.difference_count == 0 and self.unexamined_count == 0


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Progress of a comparison. Totals are approximate, 0 = not known yet."""

    stage: VerifyStage
    bucket_read: int = 0
    bucket_total: int = 0
    fold_read: int = 0
    fold_total: int = 0
    suspect_count: int = 0


class Comparer:
    """Compares sources, one at a time."""

    def __init__(self, link: StoreLink, connection: Connection, jetstream: JetStream, clock: Clock) -> None:
        self._link = link
        self._connection = connection
        self._jetstream = jetstream
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def compare(self, source: SourceDefinition, *, name: str, settle_s: float, limit: int) -> SourceComparison:
        """Compare, for at most `settle_s` in addition to the readings. `name` is that of its consumers, unique.

        Raises:
            As `steps`.
        """
        async with aclosing(self.steps(source, name=name, settle_s=settle_s, limit=limit)) as steps:
            async for step in steps:
                if isinstance(step, SourceComparison):
                    return step
        raise AssertionError("a comparison ends with its outcome")

    async def steps(
        self, source: SourceDefinition, *, name: str, settle_s: float, limit: int
    ) -> AsyncGenerator[VerifyProgress | SourceComparison, None]:
        """Compare; yields progress at each new stage and at most twice a second, and the outcome at the end. The caller must
        close it.

        Raises:
            NotKv, Throttled, BucketNotFound, ForeignSubjects, NatsUnreachable, and what the store's reads raise.
        """
        if not source.bucket:
            raise NotKv(f"source {source.name} copies a stream, which has no fold to compare", source=source.name)
        if self._waiting > WAITING_MAX:
            raise Throttled(
                f"{WAITING_MAX} comparisons are waiting already; try again later",
                waitingMax=WAITING_MAX,
                retryAfterMs=RETRY_AFTER_MS,
            )
        self._waiting += 1
        try:
            yield VerifyProgress(VerifyStage.COUNTS)
            async with self._turn:
                stream = await self._jetstream.stream(source.bucket)
                strays = await self._jetstream.stray_subjects(stream)
                if strays is not None:
                    raise ForeignSubjects(
                        f"{stream.origin} cannot be compared: {strays.reason(stream.rule)}", bucket=source.bucket
                    )
                sides = Sides(
                    source,
                    stream,
                    name=name,
                    link=self._link,
                    connection=self._connection,
                    jetstream=self._jetstream,
                    clock=self._clock,
                )
                async with aclosing(_ComparisonRun(sides, stream, self._clock, settle_s, limit).steps()) as steps:
                    async for step in steps:
                        yield step
        finally:
            self._waiting -= 1


class _ComparisonRun:
    """State of one comparison."""

    def __init__(self, sides: Sides, stream: Stream, clock: Clock, settle_s: float, limit: int) -> None:
        self._sides = sides
        self._stream = stream
        self._clock = clock
        self._settle_s = settle_s
        self._limit = limit
        self._sums = KeySums()
        self._prefixes = Prefixes()
        self._candidates: dict[bytes, CandidateKey] = {}
        self._unconfirmed: Counter[DifferenceKind] = Counter()
        self._unexamined_count = 0
        self._unexamined_surplus = 0
        self._stage = VerifyStage.HASHES
        self._bucket_read = self._fold_read = 0
        self._progress_due_s = 0.0

    async def steps(self) -> AsyncGenerator[VerifyProgress | SourceComparison, None]:
        """Run both passes and the recheck."""
        async with aclosing(self._read_sums()) as steps:
            async for _ in steps:
                if self._is_due():
                    yield self._progress()
        self._stage = VerifyStage.KEYS
        self._progress_due_s = 0.0
        for number, group in enumerate(self._sums.differing_groups(KEYS_HELD_MAX)):
            if number >= ROUNDS_MAX:
                self._unexamined_count += group.key_count
                self._unexamined_surplus += group.surplus
                continue
            self._bucket_read = self._fold_read = 0
            async with aclosing(self._compare_keys(group)) as steps:
                async for _ in steps:
                    if self._is_due():
                        yield self._progress()
        recheck = Recheck(self._sides, self._candidates, clock=self._clock, settle_s=self._settle_s)
        async with aclosing(recheck.steps()) as steps:
            async for _ in steps:
                if self._is_due():
                    yield self._progress()
        yield await self._outcome(recheck)

    async def _read_sums(self) -> AsyncGenerator[None, None]:
        """Pass 1: sums of both sides."""
        yield
        bucket, fold = self._sums.bucket, self._sums.fold
        async with aclosing(self._sides.bucket()) as chunks:
            async for chunk in chunks:
                self._bucket_read += chunk.messages
                for key, op, revision, data in zip(chunk.keys, chunk.ops, chunk.revisions, chunk.data, strict=True):
                    if op == Op.PUT:
                        bucket.add(key, data)
                    if revision > self._stream.last_revision:
                        self._sums.mark_changed(key)
                yield
        async with aclosing(self._sides.fold()) as batches:
            async for batch in batches:
                keys, values = keys_and_values(batch)
                self._fold_read += len(keys)
                self._prefixes.count(keys)
                for key, value in zip(keys, values, strict=True):
                    fold.add(key, value)
                yield

    async def _compare_keys(self, group: KeyGroup) -> AsyncGenerator[None, None]:
        """Pass 2: compare the keys of some groups, held in memory."""
        bucket: dict[bytes, LiveValue] = {}
        async with aclosing(self._sides.bucket()) as chunks:
            async for chunk in chunks:
                self._bucket_read += chunk.messages
                for key, op, revision, data in zip(chunk.keys, chunk.ops, chunk.revisions, chunk.data, strict=True):
                    if group.contains(key):
                        _set_live(bucket, key, live_message(op, revision, data))
                yield
        fold: dict[bytes, LiveValue] = {}
        async with aclosing(self._sides.fold()) as batches:
            async for batch in batches:
                self._fold_read += batch.count
                keys, _ = keys_and_values(batch)
                rows = [row for row, key in enumerate(keys) if group.contains(key)]
                if rows:
                    entries = batch.to_rows()
                    fold.update((keys[row], live_entry(entries[row])) for row in rows)
                yield
        for key in bucket.keys() | fold.keys():
            sides = bucket.get(key), fold.get(key)
            if sides[0] == sides[1]:
                continue
            if len(self._candidates) < CANDIDATES_MAX:
                self._candidates[key] = CandidateKey(*sides)
            else:
                self._unconfirmed[_kind(*sides)] += 1

    async def _outcome(self, recheck: Recheck) -> SourceComparison:
        keys, dead_letters, unsettled_count = recheck.result
        kinds = self._unconfirmed.copy()
        by_prefix: dict[bytes, Counter[DifferenceKind]] = {}
        for key in keys:
            kind = _kind(self._candidates[key].bucket, self._candidates[key].fold)
            kinds[kind] += 1
            by_prefix.setdefault(self._prefixes.of(key), Counter())[kind] += 1
        fold_count = self._sums.fold.count
        dead_by_prefix: dict[bytes, Counter[DifferenceKind]] = {}
        for key in dead_letters:
            kind = _kind(self._candidates[key].bucket, self._candidates[key].fold)
            dead_by_prefix.setdefault(self._prefixes.of(key), Counter())[kind] += 1
        dead_missing = sum(map(_missing, dead_by_prefix.values()))
        listed = [self._difference(key) for key in keys[: self._limit]]
        listed += [
            self._difference(key)._replace(kind=DifferenceKind.DEAD_LETTER)
            for key in dead_letters[: self._limit - len(listed)]
        ]
        return SourceComparison(
            # The fold is counted at one point; the confirmed differences give the bucket's count.
            bucket_count=max(fold_count + _missing(kinds) + dead_missing + self._unexamined_surplus, 0),
            fold_count=fold_count,
            difference_count=kinds.total(),
            differences=tuple(listed),
            position_revision=await self._sides.position_revision(),
            prefixes=tuple(
                PrefixDrift(
                    prefix,
                    max(count + _missing(differing + dead_by_prefix.get(prefix, Counter())), 0),
                    count,
                    differing.total(),
                )
                for prefix, differing in sorted(by_prefix.items())
                for count in [self._prefixes.counts.get(prefix, 0)]
            ),
            unsettled_count=unsettled_count,
            unexamined_count=self._unexamined_count,
            unconfirmed_count=self._unconfirmed.total(),
            dead_letter_count=len(dead_letters),
            missing_count=kinds[DifferenceKind.MISSING],
            surplus_count=kinds[DifferenceKind.SURPLUS],
            value_count=kinds[DifferenceKind.VALUE],
        )

    def _difference(self, key: bytes) -> Difference:
        bucket, fold = self._candidates[key].bucket, self._candidates[key].fold
        return Difference(key, _kind(bucket, fold), bucket.revision if bucket else 0, fold.revision if fold else 0)

    def _is_due(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._progress_due_s:
            return False
        self._progress_due_s = now_s + PROGRESS_INTERVAL_S
        return True

    def _progress(self) -> VerifyProgress:
        return VerifyProgress(
            self._stage,
            bucket_read=self._bucket_read,
            bucket_total=max(self._stream.subject_count, self._bucket_read),
            fold_read=self._fold_read,
            # The fold's size is known after its reading; until then the bucket's is an estimate.
            fold_total=max(self._sums.fold.count, self._sums.bucket.count),
            suspect_count=len(self._candidates) + self._unconfirmed.total(),
        )


def _kind(bucket: LiveValue | None, fold: LiveValue | None) -> DifferenceKind:
    return (
        DifferenceKind.MISSING if fold is None else DifferenceKind.SURPLUS if bucket is None else DifferenceKind.VALUE
    )


def _missing(kinds: Counter[DifferenceKind]) -> int:
    """Keys that the bucket has more than the fold."""
    return kinds[DifferenceKind.MISSING] - kinds[DifferenceKind.SURPLUS]


def _set_live(live_keys: dict[bytes, LiveValue], key: bytes, live: LiveValue | None) -> None:
    if live is None:
        live_keys.pop(key, None)
    else:
        live_keys[key] = live
