"""Access of a role, made from `CommonSettings`: its keys, its certificates, and the key and certificate it uses at other
roles.

The role polls the keys file, its own key file and its TLS files every `POLL_S` seconds. Added, changed and removed keys
and renewed certificates are in force within that time, without a restart. Streams of a removed key end; open connections
keep the certificates they were opened with. A file that is unreadable or malformed refuses the start. Later the role
keeps what it read last, and logs an ERROR; for TLS files at the second poll with the same reason, since files are written
one after the other. A certificate that has expired or is not valid yet is used, since the clock may be wrong, and logged
as a WARNING.
I1: a bind other than loopback needs keys or client certificates.
Threading: event loop; files are read on a thread.
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
"""Interval of polling files. nginx: only at a signal, which operators forget. Costs six stat calls a second."""

_LOG: Final = logging.getLogger(__name__)

Read = TypeVar("Read")


class RoleAccess:
    """Access of one role. Without settings: loopback only, every caller, no TLS."""

    def __init__(self, common: CommonSettings | None = None) -> None:
        """Read all files that are set.

        Raises:
            SettingsError: one line that names the setting, without any secret.
        """
        self._common = common = common if common is not None else CommonSettings()
        self._keys = FileWatcher(common.keys_file, bytes_max=KEYS_BYTES_MAX) if common.keys_file else None
        self._own = FileWatcher(common.key_file, bytes_max=SECRET_CHARS_MAX) if common.key_file else None
        self._logged: dict[str, str] = {}
        ring = _at_start("KEYS_FILE", self._keys, _ring)
        own = _at_start("KEY_FILE", self._own, parse_secret)
        self._tls = _tls(common)
        self._tls_error = ""
        self._dates = _dates_of(common, self._tls.current)
        quotas = Quotas(requests_max=common.key_requests_max, watches_max=common.key_watches_max)
        self.interceptor = AuthInterceptor(ring=ring, certificates=bool(common.tls_client_ca), quotas=quotas)
        self._key = CallerKey(own or "")
        client_tls = self._tls.current.client
        self._client_tls = CurrentTls(client_tls) if client_tls is not None else None

    @property
    def caller(self) -> CallerAccess:
        """Return key and certificate that this role uses at other roles."""
        return CallerAccess(self._key, is_role=self.interceptor.enforced, renewed=self._client_tls)

    @property
    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the credentials of its gRPC server, renewed for each new connection; None = no TLS."""
        return self._tls.credentials()

    def grpc_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for a new connection to a gRPC server of the ssl module; None = no TLS."""
        server = self._tls.current.server
        return server.grpc_context if server is not None else None

    def http_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for a new connection to its HTTP endpoint; None = no TLS."""
        server = self._tls.current.server
        return server.context if server is not None else None

    def certificate_expires_s(self) -> float:
        """Return the time at which the role's certificate expires, in seconds since 1970; 0 = no certificate."""
        expires = self._tls.current.expires
        return expires.timestamp() if expires is not None else 0.0

    def check_listen(self, listen: str) -> None:
        """Refuse a bind other than loopback without access control.

        Raises:
            SettingsError: the message says which binds are allowed.
        """
        if is_loopback(listen):
            return
        if not self.interceptor.enforced:
            raise SettingsError(
                f"refusing to listen on {listen}: without keys ({COMMON_PREFIX}KEYS_FILE) or certificates of clients"
                f" ({COMMON_PREFIX}TLS_CLIENT_CA) only loopback is safe (127.0.0.1, [::1] or localhost)"
            )
        if self._tls.current.server is None:
            _LOG.warning("keys and data travel unencrypted", extra=fields(listen=listen))

    @asynccontextmanager
    async def running(self, clock: Clock) -> AsyncIterator[None]:
        """Poll the files until left."""
        if self._keys is None and self._own is None and not self._tls:
            yield
            return
        self.log_invalid_dates(clock)
        try:
            async with background_task(self._poll_loop(clock), name="access"):
                yield
        finally:
            if self._client_tls is not None:
                await self._client_tls.close_idle()

    async def poll(self) -> None:
        """Poll the files once, and use what changed."""
        ring = await self._poll_file(self._keys, "KEYS_FILE", _ring)
        if ring is not None:
            ended = self.interceptor.replace(ring)
            _LOG.info("keys replaced", extra=fields(keys=len(ring), streams_ended=ended))
        own = await self._poll_file(self._own, "KEY_FILE", parse_secret)
        if own is not None:
            self._key.replace(own)
            _LOG.info("own key replaced")
        await self._poll_tls()

    def log_invalid_dates(self, clock: Clock) -> None:
        """Log, once for each reason, certificates with which no handshake succeeds now."""
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        for setting, (file, dates) in self._dates.items():
            reasons = [validity.invalid_reason(now) for validity in dates]
            reason = reasons[0] if reasons and all(reasons) else ""
            if reason and self._logged.get(setting) != reason:
                others = f", and none of the {len(reasons) - 1} others is valid" if len(reasons) > 1 else ""
                _LOG.warning("certificate not valid", extra=fields(setting=setting, file=file, error=reason + others))
            self._logged[setting] = reason

    async def _poll_loop(self, clock: Clock) -> NoReturn:
        refused = self.interceptor.refused_count
        while True:
            await sleep(clock, POLL_S)
            await self.poll()
            self.log_invalid_dates(clock)
            if self.interceptor.refused_count != refused:
                _LOG.warning("calls without a known key", extra=fields(count=self.interceptor.refused_count - refused))
                refused = self.interceptor.refused_count

    async def _poll_tls(self) -> None:
        if self._client_tls is not None:
            await self._client_tls.close_idle()
        try:
            is_new = await asyncio.to_thread(self._tls.poll)
        except MalformedTls as error:
            # Files are written one after the other: a mismatch that the next poll does not see was no error.
            reason = str(error)
            if reason == self._tls_error and self._logged.get("TLS") != reason:
                self._logged["TLS"] = reason
                _LOG.error("certificates kept", extra=fields(error=reason))
            self._tls_error = reason
            return
        self._tls_error = ""
        self._logged.pop("TLS", None)
        if is_new:
            loaded = self._tls.current
            self._dates = _dates_of(self._common, loaded)
            if self._client_tls is not None and loaded.client is not None and loaded.client != self._client_tls.newest:
                self._client_tls.newest = loaded.client
            dates = {"not_after": f"{loaded.expires:%Y-%m-%dT%H:%M:%SZ}"} if loaded.expires is not None else {}
            _LOG.info("certificates replaced", extra=fields(file=self._common.tls_cert or self._common.tls_ca, **dates))

    async def _poll_file(self, file: FileWatcher | None, setting: str, read: Callable[[bytes], Read]) -> Read | None:
        if file is None:
            return None
        try:
            content = await asyncio.to_thread(file.poll)
            value = read(content) if content is not None else None
        except (OSError, MalformedKeys) as error:
            reason = _reason_of(error)
            if self._logged.get(setting) != reason:
                self._logged[setting] = reason
                _LOG.error("keys kept", extra=fields(setting=COMMON_PREFIX + setting, file=file.path, error=reason))
            return None
        if content is not None:
            self._logged.pop(setting, None)
        return value


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
        raise SettingsError(f"{COMMON_PREFIX}{setting} {file.path}: {_reason_of(error)}") from None


def _dates_of(common: CommonSettings, loaded: LoadedTls) -> dict[str, tuple[str, list[Validity]]]:
    """Return file and validity by setting: of our chain the first certificate, which is ours; of authorities all, of
    which one that is valid is enough."""
    own = loaded.server.certificate.chain if loaded.server is not None else b""
    validity_by_setting = {
        f"{COMMON_PREFIX}TLS_CERT": (common.tls_cert, validities(own)[:1]),
        f"{COMMON_PREFIX}TLS_CA": (common.tls_ca, validities(loaded.client.ca) if loaded.client is not None else []),
        f"{COMMON_PREFIX}TLS_CLIENT_CA": (
            common.tls_client_ca,
            validities(loaded.server.client_ca) if loaded.server is not None else [],
        ),
    }
    return {setting: (file, dates) for setting, (file, dates) in validity_by_setting.items() if dates}


def _tls(common: CommonSettings) -> TlsReloader:
    try:
        return TlsReloader(common)
    except MalformedTls as error:
        raise SettingsError(f"{COMMON_PREFIX}TLS_…: {error}") from None


def _reason_of(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
