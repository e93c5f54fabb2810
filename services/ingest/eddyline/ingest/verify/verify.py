"""Verifying a source: its fold compared with its bucket, and mended where that is asked for.

A repair is a resync, which the source's holder does under its own fence, whichever replica that is; here it is only ordered
and waited for, and then everything is compared again. A key that differs still is told, and not tried again.
I1: no repair is ordered of a source that its policy stops: a resync would take what is there now, an empty bucket too. The
stream is judged here as its holder judges it, right before the order, since what was reported may be older.
Figures are kept here: every verification counts, whoever asked for it.
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
"""The contract's. A resync reads the bucket once, as a comparison does: a million keys take some 20 s."""
POLL_INTERVAL_S: Final = 0.2
PROGRESS_INTERVAL_POLLS: Final = 5


class RepairOwner(Protocol):
    """What the replica does about sources that it may hold."""

    def apply_control(self, info: SourceInfo) -> None:
        """One was given orders."""

    def current(self, info: SourceInfo) -> SourceInfo:
        """One as its holder sees it now, where that is this replica."""

    def record_verification(self, name: str, drift_count: int) -> None:
        """One was verified; so many keys still differ."""


class VerifyOptions(NamedTuple):
    """How a verification is to be done. `name` is that of its consumers, unique."""

    name: str
    settle_s: float
    limit: int
    repair: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found; `left` = what still differed after a resync, None where none was done. `trouble` = why not.

    `report` = what the source's holder says of it at the end.
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
    """Verifies sources. `verification_count` and `drifted_key_count` = since its making."""

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
        """Verify.

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
        """The same, with how far it is. Whoever breaks off closes it.

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
        """Which stop of its own making the source stands in, or will; None = none."""
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
        # One that stopped in the middle of reading looks right to whoever did not see what left.
        return report if report.state in STOPPED_BY_POLICY else None

    def _compare(
        self, source: SourceDefinition, options: VerifyOptions, suffix: str
    ) -> AsyncGenerator[VerifyProgress | SourceComparison, None]:
        return self._comparer.steps(source, name=options.name + suffix, settle_s=options.settle_s, limit=options.limit)


class _RepairRun:
    """One resync, ordered and waited for. `trouble` = why it was not done."""

    def __init__(self, link: StoreLink, clock: Clock, owner: RepairOwner, name: str) -> None:
        self._link = link
        self._clock = clock
        self._owner = owner
        self._name = name
        self.trouble = ""

    async def steps(self, suspect_count: int) -> AsyncGenerator[VerifyProgress, None]:
        """Order it, and wait until it is done, or cannot be soon."""
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
                    f"the resync is not done after {REPAIR_S_MAX:g} s: {detail if info.holder else 'no holder'}"
                )
                return
            if polls % PROGRESS_INTERVAL_POLLS == 0:
                yield VerifyProgress(VerifyStage.REPAIR, suspect_count=suspect_count)
            polls += 1
            await sleep(self._clock, POLL_INTERVAL_S)
            info = await self._link.get_source(self._name)


def _refusal(name: str, stopped: SourceReport) -> str:
    """Why a source that its policy stopped is not repaired, and what does it all the same."""
    reason = stopped.reason.removesuffix(f"; {resync_hint(name)}")
    return f"{name} is {stopped.state}: {reason}; {resync_hint(name)}"


def _is_done(info: SourceInfo, serial: int) -> bool:
    position = decode_position(info.position)
    # Without a position there is nothing to bring in step: the first copy is of what there is.
    return position is None or position.resync_serial >= serial
