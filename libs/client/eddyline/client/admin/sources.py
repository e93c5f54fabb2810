"""Sources as their users see them: what is copied, how far, and whether fold and bucket are equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.admin.source_check import Difference, differences_from_pb, verify_source
from eddyline.client.admin.source_reads import Source, SourceListing, SourceReads, source_from_pb
from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once
from eddyline.core.codec.state import policy_to_pb, source_definition_to_pb
from eddyline.core.model.source import SourceDefinition
from eddyline.v1 import apply_pb2, source_pb2
from eddyline.v1.source_pb2_grpc import SourceServiceStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from eddyline.client.admin.source_check import SourceProgress, SourceVerdict
    from eddyline.client.transport.call import Retry
    from eddyline.client.transport.items import Items
    from eddyline.client.transport.topology import Channels, Topology
    from eddyline.core.model.source import Policy

__all__ = ["Comparison", "Source", "SourceListing", "Sources", "sources_of"]

COMPARE_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Fold against bucket; `difference_count` counts all but dead letters, `differences` are the first."""

    bucket_count: int
    fold_count: int
    difference_count: int
    differences: tuple[Difference, ...]
    position_revision: int
    dead_letter_count: int = 0

    @property
    def equal(self) -> bool:
        return self.difference_count == 0


class Sources:
    """The SourceService of a cluster. `Client.sources` gives it."""

    def __init__(self, channel: grpc.aio.Channel, *, retry: Retry, reads: SourceReads | None = None) -> None:
        """`channel`: to an ingest. `reads`: the way to what is read, by default that channel too."""
        self._stub = SourceServiceStub(channel)
        self._retry = retry
        self._reads = reads if reads is not None else SourceReads((channel,), retry=retry)

    async def create(
        self,
        name: str,
        *,
        bucket: str = "",
        stream: str = "",
        topic: str = "",
        key_prefixes: Sequence[bytes] = (),
        subjects: Sequence[str] = (),
        on_expired: Policy = "RESYNC",
        on_recreated: Policy = "STOP",
        dead_letter_topic: str = "",
    ) -> Source:
        """Copy a KV bucket into a KV topic, or a stream into a LOG topic (named as the source unless given); topics
        that are missing are made. `key_prefixes` and `subjects` = only messages that one of them names.

        Raises:
            EddylineError: InvalidName, InvalidArgument, SourceExists, TopicHasSource, TopicNotEmpty, NotKv, NotLog.
        """
        definition = SourceDefinition(
            name,
            topic or name,
            bucket,
            stream=stream,
            key_prefixes=tuple(key_prefixes),
            subjects=tuple(subjects),
            on_expired=on_expired,
            on_recreated=on_recreated,
            dead_letter_topic=dead_letter_topic,
        )
        request = source_pb2.CreateSourceRequest(definition=source_definition_to_pb(definition))
        # Safe to repeat: an equal definition is answered as done.
        answer = await self._retry.run(
            lambda left_s: self._stub.CreateSource(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S
        )
        return source_from_pb(answer.source)

    async def update(
        self,
        name: str,
        *,
        on_expired: Policy | None = None,
        on_recreated: Policy | None = None,
        dead_letter_topic: str | None = None,
    ) -> Source:
        """Change what a source does by itself; None keeps its value, and a dead-letter topic of "" takes it away. A
        dead-letter topic that is missing is made. Its holder goes by it within a third of a lease.

        Raises:
            EddylineError: SourceNotFound, InvalidName, InvalidArgument, NotLog, TopicHasSource.
        """
        request = source_pb2.UpdateSourceRequest(
            source=name,
            definition=apply_pb2.SourceDefinition(
                on_expired=policy_to_pb(on_expired),
                on_recreated=policy_to_pb(on_recreated),
                dead_letter_topic=dead_letter_topic or "",
            ),
            clear_dead_letter_topic=dead_letter_topic == "",
        )
        answer = await self._retry.run(
            lambda left_s: self._stub.UpdateSource(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S
        )
        return source_from_pb(answer.source)

    async def get(self, name: str) -> Source:
        """One source. While no ingest answers, as the store has it (`Source.from_store`).

        Raises:
            EddylineError: SourceNotFound.
        """
        return await self._reads.get(name)

    async def list(self) -> tuple[Source, ...]:
        """All sources, by name. While no ingest answers, as the stores have them (`Source.from_store`)."""
        return (await self.listing()).sources

    async def listing(self) -> SourceListing:
        """The same, with what a sources file names and the store does not have."""
        return await self._reads.list()

    async def pause(self, name: str) -> Source:
        """Copy nothing until it is resumed.

        Raises:
            EddylineError: SourceNotFound, ReadOnly.
        """
        request = source_pb2.PauseSourceRequest(source=name)
        answer = await self._retry.run(
            lambda left_s: self._stub.PauseSource(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S
        )
        return source_from_pb(answer.source)

    async def resume(self, name: str) -> Source:
        """Go on where it was paused.

        Raises:
            EddylineError: SourceNotFound, ReadOnly.
        """
        request = source_pb2.ResumeSourceRequest(source=name)
        answer = await self._retry.run(
            lambda left_s: self._stub.ResumeSource(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S
        )
        return source_from_pb(answer.source)

    async def resync(self, name: str) -> Source:
        """Ask for its topic to be brought in step with what its bucket or stream has now, whatever stopped it.

        `Source.resync_pending` is False once it is done.

        Raises:
            EddylineError: SourceNotFound, ReadOnly.
        """
        answer = await call_once(
            self._stub.ResyncSource(source_pb2.ResyncSourceRequest(source=name), timeout=CALL_TIMEOUT_S)
        )
        return source_from_pb(answer.source)

    async def delete(self, name: str) -> tuple[str, ...]:
        """Stop copying and forget the source; its topic stays. Return warnings for the operator, e.g. of a sources file
        that makes it again.

        Raises:
            EddylineError: SourceNotFound.
        """
        request = source_pb2.DeleteSourceRequest(source=name)
        return tuple((await call_once(self._stub.DeleteSource(request, timeout=CALL_TIMEOUT_S))).warnings)

    async def compare(self, name: str, *, settle_ms: int = 0, limit: int = 0) -> Comparison:
        """Compare fold and bucket, key by key (0 = the contract's defaults).

        Raises:
            EddylineError: SourceNotFound, BucketNotFound, NatsUnreachable, StoreUnreachable.
        """
        request = source_pb2.CompareSourceRequest(source=name, settle_ms=settle_ms, limit=limit)
        answer = await self._retry.run(
            lambda left_s: self._stub.CompareSource(request, timeout=left_s), timeout_s=COMPARE_TIMEOUT_S
        )
        return Comparison(
            bucket_count=answer.bucket_count,
            fold_count=answer.fold_count,
            difference_count=answer.difference_count,
            differences=differences_from_pb(answer.differences),
            position_revision=answer.position_revision,
            dead_letter_count=answer.dead_letter_count,
        )

    def verify(
        self, name: str, *, repair: bool = False, settle_ms: int = 0, limit: int = 0
    ) -> Items[SourceProgress | SourceVerdict]:
        """Compare fold and bucket by sums, then by keys where those differ; with `repair` a resync mends the fold, and
        the verdict has the remaining differences. Progress, then the verdict (0 = the contract's defaults). A caller
        that stops early closes it.

        Raises:
            EddylineError: SourceNotFound, NotKv, Throttled, BucketNotFound, NatsUnreachable, StoreUnreachable, and a
                replica that went away.
        """
        return verify_source(self._stub, name, settle_ms=settle_ms, limit=limit, repair=repair)


def sources_of(channels: Channels, topology: Topology, *, retry: Retry) -> Sources:
    """The SourceService of a cluster, over the client's channels.

    Raises:
        NotReady: the cluster names no ingest.
    """
    # Behind an address of several shards an unknown one of them answers, of its own sources alone.
    each = topology.stores if len(set(topology.stores)) == len(topology.stores) else ()
    reads = SourceReads(
        [channels.to(address) for address in topology.ingests],
        retry=retry,
        stores=[channels.to(address) for address in each],
    )
    return Sources(channels.any_of(topology.ingests, 0, "ingest"), retry=retry, reads=reads)
