"""What certificates say of themselves in their PEM: from when and until when they are good, and of what kind a key is.

The ssl module tells that only of a peer's certificate that it has verified, and of authorities. So the few outer fields of
X.509 (RFC 5280, 4.1) are walked over; nothing is verified here: OpenSSL has judged the rest.
Threads: pure functions.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
_VERSION: Final = 0xA0
_IDENTIFIER: Final = 0x06
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, as RFC 5280 allows them: in seconds, in UTC."""
_DATES, _KEY = 3, 5
"""Places of these fields. Before them are serial number, algorithm, issuer; between them the subject."""
_RSA: Final = bytes.fromhex("2a864886f70d010101")
_ECDSA: Final = bytes.fromhex("2a8648ce3d0201")
_P256: Final = bytes.fromhex("2a8648ce3d030107")
_P384: Final = bytes.fromhex("2b81040022")
_TAKEN_KEYS: Final = ((_RSA,), (_ECDSA, _P256), (_ECDSA, _P384))
"""Object identifiers of an algorithm and its curve."""


class _Element(NamedTuple):
    tag: int
    content: bytes


class Validity(NamedTuple):
    """From when until when a certificate is good, both inclusive."""

    not_before: datetime
    not_after: datetime

    def trouble(self, now: datetime) -> str:
        """Why it is not good now; "" = it is."""
        if now > self.not_after:
            return f"it expired at {self.not_after:%Y-%m-%dT%H:%M:%SZ}"
        return f"it is not valid before {self.not_before:%Y-%m-%dT%H:%M:%SZ}" if now < self.not_before else ""


def not_after(chain: bytes) -> datetime:
    """When the first certificate of a PEM chain expires.

    Raises:
        ValueError: there is none, or it has no such date.
    """
    try:
        return _validity(_fields(chain)).not_after
    except (ValueError, LookupError):
        raise ValueError("it has no date on which it expires") from None


def validities(pem: bytes) -> list[Validity]:
    """Of every certificate of a PEM file that says so, in order."""
    found: list[Validity] = []
    for certificate in _PEM.finditer(pem):
        with suppress(ValueError, LookupError):
            found.append(_validity(_fields(certificate[0])))
    return found


def has_taken_key(chain: bytes) -> bool:
    """Whether the key of the first certificate of a PEM chain is one that gRPC signs with: RSA, or ECDSA on P-256 or P-384.
    With another (Ed25519, P-521) it serves, and no handshake ever succeeds.

    Raises:
        ValueError: there is none, or it does not say.
    """
    try:
        (algorithm, *_) = _elements(_fields(chain)[_KEY].content)
        identifiers = tuple(element.content for element in _elements(algorithm.content) if element.tag == _IDENTIFIER)
    except (ValueError, LookupError):
        raise ValueError("it does not say what its key is") from None
    return identifiers in _TAKEN_KEYS


def _validity(fields: Sequence[_Element]) -> Validity:
    begin, end = _elements(fields[_DATES].content)
    return Validity(_date(begin), _date(end))


def _date(element: _Element) -> datetime:
    when = datetime.strptime(element.content.decode("ascii"), _FORMATS[element.tag]).replace(tzinfo=UTC)
    # RFC 5280, 4.1.2.5.1: years of two digits are 1950 to 2049; Python ends them with 2068.
    is_short = element.tag == min(_FORMATS)
    return when.replace(year=when.year - 100) if is_short and when.year >= 2050 else when


def _fields(chain: bytes) -> list[_Element]:
    """Of what is signed, but for the version, which old ones have not."""
    found = _PEM.search(chain)
    if found is None:
        raise ValueError("there is no certificate in it")
    (certificate, *_) = _elements(base64.b64decode(found[1]))
    (signed, *_) = _elements(certificate.content)
    return [element for element in _elements(signed.content) if element.tag != _VERSION]


def _elements(data: bytes) -> Iterator[_Element]:
    """The elements of DER, one after the other."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            digits = size & 0x7F
            size = int.from_bytes(data[at : at + digits], "big")
            at += digits
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield _Element(tag, data[at : at + size])
        at += size
