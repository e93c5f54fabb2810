"""Certificates from files: those of a server, and those a client uses. They are checked before anything uses them.

For a wrong file gRPC only reports a failed handshake, at the first call. So the ssl module checks files first: they are
PEM, key and certificate belong together, gRPC can sign with that kind of key, and the key has no passphrase.
Failure: MalformedTls, one line that names the file and has nothing of a key. Each function reads once;
`eddyline.core.tls.watched` reloads renewed certificates without a restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

import grpc

from eddyline.core.runtime.watched_file import FileWatcher
from eddyline.core.tls.certificate import has_supported_key

TLS_BYTES_MAX: Final = 1 << 20
"""Of one file. OpenSSL: unbounded. The bundle of all authorities of a system has some 220 KB."""
INSTALL_HINT: Final = "pip install eddyline-core[tls]"


class MalformedTls(Exception):
    """A file that cannot be used; the message has its path and the reason."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its chain, and its key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of a server. `client_ca` = only clients with a certificate of this authority may connect; empty = all may.

    `context` is for the HTTP endpoint, which asks for no client certificate. `grpc_context` is for a gRPC server that takes
    contexts of the ssl module; it asks for one if there is a `client_ca`.
    """

    certificate: Certificate
    context: ssl.SSLContext = field(repr=False, compare=False)
    grpc_context: ssl.SSLContext = field(repr=False, compare=False)
    client_ca: bytes = b""

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration for a gRPC server."""
        pair = [(self.certificate.key, self.certificate.chain)]
        return grpc.ssl_server_certificate_configuration(pair, root_certificates=self.client_ca or None)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS of a client: the authority of servers (empty = the system's), and its own certificate, if any."""

    ca: bytes = b""
    certificate: Certificate | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a gRPC channel."""
        own = self.certificate
        return grpc.ssl_channel_credentials(
            self.ca or None, own.key if own is not None else None, own.chain if own is not None else None
        )


def read_certificate(chain: str, key: str) -> Certificate:
    """Read a certificate and its key.

    Raises:
        MalformedTls: a file cannot be read or used.
    """
    return read_server(chain, key).certificate


def read_server(chain: str, key: str, *, client_ca: str = "") -> ServerTls:
    """Read the certificate and key of a server, and the authority of its clients, if any.

    Raises:
        MalformedTls: a file cannot be read or used, or was replaced meanwhile.
    """
    certificate = _read_pair(chain, key)
    context, grpc_context = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    try:
        for one in (context, grpc_context):
            one.load_cert_chain(chain, key, password=refuse_password)
        if not has_supported_key(certificate.chain):
            raise ValueError("gRPC cannot sign with its key: use RSA, or ECDSA on P-256 or P-384")
    except (OSError, ValueError) as error:
        raise MalformedTls(f"{chain} with {key} cannot be used: {tls_error_text(error)}") from None
    except ImportError:
        raise MalformedTls(
            f"{chain} cannot be checked without the Python package cryptography: {INSTALL_HINT}"
        ) from None
    # The ssl module takes paths only: if files were replaced meanwhile, it has checked others than those read.
    if _read_pair(chain, key) != certificate:
        raise MalformedTls(f"{chain} or {key} was replaced while it was read")
    authority = read_authority(client_ca) if client_ca else b""
    if authority:
        grpc_context.load_verify_locations(cadata=authority.decode("ascii"))
        grpc_context.verify_mode = ssl.CERT_REQUIRED
    return ServerTls(certificate, context, grpc_context, authority)


def read_authority(path: str) -> bytes:
    """Read the certificates of an authority.

    Raises:
        MalformedTls: the file cannot be read or used.
    """
    pem = _read(path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (OSError, ValueError) as error:
        raise MalformedTls(f"{path} cannot be used: {tls_error_text(error)}") from None
    return pem


def _read_pair(chain: str, key: str) -> Certificate:
    return Certificate(_read(chain), _read(key))


def _read(path: str) -> bytes:
    try:
        return FileWatcher(path, bytes_max=TLS_BYTES_MAX).read()
    except OSError as error:
        raise MalformedTls(f"{path} cannot be read: {error.strerror or error}") from None


def refuse_password() -> str:
    """Refuse a key that needs a passphrase; given to OpenSSL as its passphrase callback.

    Raises:
        ValueError: always.
    """
    # Without a callback OpenSSL reads from the terminal, and a starting service waits until it is killed.
    raise ValueError("the key is encrypted; use a key without a passphrase")


def tls_error_text(error: Exception) -> str:
    """Return why the ssl module refused a file."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM, or the key is of another certificate"
    if isinstance(error, UnicodeDecodeError):
        return "it is not PEM"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
