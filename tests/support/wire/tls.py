"""TLS contexts of a test's server, out of certificates of its own authority."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import grpc

from eddyline.wire.transport.tls import prepare_context

if TYPE_CHECKING:
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
