"""Which sources this replica copies: leases taken, renewed and given back.

Every half lease each shard's sources are listed, one shard beside the others, so that one that is away holds nobody up; a
free one, one whose lease ran out, and one that carries our own holder name (we were restarted) is taken. A lease is renewed
each third of its time, and at once when the source's state changed.

I1: what stops a replica that lost a lease is the fence, not its clock: the store refuses the batches of an older one.
So a lease is not given up where renewals do not get through; the first answer decides.
I2: a source is run once at a time here; its end is awaited before it can be taken again.
Threading: event loop; a task a source, all in this one's group.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError, LeaseHeld, SourceNotFound, StaleFence, TopicNotFound
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep, wait_event
from eddyline.core.runtime.logging import fields
from eddyline.core.store_link.sharded import shards_of, sources_on
from eddyline.ingest.copy.progress import COPYING, Progress
from eddyline.ingest.sources.control import SourceControl
from eddyline.ingest.sources.source_run import SourceRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.core.model.source import Lease, SourceInfo
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.readiness import Readiness
    from eddyline.ingest.sources.context import SourceContext
    from eddyline.ingest.sources.sources_file import SourcesFile

log = logging.getLogger(__name__)

RELEASE_TIMEOUT_S: Final = 2.0
REPORT_INTERVAL_S_MIN: Final = 0.1
"""A source that flickers reports ten times a second at most."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """A source that this replica copies."""

    lease: Lease
    progress: Progress
    control: SourceControl
    stop: asyncio.Event
    run: SourceRun
    shard: int = 0


class Ownership:
    """The sources of this replica. `run` is its task."""

    def __init__(
        self,
        context: SourceContext,
        *,
        holder: str,
        lease_ms: int,
        readiness: Readiness,
        set_source: Callable[[str, bool], Awaitable[None]],
        forget_source: Callable[[str], Awaitable[None]],
        file: SourcesFile,
    ) -> None:
        self._file = file
        self._context = context
        self._holder = holder
        self._lease_ms = lease_ms
        self._readiness = readiness
        self._set_source = set_source
        self._forget_source = forget_source
        self._wakes = [asyncio.Event() for _ in shards_of(context.link)]
        self.held: dict[str, HeldSource] = {}

    @property
    def link(self) -> StoreLink:
        """The store."""
        return self._context.link

    @property
    def resyncs(self) -> asyncio.Semaphore:
        """Whose turn it is to compare key sets."""
        return self._context.resyncs

    def list_now(self) -> None:
        """List the sources now: one was created or deleted."""
        for wake in self._wakes:
            wake.set()

    def apply_control(self, info: SourceInfo) -> None:
        """Orders were given here, or the source was changed: it need not wait for its next renewal."""
        held = self.held.get(info.definition.name)
        if held is not None and held.lease.fence == info.fence:
            held.control.update(info.control, info.definition.changeable)

    def current(self, info: SourceInfo) -> SourceInfo:
        """A source as its holder sees it now, where that is us: newer than what it reported.

        Report and position are of this moment. `info` may be older: its position beside a later report would be that of a
        source that is LIVE and lags.
        """
        held = self.held.get(info.definition.name)
        if held is None or held.lease.fence != info.fence:
            return info
        return replace(info, position=held.run.stored, report=held.progress.current_report(), reported_ms=0)

    def record_verification(self, name: str, drift_count: int) -> None:
        """A source was verified, perhaps one of ours."""
        held = self.held.get(name)
        if held is not None:
            held.progress.record_verification(drift_count)

    def drop(self, name: str) -> None:
        """Stop copying a source that was deleted."""
        held = self.held.get(name)
        if held is not None:
            held.stop.set()

    async def run(self) -> None:
        """Take sources and copy them until cancelled; on the way out every lease is given back."""
        async with asyncio.TaskGroup() as group:
            for shard in range(len(self._wakes)):
                group.create_task(self._list_forever(shard, group), name=f"sources of shard {shard}")

    async def _list_forever(self, shard: int, group: asyncio.TaskGroup) -> None:
        """List one shard's sources and take those that are free, for ever."""
        backoff, wake = Backoff(self._context.rng), self._wakes[shard]
        while True:
            wait_s = self._lease_ms / 2000
            try:
                sources = await sources_on(self._context.link, shard)
                self._readiness.store_answered(shard)
                for info in sources:
                    await self._take(info, shard, group)
                backoff.reset()
            except EddylineError as error:
                least_s = self._readiness.store_failed(error, shard)
                wait_s = max(min(backoff.next_delay_s(), wait_s), least_s)
            await wait_event(self._context.clock, wake, wait_s)
            wake.clear()

    async def _take(self, info: SourceInfo, shard: int, group: asyncio.TaskGroup) -> None:
        name = info.definition.name
        if name in self.held or info.holder not in ("", self._holder):
            return
        try:
            lease = await self._context.link.acquire_lease(name, holder=self._holder, lease_ms=self._lease_ms)
        except (LeaseHeld, SourceNotFound):
            return  # another one was quicker, or it is gone
        log.info("lease won", extra=fields(source=name, fence=lease.fence))
        note = self._file.note(name)
        if note:
            log.warning("source is not in the sources file", extra=fields(source=name, reason=note))
        control = SourceControl(lease.source.control, lease.source.definition)
        progress = Progress(self._context.clock, name)
        run = SourceRun(lease, self._context, progress, control)
        held = HeldSource(lease, progress, control, asyncio.Event(), run, shard)
        self.held[name] = held
        group.create_task(self._hold(name, held), name=f"source {name}")

    async def _hold(self, name: str, held: HeldSource) -> None:
        """Copy under a lease until either the source or the lease ends."""
        try:
            async with asyncio.TaskGroup() as group:
                run = group.create_task(self._copy(name, held))
                renew = group.create_task(self._renew(name, held))
                stop = group.create_task(held.stop.wait())
                ended = (run, renew, stop)
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.cancel()
        finally:
            await self._release(name, held)

    async def _copy(self, name: str, held: HeldSource) -> None:
        try:
            await held.run.run()
        except (StaleFence, SourceNotFound, TopicNotFound) as error:
            log.info("source lost", extra=fields(source=name, fence=held.lease.fence, reason=error.reason))

    async def _renew(self, name: str, held: HeldSource) -> None:
        backoff = Backoff(self._context.rng)
        progress = held.progress
        while True:
            progress.changed.clear()
            wait_s = self._lease_ms / 3000
            progress.set_file_drift(self._file.drift(held.control.definition), self._file.note(name))
            await self._set_source(name, progress.state in COPYING)
            try:
                renewal = await self._context.link.renew_lease(name, fence=held.lease.fence, report=progress.report())
                held.control.update(renewal.control, renewal.changeable)
                progress.record_report()
                self._readiness.store_answered(held.shard)
                backoff.reset()
            except (StaleFence, SourceNotFound) as error:
                log.info("lease lost", extra=fields(source=name, fence=held.lease.fence, reason=error.reason))
                return
            except EddylineError as error:
                least_s = self._readiness.store_failed(error, held.shard)
                wait_s = max(min(backoff.next_delay_s(), wait_s), least_s)
            if await wait_event(self._context.clock, progress.changed, wait_s):
                await sleep(self._context.clock, REPORT_INTERVAL_S_MIN)

    async def _release(self, name: str, held: HeldSource) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._context.link.release_lease(name, fence=held.lease.fence)
        except (EddylineError, TimeoutError):
            pass  # it runs out by itself, or it was lost already
        del self.held[name]
        await self._forget_source(name)
