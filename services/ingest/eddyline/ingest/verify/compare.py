"""Comparing a source's fold with its bucket: sums of all keys first, then keys one by one where the sums differ.

Pass 1 reads the bucket's newest messages and the fold, and keeps a count and a hash a group of keys (`tally.py`). Where
all agree, the two are equal. Pass 2 reads both sides again and holds the keys of the groups that differ, KEYS_HELD_MAX at
a time, at most ROUNDS_MAX times; keys that differ are looked at again, on both sides, until they agree or the time to
settle is over (`settle.py`). So an equal source costs 2 MiB whatever it holds, and one that is wrong everywhere some
160 MiB.
Any replica can do it for any source. Nothing is changed on either side.

Beyond the bounds nothing is passed over in silence: keys that differ behind the first SUSPECTS_MAX are counted as first
seen (`unconfirmed_count`), groups behind ROUNDS_MAX x KEYS_HELD_MAX keys are counted as such (`unexamined_count`).
One comparison at a time a replica; WAITING_MAX others wait.
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
from eddyline.ingest.verify.sides import Live, Sides, keys_and_values, live_entry, live_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream

KEYS_HELD_MAX: Final = 250_000
"""Of each side: 230 bytes a key, 110 MiB for both. Fewer cost more readings where much differs."""
ROUNDS_MAX: Final = 8
"""Readings of both sides in pass 2: minutes for ten million keys."""
SUSPECTS_MAX: Final = 100_000
"""Keys that are looked at again, 500 bytes each. One look at that many takes some 20 s of the server's and our time."""
WAITING_MAX: Final = 16
RETRY_AFTER_MS: Final = 5_000
TELL_INTERVAL_S: Final = 0.5


class Kind(IntEnum):
    """How a key differs. The numbers are the contract's."""

    MISSING = 1
    SURPLUS = 2
    VALUE = 3
    DEAD_LETTER = 4


class Stage(IntEnum):
    """What is done. The numbers are the contract's."""

    COUNTS = 1
    HASHES = 2
    KEYS = 3
    REPAIR = 4


class Difference(NamedTuple):
    """A key whose fold entry is not what the bucket has. Revision 0 = not live there."""

    key: bytes
    kind: Kind
    bucket_revision: int
    fold_revision: int


class PrefixDrift(NamedTuple):
    """Keys of one prefix, of which some differ. b"" = all keys without a prefix of their own."""

    prefix: bytes
    bucket_count: int
    fold_count: int
    difference_count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome; `differences` by key, those that are dead letters last, cut to what was asked for. The rest is the
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
    """How far it is. Totals are about right, 0 = not known yet."""

    stage: Stage
    bucket_read: int = 0
    bucket_total: int = 0
    fold_read: int = 0
    fold_total: int = 0
    suspect_count: int = 0


class Comparer:
    """What comparisons work with."""

    def __init__(self, link: StoreLink, connection: Connection, jetstream: JetStream, clock: Clock) -> None:
        self._link = link
        self._connection = connection
        self._jetstream = jetstream
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def compare(self, source: SourceDefinition, *, name: str, settle_s: float, limit: int) -> Comparison:
        """Compare, for at most `settle_s` beside the time that reading takes. `name` is that of its consumers, unique.

        Raises:
            As `steps`.
        """
        async with aclosing(self.steps(source, name=name, settle_s=settle_s, limit=limit)) as steps:
            async for step in steps:
                if isinstance(step, Comparison):
                    return step
        raise AssertionError("a comparison ends with its outcome")

    async def steps(
        self, source: SourceDefinition, *, name: str, settle_s: float, limit: int
    ) -> AsyncGenerator[VerifyProgress | Comparison, None]:
        """The same, with how far it is: at each new stage, and twice a second at most. Whoever breaks off closes it.

        Raises:
            NotKv, Throttled, BucketNotFound, ForeignSubjects, NatsUnreachable, and what the store's reads raise.
        """
        if not source.bucket:
            raise NotKv(f"source {source.name} copies a stream, which has no fold to compare", source=source.name)
        if self._waiting > WAITING_MAX:
            raise Throttled(
                f"{WAITING_MAX} comparisons wait for one that goes on",
                waitingMax=WAITING_MAX,
                retryAfterMs=RETRY_AFTER_MS,
            )
        self._waiting += 1
        try:
            yield VerifyProgress(Stage.COUNTS)
            async with self._turn:
                stream = await self._jetstream.stream(source.bucket)
                strays = await self._jetstream.stray_subjects(stream)
                if strays is not None:
                    raise ForeignSubjects(
                        f"{stream.origin} cannot be compared: {strays.in_words(stream.rule)}", bucket=source.bucket
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
                async with aclosing(_Run(sides, stream, self._clock, settle_s, limit).steps()) as steps:
                    async for step in steps:
                        yield step
        finally:
            self._waiting -= 1


class _Run:
    """One comparison."""

    def __init__(self, sides: Sides, stream: Stream, clock: Clock, settle_s: float, limit: int) -> None:
        self._sides = sides
        self._stream = stream
        self._clock = clock
        self._settle_s = settle_s
        self._limit = limit
        self._tally = KeySums()
        self._prefixes = Prefixes()
        self._suspects: dict[bytes, CandidateKey] = {}
        self._unconfirmed: Counter[Kind] = Counter()
        self._unexamined_count = 0
        self._unexamined_surplus = 0
        self._stage = Stage.HASHES
        self._bucket_read = self._fold_read = 0
        self._tell_at_s = 0.0

    async def steps(self) -> AsyncGenerator[VerifyProgress | Comparison, None]:
        """Compare."""
        async with aclosing(self._sums()) as steps:
            async for _ in steps:
                if self._is_due():
                    yield self._progress()
        self._stage = Stage.KEYS
        self._tell_at_s = 0.0
        for number, portion in enumerate(self._tally.portions(KEYS_HELD_MAX)):
            if number >= ROUNDS_MAX:
                self._unexamined_count += portion.key_count
                self._unexamined_surplus += portion.surplus
                continue
            self._bucket_read = self._fold_read = 0
            async with aclosing(self._keys(portion)) as steps:
                async for _ in steps:
                    if self._is_due():
                        yield self._progress()
        settling = Recheck(self._sides, self._suspects, clock=self._clock, settle_s=self._settle_s)
        async with aclosing(settling.steps()) as steps:
            async for _ in steps:
                if self._is_due():
                    yield self._progress()
        yield await self._outcome(settling)

    async def _sums(self) -> AsyncGenerator[None, None]:
        """Pass 1: sums of both sides."""
        yield
        bucket, fold = self._tally.bucket, self._tally.fold
        async with aclosing(self._sides.bucket()) as chunks:
            async for chunk in chunks:
                self._bucket_read += chunk.messages
                for key, op, revision, data in zip(chunk.keys, chunk.ops, chunk.revisions, chunk.data, strict=True):
                    if op == Op.PUT:
                        bucket.add(key, data)
                    if revision > self._stream.last_revision:
                        self._tally.mark(key)
                yield
        async with aclosing(self._sides.fold()) as batches:
            async for batch in batches:
                keys, values = keys_and_values(batch)
                self._fold_read += len(keys)
                self._prefixes.count(keys)
                for key, value in zip(keys, values, strict=True):
                    fold.add(key, value)
                yield

    async def _keys(self, portion: KeyGroup) -> AsyncGenerator[None, None]:
        """Pass 2: keys of some groups, held to be compared."""
        bucket: dict[bytes, Live] = {}
        async with aclosing(self._sides.bucket()) as chunks:
            async for chunk in chunks:
                self._bucket_read += chunk.messages
                for key, op, revision, data in zip(chunk.keys, chunk.ops, chunk.revisions, chunk.data, strict=True):
                    if portion.wants(key):
                        _set(bucket, key, live_message(op, revision, data))
                yield
        fold: dict[bytes, Live] = {}
        async with aclosing(self._sides.fold()) as batches:
            async for batch in batches:
                self._fold_read += batch.count
                keys, _ = keys_and_values(batch)
                wanted = [row for row, key in enumerate(keys) if portion.wants(key)]
                if wanted:
                    entries = batch.to_rows()
                    fold.update((keys[row], live_entry(entries[row])) for row in wanted)
                yield
        for key in bucket.keys() | fold.keys():
            sides = bucket.get(key), fold.get(key)
            if sides[0] == sides[1]:
                continue
            if len(self._suspects) < SUSPECTS_MAX:
                self._suspects[key] = CandidateKey(*sides)
            else:
                self._unconfirmed[_kind(*sides)] += 1

    async def _outcome(self, settling: Recheck) -> Comparison:
        keys, dead_letters, unsettled_count = settling.settled
        kinds = self._unconfirmed.copy()
        by_prefix: dict[bytes, Counter[Kind]] = {}
        for key in keys:
            kind = _kind(self._suspects[key].bucket, self._suspects[key].fold)
            kinds[kind] += 1
            by_prefix.setdefault(self._prefixes.of(key), Counter())[kind] += 1
        fold_count = self._tally.fold.count
        unlike: dict[bytes, Counter[Kind]] = {}
        for key in dead_letters:
            kind = _kind(self._suspects[key].bucket, self._suspects[key].fold)
            unlike.setdefault(self._prefixes.of(key), Counter())[kind] += 1
        unlike_missing = sum(map(_missing, unlike.values()))
        shown = [self._difference(key) for key in keys[: self._limit]]
        shown += [
            self._difference(key)._replace(kind=Kind.DEAD_LETTER) for key in dead_letters[: self._limit - len(shown)]
        ]
        return Comparison(
            # The fold is counted at one point; the bucket has what differs more or less, which settled meanwhile.
            bucket_count=max(fold_count + _missing(kinds) + unlike_missing + self._unexamined_surplus, 0),
            fold_count=fold_count,
            difference_count=kinds.total(),
            differences=tuple(shown),
            position_revision=await self._sides.position_revision(),
            prefixes=tuple(
                PrefixDrift(
                    prefix,
                    max(count + _missing(differing + unlike.get(prefix, Counter())), 0),
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
            missing_count=kinds[Kind.MISSING],
            surplus_count=kinds[Kind.SURPLUS],
            value_count=kinds[Kind.VALUE],
        )

    def _difference(self, key: bytes) -> Difference:
        bucket, fold = self._suspects[key].bucket, self._suspects[key].fold
        return Difference(key, _kind(bucket, fold), bucket.revision if bucket else 0, fold.revision if fold else 0)

    def _is_due(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._tell_at_s:
            return False
        self._tell_at_s = now_s + TELL_INTERVAL_S
        return True

    def _progress(self) -> VerifyProgress:
        return VerifyProgress(
            self._stage,
            bucket_read=self._bucket_read,
            bucket_total=max(self._stream.subject_count, self._bucket_read),
            fold_read=self._fold_read,
            # The fold's size is known once it was read; until then it is about the bucket's.
            fold_total=max(self._tally.fold.count, self._tally.bucket.count),
            suspect_count=len(self._suspects) + self._unconfirmed.total(),
        )


def _kind(bucket: Live | None, fold: Live | None) -> Kind:
    return Kind.MISSING if fold is None else Kind.SURPLUS if bucket is None else Kind.VALUE


def _missing(kinds: Counter[Kind]) -> int:
    """How many keys more the bucket has."""
    return kinds[Kind.MISSING] - kinds[Kind.SURPLUS]


def _set(found: dict[bytes, Live], key: bytes, live: Live | None) -> None:
    if live is None:
        found.pop(key, None)
    else:
        found[key] = live
