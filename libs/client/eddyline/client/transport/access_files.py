"""A client's key and certificates, read again from their files while it is connected.

Looked at each `LOOK_S`: calls carry the new key from then on, and go by a channel with the new certificates; what is
under way goes on over the connection that it has. All files of TLS are checked together: a certificate that is written
before its key fits none, and is not taken until it does. The newest valid state stays in use meanwhile, and one WARNING
reports it.
Failure: MalformedKeys, MalformedTls or OSError at the start alone.
Threading: event loop. A look is a stat of each file; what is new is read and checked in some milliseconds.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.auth.caller_channel import CallerKey
from eddyline.core.auth.keys_file import SECRET_CHARS_MAX, MalformedKeys, parse_secret
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.tasks import background_task
from eddyline.core.runtime.watched_file import FileSetWatcher, FileWatcher
from eddyline.core.tls.files import TLS_BYTES_MAX, ClientTls, MalformedTls, read_authority, read_certificate
from eddyline.core.transport.renewed_channel import CurrentTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.runtime.clock import Clock

LOOK_S: Final = 5.0
"""Interval of the checks of the files. Costs four stat calls."""

_LOG: Final = logging.getLogger(__name__)


class AccessFiles:
    """Those of one client; an empty path = there is none. `key` and `tls` are what calls and channels go by."""

    def __init__(self, *, key_file: str = "", tls_ca: str = "", tls_cert: str = "", tls_key: str = "") -> None:
        """Read them.

        Raises:
            MalformedKeys, MalformedTls, OSError.
        """
        self._ca, self._certificate, self._certificate_key = tls_ca, tls_cert, tls_key
        self._key_file = FileWatcher(key_file, bytes_max=SECRET_CHARS_MAX) if key_file else None
        self._tls_files = FileSetWatcher(tls_ca, tls_cert, tls_key, bytes_max=TLS_BYTES_MAX)
        self._said = dict[str, str]()
        self.key = CallerKey(parse_secret(self._key_file.read()) if self._key_file is not None else "")
        self._tls_files.poll()  # before they are read: what is written in between is seen at the next look
        self.tls = CurrentTls(self._read_tls()) if self._tls_files else None
        self._tls_files.mark_read()

    def __bool__(self) -> bool:
        return self._key_file is not None or bool(self._tls_files)

    @asynccontextmanager
    async def running(self, clock: Clock) -> AsyncIterator[None]:
        """Look until left."""
        try:
            async with background_task(self._look_on(clock), name="access files"):
                yield
        finally:
            if self.tls is not None:
                await self.tls.close_idle()

    async def poll(self) -> None:
        """Look once, and go by what is new."""
        if self._key_file is not None:
            self._take_key(self._key_file)
        if self.tls is not None:
            self._take_tls(self.tls)
            await self.tls.close_idle()

    async def _look_on(self, clock: Clock) -> NoReturn:
        while True:
            await sleep(clock, LOOK_S)
            await self.poll()

    def _take_key(self, file: FileWatcher) -> None:
        try:
            content = file.poll()
            if content is not None:
                self.key.replace(parse_secret(content))
                self._said.pop("key", None)
        except OSError as error:
            self._keep("key", f"{file.path} cannot be read: {error.strerror or error}")
        except MalformedKeys as error:
            self._keep("key", f"{file.path} {error}")

    def _take_tls(self, held: CurrentTls) -> None:
        if not self._tls_files.poll():
            return
        try:
            found = self._read_tls()
        except MalformedTls as error:
            self._keep("certificates", str(error))
            return
        self._tls_files.mark_read()
        self._said.pop("certificates", None)
        if found != held.newest:
            held.newest = found

    def _read_tls(self) -> ClientTls:
        own = read_certificate(self._certificate, self._certificate_key) if self._certificate else None
        return ClientTls(read_authority(self._ca) if self._ca else b"", own)

    def _keep(self, what: str, why: str) -> None:
        if self._said.get(what) != why:
            self._said[what] = why
            _LOG.warning("%s kept", what, extra=fields(error=why))
