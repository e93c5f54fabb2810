"""SourceService: any replica answers for any source, with its holder's last report to the store.

UpdateSource changes policies and the dead-letter topic; the other fields of a source are fixed at its creation.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.core.auth.grant import caller
from eddyline.core.codec.source import source_to_pb
from eddyline.core.codec.state import policy_from_pb, source_definition_from_pb, topic_config_from_pb
from eddyline.core.errors import EddylineError, InvalidArgument, SourceNotFound
from eddyline.core.model.paging import name_after, page_limit, token_after
from eddyline.core.model.source import SourceChange, changes_text, definition_text, setting_text
from eddyline.core.model.topic import TopicConfig, check_config
from eddyline.core.runtime.logging import fields
from eddyline.ingest.copy.progress import warnings_of
from eddyline.ingest.rpc.verification import differences_to_pb, step_to_pb
from eddyline.ingest.sources.creation import check_new_source, create_source, kind_of, update_source
from eddyline.ingest.verify.verify import VerifyOptions
from eddyline.v1 import source_pb2, source_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from eddyline.core.model.source import SourceDefinition, SourceInfo
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.sources.sources_file import SourcesFile
    from eddyline.ingest.verify.compare import Comparer
    from eddyline.ingest.verify.verify import Verifier
    from eddyline.v1 import source_pb2


FIXED_FIELDS: Final = ("name", "topic", "bucket", "stream", "key_prefixes", "subjects")
"""Fields of a definition that no update changes: with other values the topic would have to hold other records."""


def source_change_from_pb(request: source_pb2.UpdateSourceRequest, existing: SourceDefinition) -> SourceChange:
    """Translate an update request into the change of a source.

    Raises:
        InvalidArgument: another value of a fixed field, or a dead-letter topic that is both set and cleared. NotYet: a
            policy or a setting that this version does not know.
    """
    requested = source_definition_from_pb(request.definition)
    for field in FIXED_FIELDS:
        current, new = getattr(existing, field), getattr(requested, field)
        if new and new != current:
            raise InvalidArgument(
                f"{field} of source {existing.name} cannot be changed ({setting_text(current)}, not "
                f"{setting_text(new)}): create another source with its own topic, and delete this one",
                field=field,
            )
    letters: str | None = requested.dead_letter_topic or None
    if request.clear_dead_letter_topic:
        if letters:
            raise InvalidArgument(
                "dead_letter_topic and clear_dead_letter_topic are both set: choose one",
                field="clear_dead_letter_topic",
            )
        letters = ""
    return SourceChange(
        policy_from_pb(request.definition.on_expired, "on_expired"),
        policy_from_pb(request.definition.on_recreated, "on_recreated"),
        letters,
    )


log = logging.getLogger(__name__)

SERVICE: Final = "eddyline.v1.SourceService"
NATS_ANSWER_S: Final = 2.0
"""Bound of CreateSource's request to NATS about settings by which the bucket may lose revisions."""
SETTLE_MS_DEFAULT: Final = 5_000
SETTLE_MS_MAX: Final = 60_000
DIFFERENCES_DEFAULT: Final = 100
DIFFERENCES_MAX: Final = 10_000

_LIST: Final = "SourceService.ListSources"


class SourceOwner(Protocol):
    """The replica's reaction to changes of sources."""

    def list_now(self) -> None:
        """A source was created."""

    def apply_control(self, info: SourceInfo) -> None:
        """A source's control state or settings changed."""

    def current(self, info: SourceInfo) -> SourceInfo:
        """A source with its live report, if this replica holds it."""

    def drop(self, name: str) -> None:
        """A source was deleted."""


class SourceServicer(source_pb2_grpc.SourceServiceServicer):
    """Translates, validates, delegates."""

    def __init__(
        self,
        link: StoreLink,
        *,
        owner: SourceOwner,
        comparer: Comparer,
        verifier: Verifier,
        new_name: Callable[[], str],
        file: SourcesFile,
        jetstream: JetStream,
    ) -> None:
        self._link = link
        self._jetstream = jetstream
        self._file = file
        self._owner = owner
        self._comparer = comparer
        self._verifier = verifier
        self._new_name = new_name

    async def CreateSource(
        self, request: source_pb2.CreateSourceRequest, context: object
    ) -> source_pb2.CreateSourceResponse:
        definition = source_definition_from_pb(request.definition)
        check_new_source(definition)
        config = topic_config_from_pb(request.topic_config) if request.HasField("topic_config") else TopicConfig()
        check_config(config, kind_of(definition), definition.name)
        is_new = await self._definition(definition.name) is None
        info = await create_source(self._link, definition, config)
        if is_new:
            log.info("source created", extra=fields(source=definition.name, settings=definition_text(definition)))
        self._owner.list_now()
        source = self._to_pb(info)
        if not source.detail.warnings:  # no holder has reported yet
            source.detail.warnings.extend(warnings_of(await self._loss_warnings(definition)))
        return source_pb2.CreateSourceResponse(source=source)

    async def UpdateSource(
        self, request: source_pb2.UpdateSourceRequest, context: object
    ) -> source_pb2.UpdateSourceResponse:
        existing = (await self._authorized(request.source)).definition
        info = await update_source(self._link, request.source, source_change_from_pb(request, existing))
        changes = changes_text(existing, info.definition)
        log.info("source updated", extra=fields(source=request.source, changes=changes or "none"))
        self._owner.apply_control(info)
        return source_pb2.UpdateSourceResponse(source=self._to_pb(info))

    async def GetSource(self, request: source_pb2.GetSourceRequest, context: object) -> source_pb2.GetSourceResponse:
        return source_pb2.GetSourceResponse(source=self._to_pb(await self._authorized(request.source)))

    async def ListSources(
        self, request: source_pb2.ListSourcesRequest, context: object
    ) -> source_pb2.ListSourcesResponse:
        limit = page_limit(request.page_size)
        after = name_after(request.page_token, call=_LIST).encode()
        infos = sorted(await self._link.list_sources(), key=lambda info: info.definition.name.encode())
        matching = [info for info in infos if info.definition.name.encode() > after and _covers(info.definition)]
        page = matching[:limit]
        missing = {} if after else self._file.missing({info.definition.name for info in infos})
        return source_pb2.ListSourcesResponse(
            warnings=[warning for name, warning in missing.items() if caller().covers(name)],
            sources=[self._to_pb(info) for info in page],
            next_page_token=token_after(page[-1].definition.name, call=_LIST) if len(matching) > limit else "",
        )

    async def PauseSource(
        self, request: source_pb2.PauseSourceRequest, context: object
    ) -> source_pb2.PauseSourceResponse:
        return source_pb2.PauseSourceResponse(source=await self._control(request.source, paused=True))

    async def ResumeSource(
        self, request: source_pb2.ResumeSourceRequest, context: object
    ) -> source_pb2.ResumeSourceResponse:
        return source_pb2.ResumeSourceResponse(source=await self._control(request.source, paused=False))

    async def ResyncSource(
        self, request: source_pb2.ResyncSourceRequest, context: object
    ) -> source_pb2.ResyncSourceResponse:
        return source_pb2.ResyncSourceResponse(source=await self._control(request.source, resync=True))

    async def _control(self, name: str, *, paused: bool | None = None, resync: bool = False) -> source_pb2.Source:
        await self._authorize(name)
        info = await self._link.control_source(name, paused=paused, resync=resync)
        self._owner.apply_control(info)
        return self._to_pb(info)

    async def _loss_warnings(self, definition: SourceDefinition) -> Sequence[str]:
        """Warnings about the settings of a new source's bucket or stream; empty if NATS does not answer in time."""
        try:
            async with asyncio.timeout(NATS_ANSWER_S):
                return (await self._jetstream.source_stream(definition)).loss_warnings
        except (EddylineError, TimeoutError):
            return ()

    async def _definition(self, name: str) -> SourceDefinition | None:
        """The source's definition for the log; None = no such source."""
        try:
            return (await self._link.get_source(name)).definition
        except SourceNotFound:
            return None

    async def _authorized(self, name: str) -> SourceInfo:
        """Return a source, if its caller's prefixes cover all that it touches: its name alone proves little.

        Raises:
            SourceNotFound, PermissionDenied.
        """
        info = await self._link.get_source(name)
        caller().check(*info.definition.touched)
        return info

    async def _authorize(self, name: str) -> None:
        """The same check, without a read for callers that have no prefixes."""
        if caller().prefixes:
            await self._authorized(name)

    def _to_pb(self, info: SourceInfo) -> source_pb2.Source:
        source = source_to_pb(self._owner.current(info))
        # Compared here too, so that the answer of a change by hand already contains it.
        if self._file.names(info.definition.name):
            source.detail.file_drift = self._file.drift(info.definition)
        return source

    async def DeleteSource(
        self, request: source_pb2.DeleteSourceRequest, context: object
    ) -> source_pb2.DeleteSourceResponse:
        await self._authorize(request.source)
        existing = await self._definition(request.source)
        await self._link.delete_source(request.source)
        if existing is not None:
            log.info("source deleted", extra=fields(source=request.source, settings=definition_text(existing)))
        self._owner.drop(request.source)
        return source_pb2.DeleteSourceResponse(warnings=self._file.remakes(request.source))

    async def CompareSource(
        self, request: source_pb2.CompareSourceRequest, context: object
    ) -> source_pb2.CompareSourceResponse:
        settle_s, limit = _settle_s(request.settle_ms), _limit(request.limit)
        info = await self._authorized(request.source)
        comparison = await self._comparer.compare(
            info.definition, name=self._new_name(), settle_s=settle_s, limit=limit
        )
        return source_pb2.CompareSourceResponse(
            bucket_count=comparison.bucket_count,
            fold_count=comparison.fold_count,
            difference_count=comparison.difference_count,
            differences=differences_to_pb(comparison.differences),
            position_revision=comparison.position_revision,
            dead_letter_count=comparison.dead_letter_count,
        )

    async def VerifySource(
        self, request: source_pb2.VerifySourceRequest, context: object
    ) -> AsyncGenerator[source_pb2.VerifySourceResponse, None]:
        order = VerifyOptions(self._new_name(), _settle_s(request.settle_ms), _limit(request.limit), request.repair)
        info = await self._authorized(request.source)
        async with aclosing(self._verifier.steps(info.definition, order)) as steps:
            async for step in steps:
                yield step_to_pb(step)


def _covers(definition: SourceDefinition) -> bool:
    """True = its caller may see the source."""
    return all(map(caller().covers, definition.touched))


def _settle_s(settle_ms: int) -> float:
    if settle_ms > SETTLE_MS_MAX:
        message = f"settle_ms must be at most {SETTLE_MS_MAX}, not {settle_ms}"
        raise InvalidArgument(message, field="settle_ms", limitMs=SETTLE_MS_MAX)
    return (settle_ms or SETTLE_MS_DEFAULT) / 1000


def _limit(limit: int) -> int:
    if limit > DIFFERENCES_MAX:
        raise InvalidArgument(
            f"limit must be at most {DIFFERENCES_MAX}, not {limit}", field="limit", limit=DIFFERENCES_MAX
        )
    return limit or DIFFERENCES_DEFAULT
