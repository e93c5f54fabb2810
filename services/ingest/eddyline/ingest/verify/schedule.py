"""Scheduled verification: each LIVE source of this replica that copies a bucket, at an interval.

Jitter spreads a source's first time over the interval, so that sources of one start do not come due together; the next is
one interval after the end of the last. One at a time. A source that is due and not LIVE waits until it is.
Failure: a verification that fails is logged, and tried again after a tenth of the interval.
Threading: event loop; one task a replica.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.errors import EddylineError
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.ingest.verify.compare import DifferenceKind
from eddyline.ingest.verify.verify import VerifyOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from eddyline.core.runtime.clock import Clock
    from eddyline.ingest.sources.ownership import HeldSource
    from eddyline.ingest.verify.verify import Verifier, VerifyResult

SETTLE_S: Final = 60.0
"""The contract's bound: keys that left a bucket without a message are deleted after the next audit (`stream_audit`), and are
no drift until then. Costs nothing if both sides agree."""
KEYS_SHOWN: Final = 5
KEY_CHARS_SHOWN: Final = 100
POLL_S_MAX: Final = 5.0
"""Longest delay until a newly acquired source is scheduled."""

log = logging.getLogger(__name__)


class VerifySchedule:
    """Times at which sources are verified. `held` is the replica's, as it changes."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        held: Mapping[str, HeldSource],
        new_name: Callable[[], str],
        interval_s: float,
        repair: bool,
        clock: Clock,
        rng: Random,
    ) -> None:
        assert interval_s > 0
        self._verifier = verifier
        self._held = held
        self._new_name = new_name
        self._interval_s = interval_s
        self._repair = repair
        self._clock = clock
        self._rng = rng
        self._due_s: dict[tuple[str, int], float] = {}
        """By source and fence: a source that was acquired again starts over."""

    async def run(self) -> NoReturn:
        """Verify due sources until cancelled."""
        while True:
            due = self._next_due()
            if due is None:
                await sleep(self._clock, min(self._interval_s / 4, POLL_S_MAX))
                continue
            held = self._held[due]
            is_done = await self._verify(held)
            wait_s = self._interval_s if is_done else self._interval_s / 10
            self._due_s[due, held.lease.fence] = self._clock.monotonic_s() + wait_s

    def _next_due(self) -> str | None:
        """The source that has been due longest."""
        now_s = self._clock.monotonic_s()
        previous_due_s = self._due_s
        self._due_s = {}
        due: list[tuple[float, str]] = []
        for name, held in self._held.items():
            if not held.lease.source.definition.bucket:
                continue
            lease_key = name, held.lease.fence
            due_s = (
                previous_due_s[lease_key]
                if lease_key in previous_due_s
                else now_s + self._rng.uniform(0, self._interval_s)
            )
            self._due_s[lease_key] = due_s
            if due_s <= now_s and held.progress.state == "LIVE":
                due.append((due_s, name))
        return min(due)[1] if due else None

    async def _verify(self, held: HeldSource) -> bool:
        """Verify one source; False = it failed."""
        definition = held.lease.source.definition
        options = VerifyOptions(self._new_name(), SETTLE_S, KEYS_SHOWN, self._repair)
        try:
            result = await self._verifier.verify(definition, options)
        except EddylineError as error:
            log.warning("source not verified", extra=fields(source=definition.name, reason=error.message))
            return False
        _log_result(definition.name, result)
        return True


def _log_result(name: str, result: VerifyResult) -> None:
    comparison = result.comparison
    log_fields: dict[str, str | int] = {
        "source": name,
        "bucket": comparison.bucket_count,
        "fold": comparison.fold_count,
        "differences": comparison.difference_count,
        "unsettled": comparison.unsettled_count,
        "unexamined": comparison.unexamined_count,
        "dead_letters": comparison.dead_letter_count,
        "position": comparison.position_revision,
    }
    if comparison.is_right:
        log.info("source verified", extra=fields(**log_fields))
        return
    keys = [
        one.key.decode(errors="backslashreplace")[:KEY_CHARS_SHOWN]
        for one in comparison.differences
        if one.kind is not DifferenceKind.DEAD_LETTER
    ]
    log_fields |= {"keys": ", ".join(keys), "left": result.left_count, "repair": _repair_text(result)}
    log.error("source drifted", extra=fields(**log_fields))


def _repair_text(result: VerifyResult) -> str:
    if result.repaired:
        return "done"
    return result.trouble or ("not enough" if result.left is not None else "not requested")
