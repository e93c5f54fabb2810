"""Certificate, key and authorities of a role, reloaded from their files while the role runs.

All files are checked together: a certificate that was written before its key does not fit the old one, and is used only
once the key is there. Until then server and clients keep the files that were loaded last. gRPC asks for the server's
certificate in each handshake, on threads of its own, and gets the ones loaded last; nothing is read or checked there. A
renewal does not touch open connections and their streams.
Failure: MalformedTls, at the start and at each poll that finds files that cannot be used.
Threading: the owner's; `poll` blocks for a moment, and belongs on a worker thread. `current` may be read from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from eddyline.core.runtime.watched_file import FileSetWatcher
from eddyline.core.tls.certificate import not_after
from eddyline.core.tls.files import TLS_BYTES_MAX, ClientTls, MalformedTls, ServerTls, read_authority, read_server

if TYPE_CHECKING:
    from datetime import datetime

    from eddyline.core.runtime.settings import CommonSettings


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """TLS of a role; None = not set. `expires` = the end of its certificate's validity."""

    server: ServerTls | None = None
    client: ClientTls | None = None
    expires: datetime | None = None


class TlsReloader:
    """The TLS files that the settings name, and the certificates loaded from them last."""

    def __init__(self, common: CommonSettings) -> None:
        """Read the files.

        Raises:
            MalformedTls: a file cannot be used.
        """
        self._common = common
        paths = (common.tls_cert, common.tls_key, common.tls_ca, common.tls_client_ca)
        self._files = FileSetWatcher(*paths, bytes_max=TLS_BYTES_MAX)
        self.current = LoadedTls()
        self.poll()

    def __bool__(self) -> bool:
        return bool(self._files)

    def poll(self) -> bool:
        """Load files that changed; return True if any certificate did.

        Raises:
            MalformedTls: `current` stays as it is; the next poll tries again.
        """
        if not self._files.poll():
            return False
        loaded = self._read()
        self._files.mark_read()
        if loaded == self.current:
            return False
        self.current = loaded
        return True

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the gRPC server's credentials, which use `current` in each handshake; None = no TLS."""
        previous = self.current.server
        if previous is None:
            return None

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal previous
            server = self.current.server
            if server is None or server is previous:
                return None
            previous = server
            return server.configuration()

        return grpc.dynamic_ssl_server_credentials(
            previous.configuration(),
            newest,  # type: ignore[arg-type]  # None = unchanged, which the stubs do not allow
            require_client_authentication=bool(previous.client_ca),
        )

    def _read(self) -> LoadedTls:
        common = self._common
        server: ServerTls | None = None
        expires: datetime | None = None
        if common.tls_cert:
            server = read_server(common.tls_cert, common.tls_key, client_ca=common.tls_client_ca)
            try:
                expires = not_after(server.certificate.chain)
            except ValueError as error:
                raise MalformedTls(f"{common.tls_cert} cannot be used: {error}") from None
        authority = read_authority(common.tls_ca) if common.tls_ca else b""
        own = server.certificate if server is not None else None
        client = ClientTls(authority, own) if own is not None or authority else None
        return LoadedTls(server, client, expires)
