"""Certificates of a test's own: an authority, and what it signs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import (
    BasicConstraints,
    CertificateBuilder,
    DNSName,
    GeneralName,
    IPAddress,
    Name,
    NameAttribute,
    SubjectAlternativeName,
    UniformResourceIdentifier,
    load_pem_x509_certificate,
    random_serial_number,
)
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
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

    def sign(self, name: str, *, not_after: datetime | None = None) -> Certificate:
        """A certificate for 127.0.0.1 and localhost."""
        signed = self._authority.issue_cert("127.0.0.1", "localhost", common_name=name, not_after=not_after)
        (certificate,) = signed.cert_chain_pems
        return self._written(name, certificate, signed.private_key_pem)

    def sign_names(
        self,
        file: str,
        *,
        common_name: str = "",
        uris: Sequence[str] = (),
        dns: Sequence[str] = (),
        valid: tuple[datetime, datetime] | None = None,
    ) -> Certificate:
        """A client's certificate with these names and no other, e.g. without a common name; `valid` = from when to when."""
        authority = load_pem_x509_certificate(self.own.certificate.read_bytes())
        signing = load_pem_private_key(self.own.key.read_bytes(), password=None)
        assert isinstance(signing, EllipticCurvePrivateKey)
        key = generate_private_key(SECP256R1())
        subject = Name([NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
        begins, ends = valid or (datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC))
        builder = CertificateBuilder(authority.subject, subject, key.public_key(), random_serial_number(), begins, ends)
        names: list[GeneralName] = [*map(UniformResourceIdentifier, uris), *map(DNSName, dns)]
        if names:
            builder = builder.add_extension(SubjectAlternativeName(names), critical=not common_name)
        files = Certificate(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        files.certificate.write_bytes(builder.sign(signing, SHA256()).public_bytes(Encoding.PEM))
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def _written(self, name: str, certificate: Blob, key: Blob) -> Certificate:
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        certificate.write_to_path(str(files.certificate))
        key.write_to_path(str(files.key))
        return files


def signed_by_itself(folder: Path, key: CertificateIssuerPrivateKeyTypes) -> Certificate:
    """A certificate for 127.0.0.1 with any key, that is its own authority."""
    name = Name([NameAttribute(NameOID.COMMON_NAME, "itself")])
    address = SubjectAlternativeName([IPAddress(ip_address("127.0.0.1"))])
    builder = CertificateBuilder(name, name, key.public_key(), random_serial_number())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2040, 1, 1, tzinfo=UTC)
    )
    builder = builder.add_extension(address, critical=False).add_extension(BasicConstraints(True, None), critical=True)
    made = builder.sign(key, None if isinstance(key, Ed25519PrivateKey) else SHA256())
    files = Certificate(folder / "itself.pem", folder / "itself.key")
    files.certificate.write_bytes(made.public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


class Files:
    """A role's TLS files, replaced as an operator does: each file by an atomic rename."""

    def __init__(self, folder: Path, authority: Authority, name: str = "role") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"
        self.renew(authority.sign(name))
        self.trust(authority)

    def renew(self, signed: Certificate) -> None:
        """Another certificate, and after it its key."""
        replace(self.certificate, signed.certificate.read_bytes())
        replace(self.key, signed.key.read_bytes())

    def trust(self, *authorities: Authority) -> None:
        """A bundle of these."""
        replace(self.ca, b"".join(one.own.certificate.read_bytes() for one in authorities))

    def settings(self, *, mutual: bool = True) -> dict[str, str]:
        """Of a role with these files, by the fields of CommonSettings."""
        names = {"tls_cert": self.certificate, "tls_key": self.key, "tls_ca": self.ca}
        return {name: str(path) for name, path in (names | ({"tls_client_ca": self.ca} if mutual else {})).items()}

    def environment(self, *, mutual: bool = True) -> dict[str, str]:
        """The same, for a process."""
        return {f"EDDYLINE_COMMON_{name.upper()}": path for name, path in self.settings(mutual=mutual).items()}


def replace(path: Path, content: bytes) -> None:
    """Put another file in the place of one."""
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)


def serial(certificate: bytes | Path) -> int:
    """A certificate's serial number, of PEM or a file of it."""
    pem = certificate.read_bytes() if isinstance(certificate, Path) else certificate
    return load_pem_x509_certificate(pem).serial_number


def shown(address: str) -> int:
    """The serial number of what a server shows to who connects now; a client without a certificate may ask, too. Blocks."""
    host, _, port = address.rpartition(":")
    return serial(ssl.get_server_certificate((host, int(port)), timeout=5).encode())


def encrypt_key(certificate: Certificate, to: Path) -> Path:
    """The key under a passphrase."""
    key = load_pem_private_key(certificate.key.read_bytes(), password=None)
    to.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"hush")))
    return to
