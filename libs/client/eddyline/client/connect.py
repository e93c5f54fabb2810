"""The client: `async with connect("127.0.0.1:7701") as client:`, with the address of any role.

GetTopology says where the others are. Reads, and writes that carry an idempotency key, are repeated while a role is
away; a plain append is not, since the client cannot know whether it was done. Errors are the classes of
`eddyline.core.errors`.
Threading: one event loop. The client owns its channels; iterators and streams that it gave end with it.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from eddyline.client.admin import topics
from eddyline.client.admin.artifacts import export_fold, import_fold, list_artifacts
from eddyline.client.admin.fold_check import settle_fold, verify_fold
from eddyline.client.admin.kv import Kv
from eddyline.client.admin.sources import Sources, sources_of
from eddyline.client.admin.status import role_statuses
from eddyline.client.append.append import append_records, append_request
from eddyline.client.append.append_run import AppendRun
from eddyline.client.append.append_stream import AppendStream
from eddyline.client.append.gathered_call import open_append_call
from eddyline.client.append.key_writes import KeyWrites
from eddyline.client.append.shared_streams import shared_streams
from eddyline.client.read.key_reads import KeyReads
from eddyline.client.read.read import ReadPlan, find_seq, read_log
from eddyline.client.read.stream import StreamPlan, stream_log
from eddyline.client.transport.advice_note import advising
from eddyline.client.transport.call import CALL_TIMEOUT_S, Retry, call_once, kv_topic_wanted, traced
from eddyline.client.transport.checked import check_bytes, check_each_bytes
from eddyline.client.transport.cluster_map import ClusterMap, Deliveries
from eddyline.client.transport.items import Items
from eddyline.client.transport.topology import Channels, find_topology
from eddyline.client.watch.events import START, Position, position_of
from eddyline.client.watch.plan import WatchPlan, wanted_topics
from eddyline.client.watch.watch import HEARTBEAT_MS, Watch
from eddyline.core.codec.calls import delete_result_from_pb, match_to_pb
from eddyline.core.errors import EddylineError
from eddyline.core.model.read import ALL_RECORDS, RecordFilter
from eddyline.core.model.sharding import shard_of
from eddyline.core.records.record import Op
from eddyline.core.runtime.clock import SystemClock
from eddyline.core.runtime.tasks import background_task, noop
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1 import log_pb2
from eddyline.v1.fold_pb2_grpc import FoldServiceStub
from eddyline.v1.log_pb2_grpc import LogServiceStub
from eddyline.v1.topic_pb2_grpc import TopicServiceStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    import grpc

    from eddyline.client.admin.status import RoleStatus
    from eddyline.client.append.shared_streams import SharedStreams
    from eddyline.client.read.stream import StreamEvent
    from eddyline.client.transport.topology import Topology
    from eddyline.client.watch.plan import Start, WatchTopic
    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.model.artifact import Artifact, ArtifactProgress, FoldExported, FoldImported
    from eddyline.core.model.deletion import DeleteResult, EraseProgress
    from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
    from eddyline.core.model.read import SeqFound
    from eddyline.core.model.topic import ConfigChange, Kind, TopicConfig, TopicInfo
    from eddyline.core.records.match import Match
    from eddyline.core.records.record import Gap, Record
    from eddyline.core.runtime.clock import Clock

DELETE_TIMEOUT_S: Final = 300.0
"""A delete by match reads every segment whose filters do not rule it out: ten times what any other write takes."""


@asynccontextmanager
async def connect(
    address: str,
    *,
    access: CallerAccess | None = None,
    timeout_s: float = 10.0,
    clock: Clock | None = None,
    random_source: random.Random | None = None,
) -> AsyncIterator[Client]:
    """Find the cluster at `address` (`host:port` of any role, or several with commas, tried in turn).

    `access`: key and certificates (`eddyline.client.client_access`), read again when their files change; None =
    without. Errors that leave the block have their advice as a note in the traceback.

    Raises:
        NotReady: no address answered within `timeout_s`. Unauthenticated: the cluster does not know the key.
    """
    system_clock = clock if clock is not None else SystemClock()
    jitter = random_source if random_source is not None else random.Random()
    retry = Retry(system_clock, random_source=jitter)
    channels = Channels(access)
    files = access.files if access is not None else None
    async with (
        advising(),
        files.running(system_clock) if files is not None else nullcontext(),
        shared_streams(system_clock) as streams,
    ):
        try:
            addresses = [part.strip() for part in address.split(",") if part.strip()]
            topology = await find_topology(channels, addresses, retry=retry, timeout_s=timeout_s)
            yield Client(
                topology, channels=channels, clock=system_clock, random_source=jitter, seeds=addresses, streams=streams
            )
        finally:
            await channels.close()


class Client(KeyReads, KeyWrites):
    """One cluster. Made by `connect`."""

    def __init__(
        self,
        topology: Topology,
        *,
        channels: Channels,
        clock: Clock,
        random_source: random.Random,
        seeds: Sequence[str] = (),
        streams: SharedStreams | None = None,
    ) -> None:
        """`streams` None = each append is a call of its own."""
        self._cluster = ClusterMap(topology, channels=channels, clock=clock, seeds=seeds)
        self._channels = channels
        self._clock = clock
        self._random = random_source
        self._streams = streams
        self._retry = Retry(clock, random_source=random_source)

    @property
    def topology(self) -> Topology:
        """The addresses of the roles, as of the newest answer."""
        return self._cluster.topology

    @property
    def sources(self) -> Sources:
        """The sources that ingest copies from NATS. While no ingest answers, the stores report how far each source
        is."""
        return sources_of(self._channels, self.topology, retry=self._retry)

    @property
    def kv(self) -> Kv:
        """Writes into NATS KV buckets."""
        return Kv(self._channels.any_of(self.topology.ingests, 0, "ingest"))

    def channel_to(self, address: str) -> grpc.aio.Channel:
        """Return the channel to one role, for calls that this class does not have."""
        return self._channels.to(address)

    async def statuses(self) -> tuple[RoleStatus, ...]:
        """Return each role's status; one that does not answer is in the list with its error."""
        return await role_statuses(self._channels, self.topology)

    async def create_topic(self, name: str, kind: Kind, config: TopicConfig | None = None) -> TopicInfo:
        """Create a topic; durable and appendable when it returns.

        Raises:
            EddylineError: InvalidName, TopicExists, InvalidConfig, QuotaTopics, ReadOnly.
        """
        return await topics.create_topic(self._topics(name), name, kind, config)

    async def update_topic(self, name: str, change: ConfigChange, *, if_epoch: int = 0) -> TopicInfo:
        """Change what `change` names of a topic's settings; the topic as it is then, durably.

        Raises:
            EddylineError: InvalidName, TopicNotFound, EpochMismatch, InvalidConfig, DiskFloor, ReadOnly, CommitUnknown.
        """
        return await topics.update_topic(self._topics(name), name, change, if_epoch=if_epoch)

    async def get_topic(self, name: str, *, on_retry: Callable[[EddylineError], None] | None = None) -> TopicInfo:
        """Return one topic's configuration and state. `on_retry` gets the error of each call that is repeated.

        Raises:
            EddylineError: InvalidName, TopicNotFound.
        """
        return await topics.get_topic(self._topics(name), name, retry=self._retry, on_retry=on_retry)

    def list_topics(self, name_prefix: str = "") -> Items[TopicInfo]:
        """Topics by name, in byte order. Any store gives those of all."""
        return topics.list_topics(self._topics(name_prefix), name_prefix, retry=self._retry)

    async def delete_topic(self, name: str, *, if_epoch: int = 0, if_empty: bool = False) -> int:
        """Delete a topic with all it has; returns its epoch.

        Raises:
            EddylineError: InvalidName, TopicNotFound, EpochMismatch, TopicNotEmpty, ReadOnly.
        """
        return await topics.delete_topic(self._topics(name), name, if_epoch=if_epoch, if_empty=if_empty)

    def erase_topic(self, name: str, *, if_epoch: int = 0) -> Items[EraseProgress]:
        """Take what was deleted from a topic before the call off the disk; the last progress is `erased`.

        Raises:
            EddylineError: InvalidName, TopicNotFound, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt, and
                a store that went away: another call does what is left.
        """
        return topics.erase_topic(self._topics(name), name, if_epoch=if_epoch)

    async def append(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        idempotency_key: str = "",
        expected_head_seq: int | None = None,
        expected_versions: Mapping[bytes, bytes] | None = None,
        create: Kind | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        traceparent: str = "",
    ) -> AppendResult:
        """Append records, all or none. With an `idempotency_key` it is repeated while the store is away.
        A record without an op is appended to a LOG topic, and put into a KV topic. Small appends to one topic that are in
        flight at once share messages; each has its own outcome.

        `expected_versions`: the version each key must have, empty = not live. `create` makes a missing topic first.
        `traceparent`: the W3C trace context that it is part of, from here to the subscribers.

        Raises:
            EddylineError: a refusal (nothing was stored; BatchTooLarge: more than 10 000 records or 64 MiB), or
                CommitUnknown and NotReady, where only a call with the same idempotency key settles whether it was.
        """
        request = append_request(
            topic, records, idempotency_key=idempotency_key, expected_head_seq=expected_head_seq, create=create
        )
        for key, version in (expected_versions or {}).items():
            check_bytes(key=key, version=version)
            request.expected_versions.add(key=key, version=version)
        with kv_topic_wanted(wanted=any(record.op != Op.APPEND for record in records)):
            return await append_records(
                self._store(topic),
                request,
                retry=self._retry,
                timeout_s=timeout_s,
                traceparent=traceparent,
                streams=self._streams,
            )

    @asynccontextmanager
    async def append_stream(
        self, topic: str, *, create: Kind | None = None, epoch: int = 0, traceparent: str = ""
    ) -> AsyncIterator[AppendStream]:
        """Open a stream of appends to one topic, many in flight and in a message; leaving it waits for every outcome.

        `epoch`: only to the topic of this epoch; 0 = whichever it is. `traceparent`: as `append` has it, of all of
        them.

        Raises:
            EddylineError: what the stream failed with.
        """
        call = open_append_call(self._store(topic), traced(traceparent))
        start = log_pb2.AppendStart(topic=topic, epoch=epoch)
        if create is not None:
            start.create.kind = topics.kind_to_pb(create)
        stream = AppendStream(call)
        try:
            await stream.call.start(start)
            async with background_task(stream.call.write_all(), stream.call.read_all(), name="append stream"):
                yield stream
                await stream.finish()
        finally:
            call.cancel()

    def append_run(
        self,
        topic: str,
        *,
        run_id: str,
        create: Kind | None = None,
        on_away: Callable[[EddylineError], None] = noop,
        on_back: Callable[[], None] = noop,
    ) -> AppendRun:
        """A run of single appends, each stored once, across restarts of the store; `AppendRun.run` does it.

        `run_id`: what its idempotency keys begin with; another run with the same one goes on where this one broke off.
        """
        return AppendRun(
            # A topic that was there once is not made again: its records would be gone.
            lambda epoch: self.append_stream(topic, create=None if epoch else create, epoch=epoch),
            run_id=run_id,
            clock=self._clock,
            random_source=self._random,
            on_away=on_away,
            on_back=on_back,
        )

    def read(
        self,
        topic: str,
        *,
        after: Position | int = START,
        limit: int = 0,
        follow: bool = False,
        record_filter: RecordFilter = ALL_RECORDS,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> Items[Record | Gap]:
        """Read the log behind `after` (exclusive), what was lost as gaps in their places; `limit` 0 = to the head.

        `follow` goes on with what comes, across restarts of the store; `on_retry` is called once an outage with the
        error, `on_resume` once a call succeeds again.

        Raises:
            EddylineError: TopicNotFound, CursorAhead, DataCorrupt.
        """
        plan = ReadPlan(topic, position_of(after), limit, follow, record_filter, on_retry, on_resume)
        return read_log(self._log(topic), plan, retry=self._retry)

    def stream(
        self,
        topic: str,
        *,
        after: Position | int = START,
        end_seq: int = 0,
        follow: bool = False,
        heals: bool = False,
        record_filter: RecordFilter = ALL_RECORDS,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> Items[StreamEvent]:
        """Read the log as events with their positions, up to `end_seq` (exclusive; 0 = the head), or for ever (`follow`).

        `heals` (KV topics): a gap is followed by the current values, then by the log from there. A snapshot that breaks
        off comes again, behind the same gap. A caller that stops early closes it.

        Raises:
            EddylineError: TopicNotFound, CursorAhead, DataCorrupt, InvalidArgument (`heals` with `end_seq`), NotKv,
                FoldLost.
        """
        plan = StreamPlan(topic, position_of(after), follow, end_seq, record_filter, heals, on_retry, on_resume)
        return stream_log(self._log(topic), plan, retry=self._retry)

    async def find_seq(
        self, topic: str, *, commit_time_ms: int | None = None, source_time_ns: int | None = None, epoch: int = 0
    ) -> SeqFound:
        """The first live record at or after a time, by exactly one of the two: read after its `seq` - 1.

        Raises:
            EddylineError: TopicNotFound, EpochMismatch, InvalidArgument (no time), DataCorrupt.
        """
        return await find_seq(
            self._log(topic),
            topic,
            commit_time_ms=commit_time_ms,
            source_time_ns=source_time_ns,
            epoch=epoch,
            retry=self._retry,
        )

    async def delete_records(
        self, topic: str, *, before_seq: int = 0, match: Match | None = None, epoch: int = 0
    ) -> DeleteResult:
        """Delete live records below `before_seq` (0 = up to the head), that `match` (None = all), for good, without a
        gap.

        Not repeated by itself: a second call would count 0, and reach what came in between.

        Raises:
            EddylineError: InvalidArgument (it means none, or some it may not mean), TopicNotFound, EpochMismatch,
                Throttled, ApplyLag, ReadOnly, CommitUnknown, FoldLost, DataCorrupt.
        """
        request = log_pb2.DeleteRecordsRequest(topic=topic, before_seq=before_seq, epoch=epoch)
        if match is not None:
            request.match.CopyFrom(match_to_pb(match))
        return delete_result_from_pb(await call_once(self._log(topic).DeleteRecords(request, timeout=DELETE_TIMEOUT_S)))

    def watch(
        self,
        topics: str | WatchTopic | Sequence[str | WatchTopic],
        *,
        start: Start = "snapshot",
        key_prefixes: Sequence[bytes] = (),
        heartbeat_ms: int = HEARTBEAT_MS,
        resume_snapshots: bool = False,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> Watch:
        """Watch topics, for ever, across restarts: nothing is lost and nothing comes twice.

        A topic given by name has the common `start` and `key_prefixes`. `heartbeat_ms`: 100 to 60 000, 0 = 10 000.
        `resume_snapshots`: one that is interrupted goes on where it was, with `SnapshotResumed`. `on_retry` is called
        once an outage with the error, `on_resume` once the watch goes on.

        Raises:
            EddylineError: InvalidArgument, InvalidName; when read: TopicNotFound, NotKv, CursorAhead, DataCorrupt.
        """
        check_each_bytes("key_prefixes", key_prefixes)
        wanted = wanted_topics(topics, start=start, key_prefixes=key_prefixes)
        deliveries = Deliveries(self._cluster, random_source=self._random)
        return Watch(
            WatchPlan(wanted, heartbeat_ms=heartbeat_ms, resume_snapshots=resume_snapshots),
            open_call=deliveries.open_call,
            explain=deliveries.explain,
            before_retry=deliveries.before_retry,
            clock=self._clock,
            random_source=self._random,
            heartbeat_ms=heartbeat_ms,
            on_retry=on_retry,
            on_resume=on_resume,
        )

    def verify_fold(self, topic: str) -> Items[FoldCheckProgress | FoldVerdict]:
        """Compare the fold with what base and log give; the verdict comes last. A caller that stops early closes it.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldLost, TooManyScans, ScanExpired, DataCorrupt, and a store that went
                away.
        """
        return verify_fold(self._fold(topic), topic)

    async def settle_fold(self, topic: str, *, if_epoch: int = 0) -> FoldSettled:
        """Take what base and log still give as a lost fold; one that is not lost stays as it is.

        Raises:
            EddylineError: TopicNotFound, NotKv, EpochMismatch, DiskFloor, ReadOnly, CommitUnknown, DataCorrupt.
        """
        return await settle_fold(self._fold(topic), topic, if_epoch=if_epoch)

    def export_fold(self, topic: str, *, if_epoch: int = 0) -> Items[ArtifactProgress | FoldExported]:
        """Write a fold where the store's artifacts go; what was written comes last (`admin/artifacts.py` says what it
        raises). A caller that stops early closes it."""
        return export_fold(self._fold(topic), topic, if_epoch=if_epoch)

    def import_fold(
        self, topic: str, *, from_topic: str = "", artifact: str = "", if_epoch: int = 0
    ) -> Items[ArtifactProgress | FoldImported]:
        """Make an artifact ("" = the latest) of `from_topic` ("" = of the same name) the fold of a KV topic that never
        had a record, or has lost its fold; what it became comes last (`admin/artifacts.py` says what it raises). A caller
        that stops early closes it."""
        return import_fold(self._fold(topic), topic, from_topic=from_topic, artifact=artifact, if_epoch=if_epoch)

    async def list_artifacts(self, topic: str) -> list[Artifact]:
        """Artifacts of a topic's name, newest first; the topic need not exist.

        Raises:
            EddylineError: InvalidName, ArtifactsNotConfigured, ArtifactsUnreachable.
        """
        return await list_artifacts(self._fold(topic), topic)

    def _topics(self, topic: str) -> TopicServiceStub:
        return TopicServiceStub(self._store(topic))

    def _log(self, topic: str) -> LogServiceStub:
        return LogServiceStub(self._store(topic))

    def _fold(self, topic: str) -> FoldServiceStub:
        return FoldServiceStub(self._store(topic))

    def _store(self, topic: str) -> grpc.aio.Channel:
        stores = self.topology.stores
        return self._channels.any_of(stores, shard_of(topic, len(stores)) if stores else 0, "store")
