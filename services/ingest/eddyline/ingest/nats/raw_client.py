"""nats-py's client with a second way to receive, and a refusal to speak in clear text where TLS is asked for.

It receives by a plain function, called with the bytes as they came.

Elsewhere (`Client.subscribe`): a queue, a task and a message object for each message, subjects decoded as UTF-8 and
headers folded into a dict. A subject that is not UTF-8, which the server takes, then breaks the connection again and
again, and repeated headers are lost. Here: 4 times as fast, bytes as they are (`raw_parser`).

TLS: nats-py encrypts only where the server says so, also for `tls://`, and then sends the password in clear text to one that
does not. With `tls` it takes up what a server offers, by what is to be gone by in that moment, and ends a connection that is
not encrypted before its first word.

Cost: it overrides `ssl_context`, and `_public_nkey`, `_ps`, `_process_info`, `_connect_to_server` and `_connect_command`,
which nats-py keeps to itself; `tests/ingest/nats/test_raw_client.py` and `test_nats_access.py` hold it to what we need, and
the version is pinned.
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
    """One raw subscription; the owner ends it."""

    def __init__(self, client: RawClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    async def end(self) -> None:
        """Receive no more. Harmless on a lost connection."""
        self._client.receivers.pop(self._subscription._id, None)
        with suppress(NatsError):  # closed, or ended before: nothing is left to take back
            await self._subscription.unsubscribe()


class RawClient(Client):
    """See the module. `tls` = nothing is said before it is on; None = as the server wants it. `nkey` gives the public key
    that the nonce was signed with, and is asked after each signature; None = a JWT says who we are, or nothing does."""

    def __init__(self, *, tls: NatsTls | None = None, nkey: Callable[[], str] | None = None) -> None:
        self._nkey = nkey
        super().__init__()
        self._tls = tls
        self.receivers: dict[int, Receive] = {}
        self._ps = RawParser(self, self.receivers)

    @property
    def _public_nkey(self) -> str | None:
        """Of the connection that is being made."""
        return self._nkey() if self._nkey is not None else None

    @_public_nkey.setter
    def _public_nkey(self, _value: str | None) -> None:
        """The library sets it once, and a file's key may be another one by the next connection."""

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Of the connection that is being made."""
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
        # The library drops the socket of a try that got no further than that. A server that hangs takes connections and
        # says nothing, so each try would leave one open until it ends or goes on.
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, object], initial_connection: bool = False) -> None:
        if self._tls is not None and info.get("tls_available"):
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        if self._tls is not None and not (self._server_info.get("tls_required") or self.options["tls_handshake_first"]):
            raise NatsError("nats: the server offers no TLS; nothing was said to it")
        return super()._connect_command()

    async def close(self) -> None:
        """Close for good, the socket too: nats-py leaves it open where it was cancelled within a close of its own."""
        await super().close()
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
