"""Until when a certificate is good, out of its PEM: what a role tells in its log and its metrics.

The ssl module tells that only of a peer's certificate that it has verified, and of authorities. So the few outer fields of
X.509 (RFC 5280, 4.1) are walked over as far as the dates; nothing is verified here: OpenSSL has judged the rest.
Threads: pure functions.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, as RFC 5280 allows them: in seconds, in UTC."""
_FIELDS_BEFORE_DATES: Final = 3
"""Serial number, algorithm, issuer; a version, where there is one, comes before them."""


class _Element(NamedTuple):
    tag: int
    content: bytes


def not_after(chain: bytes) -> datetime:
    """When the first certificate of a PEM chain expires.

    Raises:
        ValueError: there is none, or it has no such date.
    """
    found = _PEM.search(chain)
    if found is None:
        raise ValueError("there is no certificate in it")
    try:
        (certificate, *_) = _elements(base64.b64decode(found[1]))
        (signed, *_) = _elements(certificate.content)
        fields = [element for element in _elements(signed.content) if element.tag != _VERSION]
        _, end = _elements(fields[_FIELDS_BEFORE_DATES].content)
        when = datetime.strptime(end.content.decode("ascii"), _FORMATS[end.tag]).replace(tzinfo=UTC)
    except (ValueError, LookupError):
        raise ValueError("it has no date on which it expires") from None
    # RFC 5280, 4.1.2.5.1: years of two digits are 1950 to 2049; Python ends them with 2068.
    is_short = end.tag == min(_FORMATS)
    return when.replace(year=when.year - 100) if is_short and when.year >= 2050 else when


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
