"""Verification of a source: its fold compared with its bucket, and repaired if requested.

A repair is a resync by the source's holder under its own fence, whichever replica that is. The verifier only requests it,
waits, and compares everything again. A key that still differs is reported, and not repaired again.
I1: no repair of a source that its policy stops: a resync would adopt the present bucket, an empty one too. The verifier
runs the holder's resume check right before the request, since the reported state may be older. Totals are kept here:
every verification counts, whichever call or schedule started it.
Threading: event loop.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from eddyline.core.runtime.clock import sleep
from eddyline.ingest.copy.position import decode_position
from eddyline.ingest.copy.stopped import STOPPED_BY_POLICY, SourceStopped, resync_hint
from eddyline.ingest.resync.resume_check import check_resume
from eddyline.ingest.verify.compare import SourceComparison, VerifyProgress, VerifyStage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.source import SourceDefinition, SourceInfo, SourceReport
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.verify.compare import Comparer

REPAIR_S_MAX: Final = 300.0
"""The contract's bound. A resync reads the bucket once, as a comparison does: a million keys take some 20 s."""
POLL_INTERVAL_S: Final = 0.2
PROGRESS_INTERVAL_POLLS: Final = 5


class RepairOwner(Protocol):
    """The replica's view of sources that it may hold."""

    def apply_control(self, info: SourceInfo) -> None:
        """Apply a change of control state."""

    def current(self, info: SourceInfo) -> SourceInfo:
        """A source with its live report, if this replica holds it."""

    def record_verification(self, name: str, drift_count: int) -> None:
        """Record a verification that left so many keys different."""


class VerifyOptions(NamedTuple):
    """Options of a verification. `name` is that of its consumers, unique."""

    name: str
    settle_s: float
    limit: int
    repair: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of a verification. `left` = comparison after a repair, None = none was made; `trouble` = why not.

    `report` = the holder's report of the source at the end.
    """

    comparison: SourceComparison
    report: SourceReport
    left: SourceComparison | None = None
    trouble: str = ""

    @property
    def repaired(self) -> bool:
        """True = keys differed, and none does any more."""
        return self.left is not None and self.left.is_right

    @property
    def left_count(self) -> int:
        """Keys that still differ."""
        return (self.left or self.comparison).difference_count


class Verifier:
    """Verifies sources. `verification_count` and `drifted_key_count` = totals since it was created."""

    def __init__(
        self, comparer: Comparer, link: StoreLink, jetstream: JetStream, *, owner: RepairOwner, clock: Clock
    ) -> None:
        self._comparer = comparer
        self._jetstream = jetstream
        self._link = link
        self._owner = owner
        self._clock = clock
        self.verification_count = 0
        self.drifted_key_count = 0

    async def verify(self, source: SourceDefinition, options: VerifyOptions) -> VerifyResult:
        """Verify, and return the result.

        Raises:
            As `steps`.
        """
        async with aclosing(self.steps(source, options)) as steps:
            async for step in steps:
                if isinstance(step, VerifyResult):
                    return step
        raise AssertionError("a verification ends with its verdict")

    async def steps(
        self, source: SourceDefinition, options: VerifyOptions
    ) -> AsyncGenerator[VerifyProgress | VerifyResult, None]:
        """Verify; yields progress, and the result at the end. The caller must close it.

        Raises:
            As `Comparer.steps`; SourceNotFound (deleted meanwhile); of a repair ReadOnly, CommitUnknown.
        """
        comparison: SourceComparison | None = None
        async with aclosing(self._compare(source, options, "")) as steps:
            async for step in steps:
                if isinstance(step, SourceComparison):
                    comparison = step
                else:
                    yield step
        assert comparison is not None
        self.verification_count += 1
        self.drifted_key_count += comparison.difference_count
        self._owner.record_verification(source.name, comparison.difference_count)
        if not options.repair or comparison.is_right:
            yield VerifyResult(comparison, (await self._current_source(source.name)).report)
            return
        stopped = await self._policy_stop(source.name)
        if stopped is not None:
            yield VerifyResult(comparison, stopped, trouble=_refusal(source.name, stopped))
            return
        repair = _RepairRun(self._link, self._clock, self._owner, source.name)
        async with aclosing(repair.steps(comparison.difference_count)) as repairing:
            async for progress in repairing:
                yield progress
        left: SourceComparison | None = None
        if not repair.trouble:
            async with aclosing(self._compare(source, options, "-again")) as steps:
                async for step in steps:
                    if isinstance(step, SourceComparison):
                        left = step
                    else:
                        yield step
            assert left is not None
            self._owner.record_verification(source.name, left.difference_count)
        yield VerifyResult(comparison, (await self._current_source(source.name)).report, left, repair.trouble)

    async def _current_source(self, name: str) -> SourceInfo:
        return self._owner.current(await self._link.get_source(name))

    async def _policy_stop(self, name: str) -> SourceReport | None:
        """Report of the stop by policy in which the source is, or would be after its next check; None = none."""
        info = await self._current_source(name)
        report = info.report
        try:
            await check_resume(
                self._jetstream,
                info.definition,
                decode_position(info.position),
                resync_serial=info.control.resync_serial,
                stop=info.stop,
            )
        except SourceStopped as stopped:
            report = replace(report, state=stopped.state, reason=stopped.reason)
        # A source that stopped in the middle of reading passes this check, which does not know the messages that left.
        return report if report.state in STOPPED_BY_POLICY else None

    def _compare(
        self, source: SourceDefinition, options: VerifyOptions, suffix: str
    ) -> AsyncGenerator[VerifyProgress | SourceComparison, None]:
        return self._comparer.steps(source, name=options.name + suffix, settle_s=options.settle_s, limit=options.limit)


class _RepairRun:
    """One requested resync. `trouble` = why it was not done."""

    def __init__(self, link: StoreLink, clock: Clock, owner: RepairOwner, name: str) -> None:
        self._link = link
        self._clock = clock
        self._owner = owner
        self._name = name
        self.trouble = ""

    async def steps(self, suspect_count: int) -> AsyncGenerator[VerifyProgress, None]:
        """Request it, and wait until it is done, or cannot be soon."""
        info = await self._link.control_source(self._name, resync=True)
        self._owner.apply_control(info)
        serial = info.control.resync_serial
        deadline_s = self._clock.monotonic_s() + REPAIR_S_MAX
        polls = 0
        while not _is_done(info, serial):
            if info.control.paused:
                self.trouble = "the source is paused; it resyncs when it is resumed"
                return
            if self._clock.monotonic_s() >= deadline_s:
                detail = info.report.reason or info.report.state
                self.trouble = (
                    f"the resync did not finish within {REPAIR_S_MAX:g} s: {detail if info.holder else 'no holder'}"
                )
                return
            if polls % PROGRESS_INTERVAL_POLLS == 0:
                yield VerifyProgress(VerifyStage.REPAIR, suspect_count=suspect_count)
            polls += 1
            await sleep(self._clock, POLL_INTERVAL_S)
            info = await self._link.get_source(self._name)


def _refusal(name: str, stopped: SourceReport) -> str:
    """Why a source stopped by its policy is not repaired, with the remedy."""
    reason = stopped.reason.removesuffix(f"; {resync_hint(name)}")
    return f"{name} is {stopped.state}: {reason}; {resync_hint(name)}"


def _is_done(info: SourceInfo, serial: int) -> bool:
    position = decode_position(info.position)
    # Without a position nothing can differ: the first copy is of the present bucket.
    return position is None or position.resync_serial >= serial
