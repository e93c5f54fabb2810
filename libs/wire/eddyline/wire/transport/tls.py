"""TLS of one connection without I/O: an SSLObject between two memory buffers.

Rejected: the TLS transports of asyncio and uvloop. They cost 20 to 60 us a write where this costs 2 (wire prototype), and
take one context for all connections, while a renewed certificate is a new context.
Failure: `receive` sets `failure`, and `take_output` then has the alert for the peer; `encrypt` raises `TlsFailed`. gRPC's
own core, as a client, reports such an alert as "Unwrap failed (TSI_DATA_CORRUPTED)".
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, Final, cast

READ_BYTES: Final = 256 << 10
ALPN_HTTP2: Final = "h2"
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: those that RFC 9113, 9.2.2, allows."""
_SAN_FIELDS: Final = {"DNS": "peer_dns", "URI": "peer_uri", "IP Address": "peer_ip", "email": "peer_email"}


class TlsFailed(Exception):
    """Nothing can be sent: the session is over."""


def prepare_context(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set what HTTP/2 asks of TLS on a server's context (RFC 9113, 9.2), and return it: ALPN, TLS 1.2, no renegotiation."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols([ALPN_HTTP2])
    return context


class TlsSession:
    """The server's side of one session."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "failure", "is_closed", "is_open")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        """The handshake is done, and the client speaks HTTP/2."""
        self.is_closed = False
        """The client has announced the end of its side (`close_notify`)."""
        self.failure = ""
        """Why the session is over: the handshake failed, the client speaks no HTTP/2, or bytes are not TLS."""

    def receive(self, data: bytes) -> bytes:
        """Return the plain bytes that came with `data`, also with the end of a session: `is_closed`, `failure`."""
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                if self._tls.selected_alpn_protocol() != ALPN_HTTP2:
                    self.failure = "the client did not ask for HTTP/2"
                    return b""
                self.is_open = True
            while part := self._tls.read(READ_BYTES):
                parts.append(part)
            self.is_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.failure = error.reason or str(error)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        """Return the bytes to send for `data`.

        Raises:
            TlsFailed: the session is over.
        """
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise TlsFailed(error.reason or str(error)) from None
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """Return what TLS itself has to send: of the handshake, an alert, or the answer to a key update."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the bytes that announce the end of our side."""
        with suppress(ssl.SSLError):  # the client's own announcement has not come, and is not waited for
            self._tls.unwrap()
        return self._outgoing.read()

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the properties of a client's verified certificate under gRPC's names."""
        properties: dict[str, list[bytes]] = {"transport_security_type": [b"ssl"]}
        # The stubs leave the shape open: subject = ((("commonName", "x"),),), subjectAltName = (("DNS", "x"),).
        certificate = cast("dict[str, Any]", self._tls.getpeercert() or {})
        encoded = self._tls.getpeercert(binary_form=True)
        if not certificate or encoded is None:
            return properties
        properties["x509_pem_cert"] = [ssl.DER_cert_to_PEM_cert(encoded).encode()]
        subject = [attribute for names in certificate.get("subject", ()) for attribute in names]
        common_names = [str(value).encode() for kind, value in subject if kind == "commonName"]
        if common_names:
            properties["x509_common_name"] = common_names
        for kind, value in certificate.get("subjectAltName", ()):
            for name in ("x509_subject_alternative_name", _SAN_FIELDS.get(kind, "")):
                if name:
                    properties.setdefault(name, []).append(str(value).encode())
        return properties
