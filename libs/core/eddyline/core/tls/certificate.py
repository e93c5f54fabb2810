"""Fields of certificates in PEM files: their validity period, and the kind of key they have.

The package `cryptography` reads them (extra `tls`), since the ssl module gives these fields only for verified peers and for
authorities. Nothing is verified here: OpenSSL does that when it loads the files.
`cryptography` is imported at the first call, which takes 80 ms: a client without a certificate of its own needs none of it.
Threading: pure functions.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from cryptography.x509 import Certificate

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 )?CERTIFICATE-----.+?-----END (?:X509 )?CERTIFICATE-----", re.DOTALL)


class Validity(NamedTuple):
    """Validity period of a certificate, both ends inclusive, in UTC."""

    not_before: datetime
    not_after: datetime

    def invalid_reason(self, now: datetime) -> str:
        """Return why the certificate is not valid at `now`; "" = it is valid."""
        if now > self.not_after:
            return f"it expired at {self.not_after:%Y-%m-%dT%H:%M:%SZ}"
        return f"it is not valid before {self.not_before:%Y-%m-%dT%H:%M:%SZ}" if now < self.not_before else ""


def not_after(chain: bytes) -> datetime:
    """Return the time at which the first certificate of a PEM chain expires.

    Raises:
        ValueError: the chain has no certificate that can be read.
    """
    try:
        return _first(chain).not_valid_after_utc
    except ValueError:
        raise ValueError("its expiry date cannot be read") from None


def validities(pem: bytes) -> list[Validity]:
    """Return the validity period of each certificate in a PEM file, in order; those that cannot be read are left out."""
    periods: list[Validity] = []
    for match in _PEM.finditer(pem):
        with suppress(ValueError):
            certificate = _load(match[0])
            periods.append(Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc))
    return periods


def has_supported_key(chain: bytes) -> bool:
    """Return True if gRPC can sign with the key of the first certificate of a PEM chain: RSA, or ECDSA on P-256 or P-384.

    With another key (Ed25519, P-521) gRPC serves, and every handshake fails.

    Raises:
        ValueError: the chain has no certificate, or its key cannot be read.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.x509.oid import PublicKeyAlgorithmOID

    try:
        certificate = _first(chain)
        key = certificate.public_key()
    except UnsupportedAlgorithm:
        return False
    except ValueError:
        raise ValueError("its key cannot be read") from None
    if isinstance(key, rsa.RSAPublicKey):
        return certificate.public_key_algorithm_oid != PublicKeyAlgorithmOID.RSASSA_PSS
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


def _first(chain: bytes) -> Certificate:
    match = _PEM.search(chain)
    if match is None:
        raise ValueError("it has no certificate")
    return _load(match[0])


def _load(pem: bytes) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(pem)
