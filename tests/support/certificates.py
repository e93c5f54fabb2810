"""Certificates of a test's own: an authority, and what it signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trustme import Blob


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """An authority that signs for a test; `folder` is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.own = self._written("ca", self._authority.cert_pem, self._authority.private_key_pem)

    def sign(self, name: str) -> Certificate:
        """A certificate for 127.0.0.1 and localhost."""
        signed = self._authority.issue_cert("127.0.0.1", "localhost", common_name=name)
        (certificate,) = signed.cert_chain_pems
        return self._written(name, certificate, signed.private_key_pem)

    def _written(self, name: str, certificate: Blob, key: Blob) -> Certificate:
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        certificate.write_to_path(str(files.certificate))
        key.write_to_path(str(files.key))
        return files


def encrypt_key(certificate: Certificate, to: Path) -> Path:
    """The key under a passphrase."""
    key = load_pem_private_key(certificate.key.read_bytes(), password=None)
    to.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"hush")))
    return to
