"""nats-py's client with a raw way to receive, and without clear text if TLS is required.

A raw subscription calls a plain function with the bytes of each message.

nats-py's `Client.subscribe` takes a queue, a task and a message object for each message, decodes subjects as UTF-8 and
folds headers into a dict. A subject that is not UTF-8, which the server accepts, then breaks the connection again and
again, and repeated headers are lost. The raw way is 4 times as fast, and passes bytes unchanged (`raw_parser`).

TLS: nats-py encrypts only if the server demands it, also for `tls://`, and else sends the password in clear text. With
`tls` this client accepts a server's offer, with the certificate files of that moment, and ends a connection that is not
encrypted before it sends anything.

Cost: it overrides `ssl_context`, and `_public_nkey`, `_ps`, `_process_info`, `_connect_to_server` and `_connect_command`,
which are private to nats-py; `tests/ingest/nats/test_raw_client.py` and `test_login.py` test them, and the version is
pinned.
Threading: event loop; the function runs inside the client's reading task and must neither block nor raise.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nats.aio.client import Client
from nats.errors import Error as NatsError

from eddyline.ingest.nats.raw_parser import RawParser

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from nats.aio.client import Srv
    from nats.aio.subscription import Subscription

    from eddyline.ingest.nats.raw_parser import Receive
    from eddyline.ingest.nats.tls import NatsTls


class RawSubscription:
    """One raw subscription; its owner must end it."""

    def __init__(self, client: RawClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    async def end(self) -> None:
        """Stop receiving. Harmless on a lost connection."""
        self._client.receivers.pop(self._subscription._id, None)
        with suppress(NatsError):  # closed, or ended before
            await self._subscription.unsubscribe()


class RawClient(Client):
    """See the module. `tls` = send nothing before it is on; None = as the server demands. `nkey` returns the public key of
    the last signature, and is called after each; None = a JWT identifies us, or nothing does."""

    def __init__(self, *, tls: NatsTls | None = None, nkey: Callable[[], str] | None = None) -> None:
        self._nkey = nkey
        super().__init__()
        self._tls = tls
        self.receivers: dict[int, Receive] = {}
        self._ps = RawParser(self, self.receivers)

    @property
    def _public_nkey(self) -> str | None:
        """Key of the connection that is being made."""
        return self._nkey() if self._nkey is not None else None

    @_public_nkey.setter
    def _public_nkey(self, _value: str | None) -> None:
        """Ignored: the library sets it once, and a file's key may be another one by the next connection."""

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Context of the connection that is being made."""
        return self._tls.context() if self._tls is not None else super().ssl_context

    async def subscribe_raw(self, subject: str, receive: Receive) -> RawSubscription:
        """Call `receive` for every message on `subject`, in order, until ended; reconnects keep it.

        Raises:
            NatsError: closed.
        """
        subscription = await self.subscribe(subject)
        self.receivers[subscription._id] = receive
        return RawSubscription(self, subscription)

    async def _connect_to_server(self, s: Srv) -> None:
        # The library leaks the socket of a try that only connected. A server that hangs accepts connections and sends
        # nothing, so each try would leave one open until it ends or goes on.
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, object], initial_connection: bool = False) -> None:
        if self._tls is not None and info.get("tls_available"):
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        if self._tls is not None and not (self._server_info.get("tls_required") or self.options["tls_handshake_first"]):
            raise NatsError("nats: the server offers no TLS; nothing was sent to it")
        return super()._connect_command()

    async def close(self) -> None:
        """Close the client and its socket: nats-py leaves the socket open if it was cancelled within a close of its own."""
        await super().close()
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
