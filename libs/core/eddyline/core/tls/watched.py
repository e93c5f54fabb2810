"""A role's certificate, its key and the authorities it goes by, taken anew from their files while the role runs.

All files are judged together: a certificate that is written before its key fits none, and is not taken until it does. What
was taken last holds meanwhile, on the server's side and the client's alike.
gRPC asks for what to show at each handshake, on threads of its own: it is handed what was taken last, and nothing is read or
judged there. A handshake that is over stays: streams go on over the connection that they have.
Failure: MalformedTls, at the start and at each look that finds what cannot be used.
Threading: the owner's; `look` blocks for a moment, and is called on a thread. What is `taken` may be had from any thread.
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
    """What a role has of it; None = it is not set. `expires` = when its certificate does."""

    server: ServerTls | None = None
    client: ClientTls | None = None
    expires: datetime | None = None


class TlsReloader:
    """The files that the settings name, and what was taken of them last."""

    def __init__(self, common: CommonSettings) -> None:
        """Read them.

        Raises:
            MalformedTls.
        """
        self._common = common
        paths = (common.tls_cert, common.tls_key, common.tls_ca, common.tls_client_ca)
        self._files = FileSetWatcher(*paths, bytes_max=TLS_BYTES_MAX)
        self.current = LoadedTls()
        self.poll()

    def __bool__(self) -> bool:
        return bool(self._files)

    def poll(self) -> bool:
        """Take what is new of the files; True = something was.

        Raises:
            MalformedTls: what was taken last holds; the next look tries again.
        """
        if not self._files.poll():
            return False
        found = self._read()
        self._files.mark_read()
        if found == self.current:
            return False
        self.current = found
        return True

    def credentials(self) -> grpc.ServerCredentials | None:
        """What a server shows, of whatever is taken when somebody connects; None = it is without TLS."""
        handed = self.current.server
        if handed is None:
            return None

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal handed
            server = self.current.server
            if server is None or server is handed:
                return None
            handed = server
            return server.configuration()

        return grpc.dynamic_ssl_server_credentials(
            handed.configuration(),
            newest,  # type: ignore[arg-type]  # None = as before, which the stubs do not know
            require_client_authentication=bool(handed.client_ca),
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
