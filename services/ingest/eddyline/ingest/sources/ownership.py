"""Ownership of sources: leases acquired, renewed and released.

Every half lease each shard's sources are listed, the shards independently, so that one that is away delays no other. A
source is acquired if it is free, if its lease expired, or if it carries this replica's holder name (after a restart). A
lease is renewed each third of its time, and at once when the source's state changed.

I1: the fence, not the clock, stops a replica that lost a lease: the store refuses batches with an older fence. So a
replica keeps a lease while renewals fail; the first answer decides.
I2: a replica runs a source once at a time, and awaits its end before it acquires it again.
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
from eddyline.ingest.copy.progress import COPYING, CopyProgress
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
"""Bounds the reports of a source that flickers to ten a second."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """A source that this replica copies."""

    lease: Lease
    progress: CopyProgress
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
        """Semaphore of comparisons of key sets."""
        return self._context.resyncs

    def list_now(self) -> None:
        """List the sources at once: one was created or deleted."""
        for wake in self._wakes:
            wake.set()

    def apply_control(self, info: SourceInfo) -> None:
        """Apply a change made through this replica without waiting for the next renewal."""
        held = self.held.get(info.definition.name)
        if held is not None and held.lease.fence == info.fence:
            held.control.update(info.control, info.definition.changeable)

    def current(self, info: SourceInfo) -> SourceInfo:
        """Return a source with its live report and position, where this replica holds it; else `info`.

        Report and position are of the same moment. `info` may be older: its position with a later report would describe a
        source that is LIVE and lags.
        """
        held = self.held.get(info.definition.name)
        if held is None or held.lease.fence != info.fence:
            return info
        return replace(info, position=held.run.stored, report=held.progress.current_report(), reported_ms=0)

    def record_verification(self, name: str, drift_count: int) -> None:
        """Note the result of a verification, where this replica holds the source."""
        held = self.held.get(name)
        if held is not None:
            held.progress.record_verification(drift_count)

    def drop(self, name: str) -> None:
        """Stop copying a source that was deleted."""
        held = self.held.get(name)
        if held is not None:
            held.stop.set()

    async def run(self) -> None:
        """Acquire sources and copy them until cancelled; releases every lease at the end."""
        async with asyncio.TaskGroup() as group:
            for shard in range(len(self._wakes)):
                group.create_task(self._list_forever(shard, group), name=f"sources of shard {shard}")

    async def _list_forever(self, shard: int, group: asyncio.TaskGroup) -> None:
        """List one shard's sources and acquire the free ones, until cancelled."""
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
            return  # another replica was faster, or the source was deleted
        log.info("lease won", extra=fields(source=name, fence=lease.fence))
        note = self._file.note(name)
        if note:
            log.warning("source is not in the sources file", extra=fields(source=name, reason=note))
        control = SourceControl(lease.source.control, lease.source.definition)
        progress = CopyProgress(self._context.clock, name)
        run = SourceRun(lease, self._context, progress, control)
        held = HeldSource(lease, progress, control, asyncio.Event(), run, shard)
        self.held[name] = held
        group.create_task(self._hold(name, held), name=f"source {name}")

    async def _hold(self, name: str, held: HeldSource) -> None:
        """Copy under a lease until the source or the lease ends."""
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
            pass  # it expires, or was lost already
        del self.held[name]
        await self._forget_source(name)
