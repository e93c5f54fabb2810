"""A store in process whose wire can be cut: what another role sees of a store that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from eddyline.core.errors import EddylineError, StoreUnreachable
from tests.support.sim.link_proxy import LinkProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.core.model.artifact import ArtifactProgress, FoldImported
    from eddyline.core.model.read import RangePage
    from eddyline.core.model.source import Renewal, SourceReport
    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult, Follow, FollowEvent, StoreLink


T = TypeVar("T")


class Reported(NamedTuple):
    """The report of a lease's holder on its source."""

    source: str
    fence: int
    report: SourceReport


class CutLink(LinkProxy):
    """A `StoreLink` over another one. Counts calls; `cut` and `mend` break and restore the wire, `cut_follow` breaks only
    the stream, once; reads, batches, appends and events of followed topics wait while their gate is closed."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._open: set[CutFollow] = set()
        self.away = False
        self.follow_count = 0
        self.read_count = 0
        self.open_scans = 0
        self.pages_until_cut: int | None = None
        self.follows_open = asyncio.Event()
        self.follows_open.set()
        self.reads_open = asyncio.Event()
        self.reads_open.set()
        self.applies_open = asyncio.Event()
        self.applies_open.set()
        self.applying = 0
        """Batches on their way."""
        self.failed_count = 0
        """Batches that did not get through."""
        self.appends_open = asyncio.Event()
        self.appends_open.set()
        self.appending = 0
        """Appends on their way."""
        self.answers_to_lose = 0
        """So many batches and appends are applied, and their answers lost."""
        self.batch_sizes: list[int] = []
        """Records of each batch that was applied."""
        self.source_looks = 0
        """The number of calls for a source."""
        self.reports: list[Reported] = []
        """The reports of holders that got through, without repeats of a state."""

    def cut(self) -> None:
        """From now on nothing gets through."""
        self.away = True
        self.cut_follow()

    def mend(self) -> None:
        """The store is back."""
        self.away = False

    def cut_follow(self) -> None:
        """Break the open streams; what is under way on them is lost."""
        for follow in self._open:
            follow.cut()

    def check(self) -> None:
        """Raises StoreUnreachable while the wire is cut."""
        if self.away:
            raise StoreUnreachable("the wire is cut")

    async def around(self, name: str, call: Callable[[StoreLink], Awaitable[T]]) -> T:
        """Make one call over the wire; reads wait at their gate."""
        if name == "read_records":
            await self.reads_open.wait()
        self.source_looks += name == "get_source"
        self.check()
        self.read_count += name == "read_records"
        return await call(self._link)

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        self.check()
        pages = self._link.range_entries(
            topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq
        )
        assert isinstance(pages, AsyncGenerator)
        self.open_scans += 1
        try:
            async with aclosing(pages):
                async for page in pages:
                    await self.reads_open.wait()
                    self.check()
                    if self.pages_until_cut is not None:
                        self.pages_until_cut -= 1
                        if self.pages_until_cut < 0:
                            self.pages_until_cut = None
                            raise StoreUnreachable("the scan was cut")
                    yield page
        finally:
            self.open_scans -= 1

    def import_fold(self, topic: str, *, artifact: str = "") -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        self.check()
        return self._link.import_fold(topic, artifact=artifact)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[Follow]:
        self.check()
        self.follow_count += 1
        broken: EddylineError | None = None
        async with self._link.follow() as inner, asyncio.TaskGroup() as tasks:
            follow = CutFollow(inner, self.follows_open)
            self._open.add(follow)
            pump = tasks.create_task(follow.pump())
            try:
                yield follow
            except EddylineError as error:
                broken = error
            finally:
                pump.cancel()
                self._open.discard(follow)
        if broken is not None:
            raise broken

    async def apply_batch(
        self, source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str = ""
    ) -> AppendResult:
        self.applying += 1
        try:
            await self.applies_open.wait()
            self.failed_count += self.away
            self.check()
            result = await self._link.apply_batch(
                source, fence=fence, previous=previous, new=new, batch=batch, traceparent=traceparent
            )
        finally:
            self.applying -= 1
        self.batch_sizes.append(batch.count if batch is not None else 0)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise StoreUnreachable("the answer was lost")
        return result

    async def append(self, topic: str, batch: Batch, *, idempotency_key: str = "") -> AppendResult:
        self.appending += 1
        try:
            await self.appends_open.wait()
            self.check()
            result = await self._link.append(topic, batch, idempotency_key=idempotency_key)
        finally:
            self.appending -= 1
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise StoreUnreachable("the answer was lost")
        return result

    async def renew_lease(self, source: str, *, fence: int, report: SourceReport) -> Renewal:
        renewal = await super().renew_lease(source, fence=fence, report=report)
        said = Reported(source, fence, report)
        mine = [other for other in self.reports if other.source == source]
        if not mine or (mine[-1].fence, mine[-1].report.state) != (fence, report.state):
            self.reports.append(said)
        return renewal


class CutFollow:
    """A stream of followed topics that can be cut."""

    def __init__(self, inner: Follow, may_pass: asyncio.Event) -> None:
        self._inner = inner
        self._may_pass = may_pass
        self._events: deque[FollowEvent] = deque()
        self._cut = False
        self._wake = asyncio.Event()

    def cut(self) -> None:
        """Lose what is under way, and break."""
        self._cut = True
        self._events.clear()
        self._wake.set()

    async def pump(self) -> None:
        """Move events over the wire."""
        async for event in self._inner:
            await self._may_pass.wait()
            self._events.append(event)
            self._wake.set()

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        self._check()
        await self._inner.add(follow_id, topic, epoch=epoch, after_seq=after_seq)

    async def remove(self, follow_id: int) -> None:
        self._check()
        await self._inner.remove(follow_id)

    async def grant(self, credit_bytes: int) -> None:
        self._check()
        await self._inner.grant(credit_bytes)

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        while True:
            self._check()
            while self._events:
                yield self._events.popleft()
                self._check()
            self._wake.clear()
            await self._wake.wait()

    def _check(self) -> None:
        if self._cut:
            raise StoreUnreachable("the wire was cut")
