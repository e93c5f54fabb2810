"""Sources as their users see them, read from ingest, or from the stores while no ingest answers.

Every ingest answers for every source; a store answers for those of its own shard. So calls go to every ingest first,
one after the other, then to every store. A list of which one store does not give its part is refused, since it would be
wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.client.admin.source_check import status_name
from eddyline.client.transport.call import CALL_TIMEOUT_S, STREAM_RETRYABLE, call_once
from eddyline.core.codec.state import source_definition_from_pb, source_detail_from_pb
from eddyline.core.errors import EddylineError, NotReady, SourceNotFound
from eddyline.core.model.source import SourceDefinition, SourceDetail
from eddyline.v1 import source_pb2
from eddyline.v1.source_pb2_grpc import SourceServiceStub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    import grpc

    from eddyline.client.transport.call import Retry

    Answer = TypeVar("Answer")

PAGE_SIZE: Final = 1_000
NO_DETAIL: Final = SourceDetail()
ASK_TIMEOUT_S: Final = 5.0
"""Of each role. One that hangs is passed over for the next."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source at one moment. `status` is a name of the contract's `SourceStatus`, e.g. `LIVE`; of `gap_count`,
    `gap_ms`, `changed_ms` and `detail` the contract says more (`Source`, `SourceDetail`).

    `from_store` = no ingest answered: it is as the last holder reported it to the store, `reported_ms` ago.
    """

    definition: SourceDefinition
    status: str
    reason: str
    position_revision: int
    last_revision: int
    lag: int
    holder: str
    reported_ms: int
    head_seq: int
    paused: bool = False
    resync_pending: bool = False
    epoch: int = 0
    gap_count: int = 0
    gap_ms: int = -1
    changed_ms: int = -1
    detail: SourceDetail = NO_DETAIL
    from_store: bool = False


class SourceListing(NamedTuple):
    """Sources by name; `warnings` = what a sources file names and the store does not have, for people."""

    sources: tuple[Source, ...]
    warnings: tuple[str, ...]


class SourceReads:
    """Reads of the SourceService. `stores` = those of all shards, each by an address of its own; none = calls go to
    ingests only."""

    def __init__(
        self, ingests: Sequence[grpc.aio.Channel], *, retry: Retry, stores: Sequence[grpc.aio.Channel] = ()
    ) -> None:
        self._ingests = tuple(SourceServiceStub(channel) for channel in ingests)
        self._stores = tuple(SourceServiceStub(channel) for channel in stores)
        self._retry = retry

    async def get(self, name: str) -> Source:
        """One source.

        Raises:
            EddylineError: SourceNotFound.
        """
        request = source_pb2.GetSourceRequest(source=name)

        async def ask(stub: SourceServiceStub, left_s: float) -> Source:
            answer = await call_once(stub.GetSource(request, timeout=min(left_s, ASK_TIMEOUT_S)))
            return source_from_pb(answer.source)

        async def ask_stores(left_s: float) -> Source:
            missing: SourceNotFound | None = None
            away: EddylineError | None = None
            for stub in self._stores:
                try:
                    return replace(await ask(stub, left_s), from_store=True)
                except SourceNotFound as error:
                    missing = error
                except EddylineError as error:
                    away = error  # it may have it
            raise away or missing or NotReady("the cluster names no store")

        return await self._run(ask, ask_stores)

    async def list(self) -> SourceListing:
        """All sources, by name."""

        async def ask(stub: SourceServiceStub, left_s: float) -> SourceListing:
            found: list[Source] = []
            warnings: list[str] = []
            request = source_pb2.ListSourcesRequest(page_size=PAGE_SIZE)
            while True:
                answer = await call_once(stub.ListSources(request, timeout=min(left_s, ASK_TIMEOUT_S)))
                found.extend(source_from_pb(source) for source in answer.sources)
                warnings += answer.warnings
                if not answer.next_page_token:
                    return SourceListing(tuple(found), tuple(warnings))
                request.page_token = answer.next_page_token

        async def ask_stores(left_s: float) -> SourceListing:
            listings = [await ask(stub, left_s) for stub in self._stores]
            found = [replace(source, from_store=True) for listing in listings for source in listing.sources]
            return SourceListing(tuple(sorted(found, key=lambda source: source.definition.name)), ())

        return await self._run(ask, ask_stores)

    async def _run(
        self,
        ask: Callable[[SourceServiceStub, float], Awaitable[Answer]],
        ask_stores: Callable[[float], Awaitable[Answer]],
    ) -> Answer:
        """Ask each ingest, then the stores, again and again until one answers or the time is over.

        Raises:
            EddylineError: a refusal; where no role answered, why the last ingest did not.
        """

        async def once(left_s: float) -> Answer:
            away: EddylineError = NotReady("the cluster names no ingest")
            for stub in self._ingests:
                try:
                    return await ask(stub, left_s)
                except EddylineError as error:
                    if error.code not in STREAM_RETRYABLE:
                        raise
                    away = error
            try:
                if self._stores:
                    return await ask_stores(left_s)
            except EddylineError as error:
                if isinstance(error, SourceNotFound):
                    raise
            raise away

        tries = self._retry.tries(timeout_s=CALL_TIMEOUT_S, retryable=STREAM_RETRYABLE)
        while True:
            try:
                return await once(max(tries.left_s, 0.001))
            except EddylineError as error:
                await tries.wait(error)


def source_from_pb(source: source_pb2.Source) -> Source:
    """A source as it came."""
    return Source(
        definition=source_definition_from_pb(source.definition),
        status=status_name(source.status),
        reason=source.reason,
        position_revision=source.position_revision,
        last_revision=source.last_revision,
        lag=source.lag,
        holder=source.holder,
        reported_ms=source.reported_ms,
        head_seq=source.head_seq,
        paused=source.paused,
        resync_pending=source.resync_pending,
        epoch=source.epoch,
        gap_count=source.gap_count,
        gap_ms=source.gap_ms,
        changed_ms=source.changed_ms,
        detail=source_detail_from_pb(source.detail) if source.HasField("detail") else NO_DETAIL,
    )
