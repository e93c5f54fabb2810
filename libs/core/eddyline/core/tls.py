"""Certificates from files: what a server shows and asks for, what a client goes by. Checked before anything uses them.

gRPC says of a wrong file only that a handshake failed, at the first call. So files are judged by the ssl module first: they
are PEM, key and certificate belong together, and no key waits for a passphrase.
Failure: MalformedTls, one line that names the file and shows nothing of a key. Files are read once, at start; renewed
certificates are taken by a restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc


class MalformedTls(Exception):
    """A file that cannot be used; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, with its chain, and its key, in PEM."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a server shows; `client_ca` = it takes only clients with a certificate of this authority; empty = all."""

    certificate: Certificate
    client_ca: bytes = b""

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC."""
        pair = [(self.certificate.key, self.certificate.chain)]
        if not self.client_ca:
            return grpc.ssl_server_credentials(pair)
        return grpc.ssl_server_credentials(pair, root_certificates=self.client_ca, require_client_auth=True)


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
    found = Certificate(_read(chain), _read(key))
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise MalformedTls(f"{chain} with {key} cannot be used: {_words(error)}") from None
    return found


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
        raise MalformedTls(f"{path} cannot be used: {_words(error)}") from None
    return found


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MalformedTls(f"{path} cannot be read: {error.strerror or error}") from None


def _refuse_password() -> str:
    # Elsewhere OpenSSL asks on the terminal, and a service that starts waits for ever.
    raise ValueError("the key is encrypted; a key without a passphrase is needed")


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM, or the key is of another certificate"
    if isinstance(error, UnicodeDecodeError):
        return "it is not PEM"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
