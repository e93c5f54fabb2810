"""TLS of connections to NATS: authorities and our own certificate, reloaded for a connection if their files changed.

Certificates live for days, the process for months: with the files of the start it could connect until they expire, and
then never again.
I1: no text that we make contains any part of a key.
Failure: a SettingsError that names the setting at the start. If a later read fails (a certificate written before its
key), the previous files stay in use, and the log has one line about it.
Threading: event loop. A poll is a stat of each file; loading changed files takes some milliseconds.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.settings import SettingsError
from eddyline.core.runtime.watched_file import FileSetWatcher
from eddyline.core.tls.files import TLS_BYTES_MAX, refuse_password, tls_error_text
from eddyline.ingest.config import PREFIX

if TYPE_CHECKING:
    from eddyline.ingest.config import IngestSettings

_LOG: Final = logging.getLogger(__name__)


class NatsTls:
    """TLS context of connections to NATS."""

    def __init__(self, settings: IngestSettings) -> None:
        """Read the files that the settings name.

        Raises:
            SettingsError.
        """
        self._ca = settings.nats_tls_ca
        self._certificate = settings.nats_tls_cert
        self._key = settings.nats_tls_key
        if bool(self._certificate) is not bool(self._key):
            raise SettingsError(f"{PREFIX}NATS_TLS_CERT and {PREFIX}NATS_TLS_KEY go together; set both or neither")
        self._files = FileSetWatcher(self._ca, self._certificate, self._key, bytes_max=TLS_BYTES_MAX)
        self._trouble = ""
        self._files.poll()  # before they are read: a write in between is seen at the next poll
        self._context = self._read()
        self._files.mark_read()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._files.poll():
            try:
                self._context = self._read()
            except SettingsError as error:
                self._log_kept(str(error))
            else:
                self._files.mark_read()
                self._trouble = ""
                _LOG.info("nats certificates replaced", extra=fields(file=self._certificate or self._ca))
        return self._context

    def _log_kept(self, error: str) -> None:
        if error != self._trouble:
            self._trouble = error
            _LOG.warning("nats certificates kept", extra=fields(error=error))

    def _read(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca or None)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{PREFIX}NATS_TLS_CA {self._ca} cannot be used: {tls_error_text(error)}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._certificate:
            try:
                context.load_cert_chain(self._certificate, self._key, password=refuse_password)
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{PREFIX}NATS_TLS_CERT {self._certificate} with {PREFIX}NATS_TLS_KEY cannot be used: "
                    f"{tls_error_text(error)}"
                ) from None
        return context
