"""The keys file, in TOML: which keys and certificates may call, and what each may do.

    [[key]]
    name = "orders-writer"                 # principal in audit lines, and of callers behind a role
    sha256 = "…"                           # of the secret, 64 hex digits; the secret itself is stored nowhere
    scopes = ["read", "write"]             # read, write, delete, admin; role for the cluster's own roles
    prefixes = ["orders."]                 # names of topics, sources and buckets; left out = all

or `certificate = "…"` instead of `sha256`, or in addition to it: a name of a client's certificate. That is its common
name, or of its alternative names a URI as it is (`spiffe://example.org/ns/prod/sa/billing`) or a DNS name with `dns:`
before it. Quotas of one key: `requests_max`, `watches_max`, 0 = none. `eddyline key new` makes a secret and its table.

I1: no text that we make has a secret: no file, error, log line or repr. I2: a file is accepted as a whole or not at all:
unknown fields, duplicates, unknown scopes and a file without keys are refused, with the key's name.
A secret is looked up by its digest, which a caller cannot steer, and compared in constant time.
Threading: pure functions and immutable values.
"""

from __future__ import annotations

import hmac
import re
import secrets
import tomllib
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NoReturn

from eddyline.core.auth.grant import Grant, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEYS_BYTES_MAX: Final = 4 << 20
KEYS_MAX: Final = 10_000
"""Each takes some 400 bytes of memory; more tenants than that need more clusters."""
PREFIXES_MAX: Final = 64
PREFIXES_BYTES_MAX: Final = 4 << 10
"""A role sends them with each call that it makes for the key's owner, in metadata of at most 8 KiB."""
QUOTA_MAX: Final = 1_000_000
SECRET_PREFIX: Final = "edl_"
"""Lets scanners for leaked secrets recognize one."""
SECRET_BYTES: Final = 32
SECRET_CHARS_MAX: Final = 1_024

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_CERTIFICATE_CHARS_MAX: Final = 2_048
"""SPIFFE's longest id. Common names have up to 64 characters, DNS names 253."""
_DNS: Final = "dns:"
_QUALIFIED: Final = re.compile(r"dns:.*|[A-Za-z][A-Za-z0-9+.-]*://.+", re.DOTALL)
_FIELDS: Final = frozenset(("name", "sha256", "certificate", "scopes", "prefixes", "requests_max", "watches_max"))


class MalformedKeys(Exception):
    """A keys file that is refused; the message has the place and the reason, and no secret."""


@dataclass(frozen=True, slots=True)
class _DigestEntry:
    digest: bytes = field(repr=False)
    grant: Grant


class KeyRing:
    """Grants by the digest of a secret and by certificate name. Immutable."""

    def __init__(self, by_digest: Mapping[bytes, Grant], by_certificate: Mapping[str, Grant]) -> None:
        self._entries = {digest: _DigestEntry(digest, grant) for digest, grant in by_digest.items()}
        self._by_certificate = dict(by_certificate)

    def __len__(self) -> int:
        return len(self.grants())

    def grants(self) -> dict[str, Grant]:
        """Return all grants, by name."""
        grants = (*(entry.grant for entry in self._entries.values()), *self._by_certificate.values())
        return {grant.name: grant for grant in grants}

    def of_digest(self, digest: bytes) -> Grant | None:
        """Return the grant of a secret by its digest; None = unknown."""
        entry = self._entries.get(digest)
        return entry.grant if entry is not None and hmac.compare_digest(entry.digest, digest) else None

    def of_certificate(self, name: str) -> Grant | None:
        """Return the grant of a certificate by one of its `certificate_names`; None = unknown."""
        return self._by_certificate.get(name)


def certificate_names(*, common_name: str = "", uris: Sequence[str] = (), dns: Sequence[str] = ()) -> list[str]:
    """Return the names of a verified certificate as the keys file has them, in the order in which they are looked up."""
    names = [common_name] if common_name and not _QUALIFIED.fullmatch(common_name) else []
    names += [uri for uri in uris if _QUALIFIED.fullmatch(uri) and not uri.startswith(_DNS)]
    return names + [_DNS + name for name in dns]


def digest_of(secret: str) -> bytes:
    """Return the digest by which a secret is looked up."""
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


def new_secret() -> str:
    """Return a new random secret of 256 bits."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def parse_secret(content: bytes) -> str:
    """Parse the content of a file with one secret.

    Raises:
        MalformedKeys.
    """
    secret = content.decode("utf-8-sig", "replace").strip()
    if not 0 < len(secret) <= SECRET_CHARS_MAX or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise MalformedKeys("is not one line with a secret, printable and without spaces")
    return secret


def parse_keys(text: str) -> KeyRing:
    """Parse a keys file.

    Raises:
        MalformedKeys.
    """
    try:
        loaded = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Only the place: the parser's message may quote the file, and with it a secret.
        place = re.search(r"line \d+, column \d+|end of document", str(error))
        _malformed("", f"is not TOML ({place.group() if place else 'unreadable'})")
    except RecursionError:
        _malformed("", "is not TOML: it is nested too deeply")
    tables = loaded.pop("key", None)
    if loaded:
        _malformed("", f"has {', '.join(sorted(loaded))!r}; only [[key]] tables are allowed")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        _malformed("", "has no [[key]] table: at least one is needed")
    if len(tables) > KEYS_MAX:
        _malformed("", f"has {len(tables)} keys, at most {KEYS_MAX}")
    by_digest: dict[bytes, Grant] = {}
    by_certificate: dict[str, Grant] = {}
    names: set[str] = set()
    for number, table in enumerate(tables, 1):
        grant = _grant(table, number)
        if grant.name in names:
            _malformed(grant.name, "is defined twice")
        names.add(grant.name)
        digest, certificate = _digest(table, grant.name), _certificate(table, grant.name)
        if digest is None and not certificate:
            _malformed(grant.name, "has neither sha256 nor certificate")
        if digest is not None and by_digest.setdefault(digest, grant) is not grant:
            _malformed(grant.name, f"has the same sha256 as key {by_digest[digest].name}")
        if certificate and by_certificate.setdefault(certificate, grant) is not grant:
            _malformed(grant.name, f"has the same certificate as key {by_certificate[certificate].name}")
    return KeyRing(by_digest, by_certificate)


def _grant(table: dict[str, object], number: int) -> Grant:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _malformed(f"number {number}", "has no valid name: 1 to 128 letters, digits and ._@:-")
    unknown = sorted(set(table) - _FIELDS)
    if unknown:
        _malformed(name, f"has the unknown field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}")
    scopes = _texts(table, "scopes", name)
    known = {scope.value: scope for scope in Scope}
    for scope in scopes:
        if scope not in known:
            _malformed(name, f"has the scope {scope[:40]!r}, which is not one of {', '.join(known)}")
    if not scopes:
        _malformed(name, "has no scopes")
    prefixes = _texts(table, "prefixes", name)
    if "prefixes" in table and not prefixes:
        _malformed(name, "has an empty list of prefixes; leave it out for all names")
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix):
            _malformed(name, f"has the prefix {prefix[:40]!r}, which no valid name begins with")
    if len(prefixes) > PREFIXES_MAX or sum(map(len, prefixes)) > PREFIXES_BYTES_MAX:
        _malformed(name, f"has more than {PREFIXES_MAX} prefixes, or more than {PREFIXES_BYTES_MAX} bytes of them")
    grant_scopes = frozenset(known[scope] for scope in scopes)
    if Scope.ROLE in grant_scopes and prefixes:
        _malformed(name, "has scope role and prefixes; a role's key covers all names")
    requests_max, watches_max = _quota(table, "requests_max", name), _quota(table, "watches_max", name)
    return Grant(name, grant_scopes, tuple(dict.fromkeys(prefixes)), requests_max, watches_max)


def _texts(table: dict[str, object], field_name: str, name: str) -> list[str]:
    value = table.get(field_name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        _malformed(name, f"has {field_name} that are not a list of strings")
    return value


def _quota(table: dict[str, object], field_name: str, name: str) -> int | None:
    value = table.get(field_name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= QUOTA_MAX:
        _malformed(name, f"has a {field_name} that is not a whole number of 0 to {QUOTA_MAX}")
    return value


def _digest(table: dict[str, object], name: str) -> bytes | None:
    value = table.get("sha256")
    if value is None:
        return None
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        _malformed(name, "has a sha256 that is not 64 hex digits")
    return bytes.fromhex(value)


def _certificate(table: dict[str, object], name: str) -> str:
    value = table.get("certificate", "")
    if not isinstance(value, str) or len(value) > _CERTIFICATE_CHARS_MAX or ("certificate" in table and not value):
        _malformed(name, f"has a certificate that is not a name of 1 to {_CERTIFICATE_CHARS_MAX} characters")
    return value


def _malformed(name: str, why: str) -> NoReturn:
    raise MalformedKeys(f"key {name} {why}" if name else why)
