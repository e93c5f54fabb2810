"""The blocking client: `with connect("127.0.0.1:7701") as client:`, with the address of any role.

Each method is the asyncio client's of the same name, with its parameters, result and errors; its docstring is that
method's. An iterator is closed by `close`, by its `with` block or by dropping it. Callbacks (`on_retry`, `on_resume`,
`on_written`, `on_away`, `on_back`) are called on the client's event loop: they return at once and make no blocking
call. `Client.channel_to` of the asyncio client has no counterpart: its channel belongs to the event loop.
Threading: one client serves any number of threads; each iterator, watch and stream is used by one thread at a time.
Failure: see `loop_thread`. KeyboardInterrupt cancels the call and leaves the client usable; a write that was cancelled
may have been stored. After a fork every call in the child raises RuntimeError; in a running event loop likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from eddyline.client.admin.kv import Kv as AioKv
from eddyline.client.admin.sources import Sources as AioSources
from eddyline.client.connect import Client as AioClient
from eddyline.client.sync.append import AppendRun, append_stream
from eddyline.client.sync.blocking import blocking, made
from eddyline.client.sync.items import Items
from eddyline.client.sync.loop_thread import LoopThread
from eddyline.client.sync.watch import Watch

if TYPE_CHECKING:
    from types import TracebackType

    from eddyline.client.transport.topology import Topology
    from eddyline.core.auth.caller_channel import CallerAccess


def connect(address: str, *, access: CallerAccess | None = None, timeout_s: float = 10.0) -> Client:
    """Find the cluster at `address` (`host:port` of any role, or several with commas, tried in turn).

    The caller closes the client, by `with` or by `Client.close`. `access`: key and certificates
    (`eddyline.client.client_access`), read again when their files change; None = without.

    Raises:
        NotReady: no address answered within `timeout_s`. Unauthenticated: the cluster does not know the key.
        RuntimeError: an event loop runs in this thread.
    """
    return Client(LoopThread(address, access=access, timeout_s=timeout_s))


class Client:
    """One cluster. `connect` makes it."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the calls of all threads (RuntimeError there), close the channels and end the client's thread.

        Idempotent. Does nothing in a forked child, which has neither thread nor channels.
        """
        self._loop.close()

    @property
    def topology(self) -> Topology:
        """The addresses of the roles, as of the newest answer."""
        self._loop.check()
        return self._loop.client.topology

    @property
    def kv(self) -> Kv:
        """Writes into NATS KV buckets."""
        return Kv(self._loop)

    @property
    def sources(self) -> Sources:
        """The sources that ingest copies from NATS."""
        return Sources(self._loop)

    append = blocking(AioClient.append)
    append_stream = made(AioClient.append_stream, append_stream)
    append_run = made(AioClient.append_run, AppendRun)
    put = blocking(AioClient.put)
    delete = blocking(AioClient.delete)

    read = made(AioClient.read, Items)
    stream = made(AioClient.stream, Items)
    watch = made(AioClient.watch, Watch)
    find_seq = blocking(AioClient.find_seq)
    delete_records = blocking(AioClient.delete_records)

    get = blocking(AioClient.get)
    get_many = blocking(AioClient.get_many)
    get_columns = blocking(AioClient.get_columns)
    get_at = blocking(AioClient.get_at)
    history = made(AioClient.history, Items)
    range = made(AioClient.range, Items)

    create_topic = blocking(AioClient.create_topic)
    update_topic = blocking(AioClient.update_topic)
    get_topic = blocking(AioClient.get_topic)
    list_topics = made(AioClient.list_topics, Items)
    delete_topic = blocking(AioClient.delete_topic)
    erase_topic = made(AioClient.erase_topic, Items)

    verify_fold = made(AioClient.verify_fold, Items)
    settle_fold = blocking(AioClient.settle_fold)
    export_fold = made(AioClient.export_fold, Items)
    import_fold = made(AioClient.import_fold, Items)
    list_artifacts = blocking(AioClient.list_artifacts)
    statuses = blocking(AioClient.statuses)

    def _target(self) -> AioClient:
        return self._loop.client


class Kv:
    """Blocking writes into NATS KV buckets. `Client.kv` gives it."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    put = blocking(AioKv.put)
    create = blocking(AioKv.create)
    update = blocking(AioKv.update)
    delete = blocking(AioKv.delete)
    purge = blocking(AioKv.purge)

    def _target(self) -> AioKv:
        return self._loop.client.kv


class Sources:
    """Blocking calls for the sources of a cluster. `Client.sources` gives it."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    create = blocking(AioSources.create)
    update = blocking(AioSources.update)
    get = blocking(AioSources.get)
    list = blocking(AioSources.list)
    listing = blocking(AioSources.listing)
    pause = blocking(AioSources.pause)
    resume = blocking(AioSources.resume)
    resync = blocking(AioSources.resync)
    delete = blocking(AioSources.delete)
    compare = blocking(AioSources.compare)
    verify = made(AioSources.verify, Items)

    def _target(self) -> AioSources:
        return self._loop.client.sources
