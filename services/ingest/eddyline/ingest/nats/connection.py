"""The connection to NATS: one, kept until cancelled, with its own view of whether it is up.

nats-py gives up after 60 tries, and also if the server refuses its credentials, and then stays closed with its
subscriptions pending. This connection retries without end and with full jitter, and replaces a client that closed. `lost`
is set at the moment the connection breaks; its users wait for `wait_connected` and start over. A server that is cut off
from its cluster still serves its connections, and its JetStream answers nothing, or with old knowledge. So after MUTE_S
without a useful answer the connection is replaced, by one to another of the given servers if there is one.
Threading: event loop. nats-py's timers are its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nats.errors import Error as NatsError
from nats.errors import UnexpectedEOF

from eddyline.core.errors import NatsUnreachable
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.ingest.nats.cancellation import preserve_cancellation
from eddyline.ingest.nats.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from nats.aio.client import Server

    from eddyline.core.runtime.clock import Clock
    from eddyline.ingest.nats.login import NatsAccess

log = logging.getLogger(__name__)

RECONNECT_S_MIN: Final = 0.1
RECONNECT_S_MAX: Final = 2.0
"""Default in nats-py: always 2 s, so that after a restart of the server all clients dial at the same moment. Full jitter up
to 2 s."""
CONNECT_TIMEOUT_S: Final = 2
PING_INTERVAL_S: Final = 10
"""Default in nats-py: 120 s, so that a vanished server is noticed after four minutes. Two pings unanswered = lost, in 30 s
at most; a running consumer notices within two heartbeats."""
MUTE_S: Final = 10.0
"""nats-py stays with a server that is cut off. An election takes up to 9 s, and moving during one would only break a
connection that is about to work."""

LOGGED_ERRORS_MAX: Final = 16
"""nats-py reports every try. So many distinct errors are logged until the connection is up again; more are logged at
DEBUG."""

_REFUSED: Final = re.compile(r"authorization violation|authentication (expired|revoked)", re.IGNORECASE)
"""A server's error for credentials that it refuses, before it ends the connection."""
_CONNECTION_ENDS: Final = (ConnectionResetError, BrokenPipeError, UnexpectedEOF)
"""Ends of a connection whose reason was reported before."""
_DENIED: Final = re.compile(r'permissions violation for publish to "([^"]*)"')
_DENIED_INBOX: Final = re.compile(r'permissions violation for subscription to "([^"]*)"')


class Publishing:
    """A publish in flight to `subject`. `ended` is set when no answer will come; `denied` = NATS does not permit it."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.ended = asyncio.Event()
        self.denied = False

    def reason(self) -> str:
        """Why no answer comes, as text."""
        return f"NATS does not permit ingest to publish to {self.subject}" if self.denied else "the connection broke"

    def error(self) -> NatsUnreachable:
        """The same as an error of a request."""
        return NatsUnreachable(self.reason(), **({"deniedSubject": self.subject} if self.denied else {}))


class Connection:
    """See the module. `run` is its task; `on_change` is called whenever `connected` or `refused` changes."""

    def __init__(
        self, access: NatsAccess, *, name: str, clock: Clock, rng: Random, on_change: Callable[[], None]
    ) -> None:
        self._access = access
        self._name = name
        self._clock = clock
        self._rng = rng
        self._on_change = on_change
        self._client: RawClient | None = None
        self._attempts = 0
        self.trouble = ""
        """The last error since the connection was up; a refusal of our credentials outlasts the disconnect that
        follows it."""
        self._logged: set[str] = set()
        """Errors logged since the connection came up, or broke."""
        self._publishing: dict[str, set[Publishing]] = {}
        """By subject, in lower case: nats-py passes on the server's errors so."""
        self._up = asyncio.Event()
        self._over = asyncio.Event()
        self._mute_since_s: float | None = None
        self._mute_server = ""
        self._inbox_refused_s: float | None = None
        """When NATS denied the subscription to our inbox: no answer reaches us over this connection."""
        self.lost = asyncio.Event()
        """Event of the present connection: set when it breaks, and replaced by a new one at the next."""

    @property
    def connected(self) -> bool:
        """True = the connection is up, as far as we know."""
        return self._up.is_set()

    @property
    def refused(self) -> bool:
        """True = NATS refused our credentials at the last try."""
        return not self.connected and _REFUSED.search(self.trouble) is not None

    @property
    def client(self) -> RawClient:
        """The client of the present connection.

        Raises:
            NatsUnreachable: not connected.
        """
        if self._client is None or not self._up.is_set():
            raise self._unreachable()
        return self._client

    async def wait_connected(self) -> None:
        """Wait until the connection is up."""
        await self._up.wait()

    @contextmanager
    def publishing(self, subject: str) -> Iterator[Publishing]:
        """Watch for events that end a publish to `subject` without an answer.

        Raises:
            NatsUnreachable: not connected, or no answer can reach us over this connection.
        """
        if not self._up.is_set():
            raise self._unreachable()
        if self._inbox_refused_s is not None:
            raise self._inbox_denied(self._inbox_refused_s)
        publish, name = Publishing(subject), subject.lower()
        self._publishing.setdefault(name, set()).add(publish)
        try:
            yield publish
        finally:
            self._publishing[name].discard(publish)
            if not self._publishing[name]:
                del self._publishing[name]

    def _unreachable(self) -> NatsUnreachable:
        if self.refused:
            return NatsUnreachable(f"NATS refuses the credentials of ingest: {self.trouble}", credentials="refused")
        return NatsUnreachable(f"not connected to NATS: {self.trouble}" if self.trouble else "not connected to NATS")

    def _inbox_denied(self, since_s: float) -> NatsUnreachable:
        # Permissions may have changed; the library subscribes once a connection.
        if self._clock.monotonic_s() - since_s >= MUTE_S:
            self._over.set()
        prefix = self._access.inbox_prefix
        return NatsUnreachable(
            f"NATS does not permit ingest to subscribe to {prefix}.>; set EDDYLINE_INGEST_NATS_INBOX_PREFIX to a permitted "
            "inbox",
            deniedInbox=prefix,
        )

    def note_answer(self) -> None:
        """Record a useful answer of JetStream."""
        self._mute_since_s = None

    def note_no_answer(self) -> None:
        """Record a request without a useful answer. If that lasts, the connection moves to another server."""
        now_s = self._clock.monotonic_s()
        if self._mute_since_s is None:
            self._mute_since_s = now_s
        url = self._client.connected_url if self._client is not None and self.connected else None
        if url is None or len(self._access.servers) < 2 or now_s - self._mute_since_s < MUTE_S or self._over.is_set():
            return
        self._mute_server = _host_port(url.geturl())
        log.warning("nats server answers nothing", extra=fields(server=self._mute_server))
        self._over.set()

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        while True:
            credentials = self._access.credentials
            client = RawClient(
                tls=self._access.tls,
                nkey=credentials.public_key if credentials is not None and credentials.is_nkey else None,
            )
            self._client = client
            self._over.clear()
            self._mute_since_s = None
            try:
                with preserve_cancellation():
                    await self._connect(client)
                await self._over.wait()
            except (NatsError, OSError, TimeoutError) as error:
                log.log(self._note_error(error), "nats connect failed", extra=fields(error=repr(error)))
            finally:
                self._down()
                await self._close(client)
            await sleep(self._clock, self._rng.uniform(RECONNECT_S_MIN, RECONNECT_S_MAX))

    async def _connect(self, client: RawClient) -> None:
        access = self._access
        credentials = access.credentials
        servers = list(access.servers)
        self._rng.shuffle(servers)
        servers.sort(key=lambda server: _host_port(server) == self._mute_server)
        self._mute_server = ""
        await client.connect(
            servers,
            dont_randomize=True,
            name=self._name,
            user=access.login.user or None,
            password=access.login.password if access.login.user else None,
            token=access.login.token or None,
            signature_cb=credentials.sign if credentials is not None else None,
            user_jwt_cb=credentials.jwt if credentials is not None and not credentials.is_nkey else None,
            inbox_prefix=access.inbox_prefix,
            tls_handshake_first=access.tls_first,
            max_reconnect_attempts=-1,
            # nats-py annotates whole seconds and takes any number; used only for the first connection.
            reconnect_time_wait=self._rng.uniform(RECONNECT_S_MIN, RECONNECT_S_MAX),  # type: ignore[arg-type]
            reconnect_to_server_handler=self._next_server,
            connect_timeout=CONNECT_TIMEOUT_S,
            ping_interval=PING_INTERVAL_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_connected,
            closed_cb=self._on_closed,
        )
        await self._on_connected()

    async def _close(self, client: RawClient) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await client.close()
        except (NatsError, OSError, TimeoutError):
            pass  # lost already

    def _next_server(self, servers: list[Server], _info: dict[str, object]) -> tuple[Server, float]:
        self._attempts += 1
        bound_s = min(RECONNECT_S_MIN * 2 ** min(self._attempts, 10), RECONNECT_S_MAX)
        return self._rng.choice(servers), self._rng.uniform(0, bound_s)

    def _down(self) -> None:
        if self._up.is_set():
            self._up.clear()
            self._logged.clear()
            self.lost.set()
            for publishes in self._publishing.values():
                for publish in publishes:
                    publish.ended.set()
            self._on_change()

    async def _on_connected(self) -> None:
        self._attempts = 0
        self._mute_since_s = None
        self._inbox_refused_s = None
        self.trouble = ""
        self._logged.clear()
        if not self._up.is_set():
            self.lost = asyncio.Event()
            self._up.set()
            log.info("nats connected")
            self._on_change()

    async def _on_disconnected(self) -> None:
        log.info("nats disconnected")
        self._down()

    async def _on_closed(self) -> None:
        self._down()
        self._over.set()

    async def _on_error(self, error: Exception) -> None:
        denied = _DENIED.search(str(error))
        for publish in self._publishing.get(denied[1], ()) if denied is not None else ():
            publish.denied = True
            publish.ended.set()
        inbox = _DENIED_INBOX.search(str(error))
        if inbox is not None and inbox[1].startswith(f"{self._access.inbox_prefix.lower()}."):
            self._inbox_refused_s = self._clock.monotonic_s()
            for publishes in self._publishing.values():
                for publish in publishes:
                    publish.ended.set()
        log.log(self._note_error(error), "nats error", extra=fields(error=repr(error)))

    def _note_error(self, error: Exception) -> int:
        """Remember an error; returns the level at which it is logged.

        Each of thousands of tries fails alike, in one way or by turns: each way is logged once until the connection is
        up.
        """
        text = str(error) or type(error).__name__
        was_refused = self.refused
        if not (was_refused and isinstance(error, _CONNECTION_ENDS)):
            self.trouble = text
        if self.refused != was_refused:
            self._on_change()
        if text in self._logged or len(self._logged) >= LOGGED_ERRORS_MAX:
            return logging.DEBUG
        self._logged.add(text)
        return logging.WARNING


def _host_port(url: str) -> str:
    """Host and port, by which servers are distinguished."""
    return url.rpartition("/")[2].rpartition("@")[2]
