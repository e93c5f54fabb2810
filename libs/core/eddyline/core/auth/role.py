"""Access as a role is set: its keys, its certificates, and what it shows to other roles. Put together from CommonSettings.

Keys file, own key and TLS's files are looked at each `POLL_S`, so that a key is given, changed or taken away and a
certificate is renewed without a restart: in force within that time, and streams of a key that is gone end; connections that
stand keep the certificates they were made with. A file that cannot be read, or is malformed, refuses the start; later on
what was read last holds, and an ERROR line says so, of TLS's files at the second look that finds the same.
A certificate that has expired or is not valid yet is taken, since the clock may be what is wrong, and a WARNING says so, at
the start as later on.
I1: a bind that is not loopback needs keys or client certificates.
Threading: event loop; files are looked at on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.interceptor import AuthInterceptor
from eddyline.core.auth.keys_file import (
    KEYS_BYTES_MAX,
    SECRET_CHARS_MAX,
    KeyRing,
    MalformedKeys,
    parse_keys,
    parse_secret,
)
from eddyline.core.auth.quotas import Quotas
from eddyline.core.runtime.addresses import is_loopback
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.settings import COMMON_PREFIX, CommonSettings, SettingsError
from eddyline.core.runtime.tasks import background_task
from eddyline.core.runtime.watched_file import FileWatcher
from eddyline.core.tls.certificate import Validity, validities
from eddyline.core.tls.files import MalformedTls
from eddyline.core.tls.watched import LoadedTls, TlsReloader
from eddyline.core.transport.renewed_channel import CurrentTls

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    import grpc

    from eddyline.core.runtime.clock import Clock

POLL_S: Final = 1.0
"""How often files are looked at: elsewhere at a signal alone, which is forgotten. Costs six stat calls a second."""

_LOG: Final = logging.getLogger(__name__)

Read = TypeVar("Read")


class RoleAccess:
    """What one role goes by. Without settings: loopback, everybody, no TLS."""

    def __init__(self, common: CommonSettings | None = None) -> None:
        """Read every file that is set.

        Raises:
            SettingsError: one line that names the setting, and nothing of a secret.
        """
        self._common = common = common if common is not None else CommonSettings()
        self._keys = FileWatcher(common.keys_file, bytes_max=KEYS_BYTES_MAX) if common.keys_file else None
        self._own = FileWatcher(common.key_file, bytes_max=SECRET_CHARS_MAX) if common.key_file else None
        self._said: dict[str, str] = {}
        ring = _at_start("KEYS_FILE", self._keys, _ring)
        own = _at_start("KEY_FILE", self._own, parse_secret)
        self._tls = _tls(common)
        self._tls_trouble = ""
        self._dates = _dates_of(common, self._tls.current)
        quotas = Quotas(requests_max=common.key_requests_max, watches_max=common.key_watches_max)
        self.gate = AuthInterceptor(ring=ring, certificates=bool(common.tls_client_ca), quotas=quotas)
        self._key = CallerKey(own or "")
        client_tls = self._tls.current.client
        self._client_tls = CurrentTls(client_tls) if client_tls is not None else None

    @property
    def caller(self) -> CallerAccess:
        """What this role shows to others."""
        return CallerAccess(self._key, speaks=self.gate.enforced, renewed=self._client_tls)

    @property
    def credentials(self) -> grpc.ServerCredentials | None:
        """What its server shows, whenever somebody connects; None = it is without TLS."""
        return self._tls.credentials()

    def http_context(self) -> ssl.SSLContext | None:
        """What its HTTP endpoint shows to who connects now; None = it is without TLS."""
        server = self._tls.current.server
        return server.context if server is not None else None

    def certificate_expires_s(self) -> float:
        """When the role's certificate expires, in seconds since 1970; 0 = it has none."""
        expires = self._tls.current.expires
        return expires.timestamp() if expires is not None else 0.0

    def check_listen(self, listen: str) -> None:
        """Refuse a bind that is open to others where nobody need say who he is.

        Raises:
            SettingsError: it says what is allowed.
        """
        if is_loopback(listen):
            return
        if not self.gate.enforced:
            raise SettingsError(
                f"refusing to listen on {listen}: without keys ({COMMON_PREFIX}KEYS_FILE) or certificates of clients"
                f" ({COMMON_PREFIX}TLS_CLIENT_CA) only loopback is safe (127.0.0.1, [::1] or localhost)"
            )
        if self._tls.current.server is None:
            _LOG.warning("keys and data travel unencrypted", extra=fields(listen=listen))

    @asynccontextmanager
    async def running(self, clock: Clock) -> AsyncIterator[None]:
        """Look at the files until left. What is raised inside comes out as it is."""
        if self._keys is None and self._own is None and not self._tls:
            yield
            return
        self.tell_dates(clock)
        try:
            async with background_task(self._look_on(clock), name="access"):
                yield
        finally:
            if self._client_tls is not None:
                await self._client_tls.close_idle()

    async def poll(self) -> None:
        """Look once, and go by what is new."""
        ring = await self._looked(self._keys, "KEYS_FILE", _ring)
        if ring is not None:
            ended = self.gate.replace(ring)
            _LOG.info("keys replaced", extra=fields(keys=len(ring), streams_ended=ended))
        own = await self._looked(self._own, "KEY_FILE", parse_secret)
        if own is not None:
            self._key.replace(own)
            _LOG.info("own key replaced")
        await self._look_at_tls()

    def tell_dates(self, clock: Clock) -> None:
        """Warn, once, of certificates with which no handshake succeeds now."""
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        for setting, (file, dates) in self._dates.items():
            troubles = [validity.invalid_reason(now) for validity in dates]
            why = troubles[0] if troubles and all(troubles) else ""
            if why and self._said.get(setting) != why:
                others = f", and none of the {len(troubles) - 1} others is valid" if len(troubles) > 1 else ""
                _LOG.warning("certificate not valid", extra=fields(setting=setting, file=file, error=why + others))
            self._said[setting] = why

    async def _look_on(self, clock: Clock) -> NoReturn:
        refused = self.gate.refused_count
        while True:
            await sleep(clock, POLL_S)
            await self.poll()
            self.tell_dates(clock)
            if self.gate.refused_count != refused:
                _LOG.warning("calls without a known key", extra=fields(count=self.gate.refused_count - refused))
                refused = self.gate.refused_count

    async def _look_at_tls(self) -> None:
        if self._client_tls is not None:
            await self._client_tls.close_idle()
        try:
            is_new = await asyncio.to_thread(self._tls.poll)
        except MalformedTls as error:
            # Files are written one after the other: what is well at the next look was no trouble.
            why = str(error)
            if why == self._tls_trouble and self._said.get("TLS") != why:
                self._said["TLS"] = why
                _LOG.error("certificates kept", extra=fields(error=why))
            self._tls_trouble = why
            return
        self._tls_trouble = ""
        self._said.pop("TLS", None)
        if is_new:
            taken = self._tls.current
            self._dates = _dates_of(self._common, taken)
            if self._client_tls is not None and taken.client is not None and taken.client != self._client_tls.newest:
                self._client_tls.newest = taken.client
            shown = {"not_after": f"{taken.expires:%Y-%m-%dT%H:%M:%SZ}"} if taken.expires is not None else {}
            _LOG.info("certificates replaced", extra=fields(file=self._common.tls_cert or self._common.tls_ca, **shown))

    async def _looked(self, file: FileWatcher | None, setting: str, read: Callable[[bytes], Read]) -> Read | None:
        if file is None:
            return None
        try:
            content = await asyncio.to_thread(file.poll)
            found = read(content) if content is not None else None
        except (OSError, MalformedKeys) as error:
            why = _words(error)
            if self._said.get(setting) != why:
                self._said[setting] = why
                _LOG.error("keys kept", extra=fields(setting=COMMON_PREFIX + setting, file=file.path, error=why))
            return None
        if content is not None:
            self._said.pop(setting, None)
        return found


def _ring(content: bytes) -> KeyRing:
    try:
        return parse_keys(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise MalformedKeys("is not UTF-8") from None


def _at_start(setting: str, file: FileWatcher | None, read: Callable[[bytes], Read]) -> Read | None:
    if file is None:
        return None
    try:
        return read(file.read())
    except (OSError, MalformedKeys) as error:
        raise SettingsError(f"{COMMON_PREFIX}{setting} {file.path}: {_words(error)}") from None


def _dates_of(common: CommonSettings, taken: LoadedTls) -> dict[str, tuple[str, list[Validity]]]:
    """File and dates by setting: of our own chain the first, which is ours; of authorities all, of which one is enough."""
    own = taken.server.certificate.chain if taken.server is not None else b""
    named = {
        f"{COMMON_PREFIX}TLS_CERT": (common.tls_cert, validities(own)[:1]),
        f"{COMMON_PREFIX}TLS_CA": (common.tls_ca, validities(taken.client.ca) if taken.client is not None else []),
        f"{COMMON_PREFIX}TLS_CLIENT_CA": (
            common.tls_client_ca,
            validities(taken.server.client_ca) if taken.server is not None else [],
        ),
    }
    return {setting: (file, dates) for setting, (file, dates) in named.items() if dates}


def _tls(common: CommonSettings) -> TlsReloader:
    try:
        return TlsReloader(common)
    except MalformedTls as error:
        raise SettingsError(f"{COMMON_PREFIX}TLS_…: {error}") from None


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
