"""Certificates from files: what a server shows and asks for, what a client goes by. Checked before anything uses them.

gRPC says of a wrong file only that a handshake failed, at the first call. So files are judged by the ssl module first: they
are PEM, key and certificate belong together, the key is of a kind that gRPC signs with, and none waits for a passphrase.
Failure: MalformedTls, one line that names the file and shows nothing of a key. Each function reads once; who looks again,
so that renewed certificates are taken without a restart, is `eddyline.core.tls.watched`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

import grpc

from eddyline.core.runtime.watched_file import FileWatcher
from eddyline.core.tls.certificate import has_supported_key

TLS_BYTES_MAX: Final = 1 << 20
"""Of a file. Elsewhere unbounded. All authorities that a system comes with are some 220 KB."""
INSTALL_HINT: Final = "pip install eddyline-core[tls]"


class MalformedTls(Exception):
    """A file that cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, with its chain, and its key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a server shows; `client_ca` = it takes only clients with a certificate of this authority; empty = all.
    `context` = what it is shown by over HTTP, where nobody is asked for one."""

    certificate: Certificate
    context: ssl.SSLContext = field(repr=False, compare=False)
    client_ca: bytes = b""

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """For gRPC."""
        pair = [(self.certificate.key, self.certificate.chain)]
        return grpc.ssl_server_certificate_configuration(pair, root_certificates=self.client_ca or None)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """What a client goes by: the authority of servers (empty = those of the system), and its own certificate, if any."""

    ca: bytes = b""
    certificate: Certificate | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC."""
        own = self.certificate
        return grpc.ssl_channel_credentials(
            self.ca or None, own.key if own is not None else None, own.chain if own is not None else None
        )


def read_certificate(chain: str, key: str) -> Certificate:
    """Read a certificate and its key.

    Raises:
        MalformedTls.
    """
    return read_server(chain, key).certificate


def read_server(chain: str, key: str, *, client_ca: str = "") -> ServerTls:
    """Read a certificate and its key as a server shows them, and the authority of clients, where there is one.

    Raises:
        MalformedTls.
    """
    found = _read_pair(chain, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(chain, key, password=refuse_password)
        if not has_supported_key(found.chain):
            raise ValueError("its key is none that gRPC signs with: RSA, or ECDSA on P-256 or P-384, is needed")
    except (OSError, ValueError) as error:
        raise MalformedTls(f"{chain} with {key} cannot be used: {tls_error_text(error)}") from None
    except ImportError:
        raise MalformedTls(
            f"{chain} cannot be checked without the Python package cryptography: {INSTALL_HINT}"
        ) from None
    # The ssl module takes paths alone: where files were replaced meanwhile, it has judged others than those read.
    if _read_pair(chain, key) != found:
        raise MalformedTls(f"{chain} or {key} was replaced while it was read")
    return ServerTls(found, context, read_authority(client_ca) if client_ca else b"")


def read_authority(path: str) -> bytes:
    """Read the certificates of an authority.

    Raises:
        MalformedTls.
    """
    found = _read(path)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=found.decode("ascii"))
    except (OSError, ValueError) as error:
        raise MalformedTls(f"{path} cannot be used: {tls_error_text(error)}") from None
    return found


def _read_pair(chain: str, key: str) -> Certificate:
    return Certificate(_read(chain), _read(key))


def _read(path: str) -> bytes:
    try:
        return FileWatcher(path, bytes_max=TLS_BYTES_MAX).read()
    except OSError as error:
        raise MalformedTls(f"{path} cannot be read: {error.strerror or error}") from None


def refuse_password() -> str:
    """What stands for the passphrase of a key.

    Raises:
        ValueError: there is none to be had.
    """
    # Elsewhere OpenSSL asks on the terminal, and a service that starts waits for ever.
    raise ValueError("the key is encrypted; a key without a passphrase is needed")


def tls_error_text(error: Exception) -> str:
    """Why the ssl module did not take a file."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM, or the key is of another certificate"
    if isinstance(error, UnicodeDecodeError):
        return "it is not PEM"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
