"""Recheck of keys that differ, until both sides agree or its time is over.

Both sides were read at slightly different moments, so a key that differs may only be in flight. Each pass reads the
bucket, then the position, then the fold. At the end a key that still differs is

* in flight, if its newest message is another one than before: the source has applied the previous one, or will;
* behind, if a source that is copying has not applied its newest message yet;
* a dead letter, if its newest message fits into no record, is applied, and the source sets such messages aside;
* else different.

I1: a key is different only if its newest message stayed the same from before its entry was read until after, and is
applied, or is not being applied. So a writer at any speed causes no difference.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.runtime.clock import sleep
from eddyline.ingest.verify.sides import KEYS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.ingest.verify.sides import LiveValue, NewestMessage, Sides

CHECK_INTERVAL_S: Final = 0.1
CHECK_INTERVAL_S_MAX: Final = 1.0
"""Most keys agree within the first passes; one second later is soon enough for the others. No `Backoff`: its jitter would
put passes closer together than the first interval, and no recovering server needs it here."""


class CandidateKey:
    """A key's two sides as last read. `revision` = that of its newest message, -1 = not read yet; `is_unfit` = no record can
    hold that message."""

    __slots__ = ("applied_to", "bucket", "fold", "is_unfit", "revision")

    def __init__(self, bucket: LiveValue | None, fold: LiveValue | None) -> None:
        self.bucket = bucket
        self.fold = fold
        self.revision = -1
        self.applied_to = 0
        self.is_unfit = False


class RecheckResult(NamedTuple):
    """Keys that differ, and those of dead letters, each in order, and the number of keys that are neither equal nor
    different."""

    keys: tuple[bytes, ...]
    dead_letters: tuple[bytes, ...]
    unsettled_count: int


class Recheck:
    """Candidates and their rechecks. `steps` runs it; then `result` is set."""

    def __init__(self, sides: Sides, candidates: dict[bytes, CandidateKey], *, clock: Clock, settle_s: float) -> None:
        self._sides = sides
        self._candidates = candidates
        self._clock = clock
        self._settle_s = settle_s
        self.result = RecheckResult((), (), 0)

    async def steps(self) -> AsyncGenerator[None, None]:
        """Check until all agree, at most `settle_s` and the duration of the last pass; yields after each few keys.

        Raises:
            NatsUnreachable, and what the store's reads raise.
        """
        deadline_s = self._clock.monotonic_s() + self._settle_s
        revision_before = await self._sides.position_revision()
        keys = sorted(self._candidates)
        interval_s = CHECK_INTERVAL_S
        while keys:
            still_different: list[bytes] = []
            for keys_chunk in _chunks_of(keys):
                still_different += await self._check(keys_chunk)
                yield
            keys = still_different
            if keys and self._clock.monotonic_s() >= deadline_s:
                break
            if keys:
                left_s = deadline_s - self._clock.monotonic_s()
                await sleep(self._clock, max(min(interval_s, left_s), CHECK_INTERVAL_S))
                interval_s = min(2 * interval_s, CHECK_INTERVAL_S_MAX)
        is_copying = await self._sides.position_revision() > revision_before
        different: list[bytes] = []
        dead_letters: list[bytes] = []
        for keys_chunk in _chunks_of(keys):
            for key, newest in zip(keys_chunk, await self._sides.newest(keys_chunk), strict=True):
                candidate = self._candidates[key]
                if not self._is_in_flight(candidate, newest, is_copying=is_copying):
                    (dead_letters if self._is_dead_letter(candidate) else different).append(key)
            yield
        unsettled_count = len(keys) - len(different) - len(dead_letters)
        self.result = RecheckResult(tuple(different), tuple(dead_letters), unsettled_count)

    async def _check(self, keys: Sequence[bytes]) -> list[bytes]:
        """Read a few keys again on both sides; returns those that still differ."""
        for key, newest in zip(keys, await self._sides.newest(keys), strict=True):
            if newest is not None:
                self._candidates[key].bucket = newest.live
                self._candidates[key].revision = newest.revision
                self._candidates[key].is_unfit = newest.is_unfit
        applied_to = await self._sides.position_revision()
        entries = await self._sides.entries(keys)
        still_different: list[bytes] = []
        for key in keys:
            candidate = self._candidates[key]
            candidate.applied_to = applied_to
            candidate.fold = entries.get(key)
            if candidate.bucket != candidate.fold:
                still_different.append(key)
        return still_different

    def _is_dead_letter(self, candidate: CandidateKey) -> bool:
        return candidate.is_unfit and self._sides.sets_aside and candidate.revision <= candidate.applied_to

    def _is_in_flight(self, candidate: CandidateKey, newest: NewestMessage | None, *, is_copying: bool) -> bool:
        if (
            newest is None
        ):  # the API cannot read its newest message: an entry newer than the message read before is of a later one
            bucket, fold = candidate.bucket, candidate.fold
            return bucket is not None and fold is not None and fold.revision > bucket.revision
        return newest.revision != candidate.revision or (is_copying and candidate.revision > candidate.applied_to)


def _chunks_of(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [keys[start : start + KEYS_AT_ONCE] for start in range(0, len(keys), KEYS_AT_ONCE)]
