"""TLS contexts of a test's server, out of certificates of its own authority."""

from __future__ import annotations

import ssl
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import grpc

from eddyline.wire.transport.tls import prepare_context

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.wire.transport.tls import TlsSession
    from tests.support.certificates import Authority, Certificate


def server_context(certificate: Certificate, *, clients: Authority | None = None) -> ssl.SSLContext:
    """A server's context; `clients` = only clients with a certificate of this authority may connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if clients is not None:
        context.load_verify_locations(clients.own.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return prepare_context(context)


def client_credentials(authority: Authority, own: Certificate | None = None) -> grpc.ChannelCredentials:
    """Credentials of a gRPC channel."""
    ca = authority.own.certificate.read_bytes()
    if own is None:
        return grpc.ssl_channel_credentials(ca)
    return grpc.ssl_channel_credentials(ca, own.key.read_bytes(), own.certificate.read_bytes())


class TlsClient:
    """The client's side of one session, on bytes."""

    def __init__(self, authority: Authority, version: ssl.TLSVersion) -> None:
        context = _client_context(authority.own.certificate, version)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.is_done = False
        """Its handshake is."""

    def handshake(self) -> bool:
        """Go on with it; whether there is something to send for it."""
        if not self.is_done:
            with suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                self.is_done = True
        return bool(self._outgoing.pending)

    def shake_hands(self, session: TlsSession) -> None:
        """Do all of it."""
        while self.handshake():
            assert session.receive(self.output()) == b""
            self._incoming.write(session.take_output())
        assert session.is_open and self.is_done

    def output(self) -> bytes:
        """The bytes to send."""
        return self._outgoing.read()

    def sends(self, data: bytes) -> bytes:
        """The records of `data`."""
        self._tls.write(data)
        return self.output()

    def closes(self) -> bytes:
        """The record that announces the end of this side."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self.output()

    def take(self, data: bytes) -> tuple[bytes, bool]:
        """Read records: their bytes, and whether the server has announced its end."""
        self._incoming.write(data)
        plain = b""
        if not self.is_done:
            return plain, False
        try:
            while part := self._tls.read(1 << 18):
                plain += part
        except ssl.SSLWantReadError:
            return plain, False
        except ssl.SSLZeroReturnError:  # both sides have ended
            pass
        return plain, True


@lru_cache(maxsize=16)
def _client_context(authority: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    """One for all sessions: a context takes 100 KiB, and freed ones of many sizes leave memory in pieces."""
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    return context
