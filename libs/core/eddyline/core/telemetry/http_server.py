"""The HTTP endpoint of a role: `GET /metrics` for Prometheus, the probes of an orchestrator, and nothing else.

HEAD gets the same answer as GET, without the body: load balancers and monitors use it.

A bind other than loopback is refused unless there is a key. `/metrics` then needs it as a bearer token; the server keeps
its digest and compares in constant time. Probes need no key (`eddyline.core.telemetry.probes`). With a certificate the
endpoint speaks TLS only. It asks for no client certificate: an orchestrator and Prometheus have none.

Renewal: the listening TLS context has no certificate. In each handshake, at the ClientHello, the connection takes the newest
context that `tls` returns, which the role has checked before.

Bounds: `CONNECTIONS_MAX` connections of one request each; `READ_S` for the handshake and again for the request, `WRITE_S`
for the answer; `HEAD_BYTES_MAX` a request; one text for a client that does not read. The text is made once for all scrapes
within `REUSE_S`, on a thread, so many scrapers cost as much as one.
Not bounded: asyncio hands a connection over after its handshake. A client that connects and sends no ClientHello, or does
not complete the handshake, does not count in `CONNECTIONS_MAX`; it holds a descriptor until `READ_S` have passed. The work
of a handshake, 1 ms or more, is done on the event loop.
Rejected: the server of `prometheus_client`, which has a thread a scraper and keeps a slow one open forever.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import ssl
from contextlib import asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.addresses import check_loopback
from eddyline.core.runtime.settings import COMMON_PREFIX, SettingsError
from eddyline.core.runtime.tasks import task_group
from eddyline.core.telemetry.metrics_text import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.probes import Probes

CONNECTIONS_MAX: Final = 16
"""prometheus_client: unbounded. Two replicas of Prometheus, an agent and a person with a browser are four."""
HEAD_BYTES_MAX: Final = 8 << 10
READ_S: Final = 5.0
WRITE_S: Final = 10.0
"""Prometheus itself gives up after 10 s."""
REUSE_S: Final = 0.5
"""Maximum age of a text. Scrapes come each 10 to 60 s, so none sees a difference."""
PATH: Final = "/metrics"
KEY_CHARACTERS_MIN: Final = 16
KEY_CHARACTERS_MAX: Final = 1_024
"""16 of 64 characters are 96 bits: no one guesses them over 16 connections. The longest key must fit into a request's
head."""

_HEAD_END: Final = b"\r\n\r\n"
_KEY: Final = re.compile(r"[!-~]*")
"""A header, which carries the key, allows no other characters."""

_LOG: Final = logging.getLogger(__name__)


def read_key(path: str) -> str:
    """Read the key in a file, without the end of its line; empty if `path` is.

    Raises:
        SettingsError: the file cannot be read, or its key is too short, too long or not printable. No message has the key.
    """
    if not path:
        return ""
    name = f"{COMMON_PREFIX}METRICS_KEY_FILE {path}"
    try:
        key = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name} cannot be read: {type(error).__name__}") from None
    if not KEY_CHARACTERS_MIN <= len(key) <= KEY_CHARACTERS_MAX or not _KEY.fullmatch(key):
        raise SettingsError(
            f"{name} has no key: {KEY_CHARACTERS_MIN} to {KEY_CHARACTERS_MAX} printable ASCII characters, no spaces"
        )
    return key


def no_tls() -> ssl.SSLContext | None:
    """Return no TLS context: the endpoint has no certificate."""
    return None


class MetricsServer:
    """One endpoint. `address` is empty until it listens."""

    def __init__(
        self,
        listen: str,
        *,
        text: Callable[[], Awaitable[bytes]],
        clock: Clock,
        key: str = "",
        probes: Probes | None = None,
        tls: Callable[[], ssl.SSLContext | None] = no_tls,
    ) -> None:
        """Make it. `key` = the key that `/metrics` needs; empty = none, and only loopback is allowed.

        `tls` returns the TLS context for a new connection.
        """
        self._listen = listen
        self._make_text = text
        self._key_digest = sha256(key.encode()).digest() if key else b""
        self._probes = probes
        self._tls = tls
        self._clock = clock
        self._text = b""
        self._text_s: float | None = None
        self._making = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen until left; then give up the address and cut all connections.

        Raises:
            SettingsError: the address is not loopback and there is no key, or it is in use.
        """
        if not self._key_digest:
            check_loopback(self._listen)
        async with task_group() as tasks:
            try:
                await self._listen_on(tasks)
                yield
            finally:
                self._close()

    async def _listen_on(self, tasks: asyncio.TaskGroup) -> None:
        host, _, port = self._listen.rpartition(":")

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_full():
                writer.transport.abort()
                return
            connection = tasks.create_task(self._serve(reader, writer), name="metrics connection")
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        try:
            context = self._listening_context()
            self._server = await asyncio.start_server(
                accept,
                host.strip("[]"),
                int(port),
                limit=HEAD_BYTES_MAX,
                ssl=context,
                ssl_handshake_timeout=READ_S if context is not None else None,
            )
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {self._listen} for metrics: in use, or not an address of this host"
            ) from error
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def _close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    def _is_full(self) -> bool:
        return self._is_closed or len(self._connections) >= CONNECTIONS_MAX

    def _listening_context(self) -> ssl.SSLContext | None:
        """Return the TLS context to listen with; None = the role has no certificate."""
        if self._tls() is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # OpenSSL calls it at each ClientHello, also where the client sends no server name.
        context.sni_callback = self._on_client_hello
        return context

    def _on_client_hello(self, connection: ssl.SSLObject, _name: object, _context: object) -> int | None:
        """Give the connection the newest certificate; refuse one too many before the work of the handshake."""
        newest = self._tls()
        if newest is None or self._is_full():
            return int(ssl.AlertDescription.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = newest
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and write its answer; every error ends the connection only."""
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(_HEAD_END)
            answer = await self._answer(head)
            if head.startswith(b"HEAD "):
                answer = answer[: answer.index(_HEAD_END) + len(_HEAD_END)]
            async with asyncio.timeout(WRITE_S):
                writer.write(answer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client left, was too slow, or speaks another protocol
        except Exception:  # the root of a connection's work: a defect of a metric must not end the role
            _LOG.exception("metrics broke")
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, b"not HTTP/1\n")
        if words[0] not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD only\n", more="Allow: GET, HEAD\r\n")
        path = words[1].partition(b"?")[0].decode("latin-1")
        if self._probes is not None and (probe := self._probes.answer(path)) is not None:
            return _response(probe.status, f"{probe.text}\n".encode())
        if path != PATH:
            return _response(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}\n".encode())
        if not self._may_scrape(head):
            return _response(HTTPStatus.UNAUTHORIZED, b"a key is needed\n", more="WWW-Authenticate: Bearer\r\n")
        return _response(HTTPStatus.OK, await self._fresh_text(), CONTENT_TYPE)

    def _may_scrape(self, head: bytes) -> bool:
        if not self._key_digest:
            return True
        token = _bearer(head)
        return token is not None and hmac.compare_digest(sha256(token).digest(), self._key_digest)

    async def _fresh_text(self) -> bytes:
        async with self._making:
            now_s = self._clock.monotonic_s()
            if self._text_s is None or now_s - self._text_s >= REUSE_S:
                self._text = await self._make_text()
                self._text_s = now_s
            return self._text


def _bearer(head: bytes) -> bytes | None:
    """Return the token of a request's `Authorization: Bearer`; None = there is none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        scheme, _, token = value.strip().partition(b" ")
        if name.strip().lower() == b"authorization" and scheme.lower() == b"bearer":
            return token.strip()
    return None


def _response(
    status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8", *, more: str = ""
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
