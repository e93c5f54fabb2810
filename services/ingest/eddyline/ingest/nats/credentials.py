"""Credentials of a NATS user: a JWT and the seed of the key that it names, or such a seed alone.

    -----BEGIN NATS USER JWT-----
    <header>.<claims>.<signature>
    ------END NATS USER JWT------
    -----BEGIN USER NKEY SEED-----
    SU…
    ------END USER NKEY SEED------

A bearer JWT (its claims say `bearer_token`) needs no seed. A seed alone is of a user whom the server's configuration
names by the public key (`nkey: U…`); its file is one line, SU….

Parsed here, since nats-py reads a file without the first line in an endless loop.
nkeys is imported with the first credentials: with PyNaCl it takes 20 ms, which an ingest without them does not pay.
Source: NATS's `nsc`, which writes such files; ADR-14 (JWTs).
Threading: immutable.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Final

CREDENTIALS_BYTES_MAX: Final = 64 << 10
"""nats-py has no bound. A JWT with a long list of permissions is a few KiB."""

_JWT: Final = re.compile(rb"BEGIN NATS USER JWT-+\s+([\w-]+\.[\w-]+\.[\w-]+)\s+-+END NATS USER JWT")
_SEED: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s+(SU[A-Z2-7]+)\s+-+END USER NKEY SEED")


_SEED_ALONE: Final = re.compile(rb"\s*(SU[A-Z2-7]+)\s*")


class MalformedCredentials(Exception):
    """Bytes that are no credentials; the text names the missing part, and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Signing keys of a user. No `jwt` = a seed alone; no `seed` = a bearer JWT."""

    jwt: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def parse_seed(cls, text: bytes) -> Credentials:
        """Parse the bytes of a file with a seed alone.

        Raises:
            MalformedCredentials.
        """
        seed = _SEED_ALONE.fullmatch(text)
        if seed is None:
            raise MalformedCredentials("it is not a user's seed (one line, SU…)")
        credentials = cls(b"", seed[1])
        credentials.public_key()
        return credentials

    @classmethod
    def parse(cls, text: bytes) -> Credentials:
        """Parse a credentials file's bytes.

        Raises:
            MalformedCredentials.
        """
        if len(text) > CREDENTIALS_BYTES_MAX:
            raise MalformedCredentials(f"it is not a credentials file: more than {CREDENTIALS_BYTES_MAX} bytes")
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None:
            raise MalformedCredentials("it is not a credentials file: no NATS USER JWT")
        credentials = cls(jwt[1], seed[1] if seed is not None else b"")
        subject, is_bearer = credentials._claims()
        if seed is None and is_bearer:
            return credentials
        if seed is None:
            raise MalformedCredentials("it is not a credentials file: no USER NKEY SEED")
        if subject != credentials.public_key():
            raise MalformedCredentials("the seed does not belong to the user in the JWT")
        return credentials

    def sign(self, nonce: str) -> bytes:
        """Sign the nonce, in base64; of a bearer JWT nothing."""
        if not self.seed:
            return b""
        import nkeys  # type: ignore[import-untyped]  # no py.typed in it

        pair = nkeys.from_seed(bytearray(self.seed))
        try:
            signature: bytes = pair.sign(nonce.encode())
        finally:
            pair.wipe()
        return base64.b64encode(signature)

    def _claims(self) -> tuple[str, bool]:
        """User named by the JWT, and whether it is a bearer's."""
        claims = self.jwt.split(b".")[1]
        try:
            claims_object = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))
        except (binascii.Error, ValueError):
            raise MalformedCredentials("the JWT's claims cannot be read") from None
        if not isinstance(claims_object, dict):
            return "", False
        subject, nats = claims_object.get("sub"), claims_object.get("nats")
        return (
            subject if isinstance(subject, str) else "",
            isinstance(nats, dict) and nats.get("bearer_token") is True,
        )

    def public_key(self) -> str:
        """The seed's public key, U….

        Raises:
            MalformedCredentials.
        """
        import nkeys

        try:
            pair = nkeys.from_seed(bytearray(self.seed))
            public: bytes = pair.public_key
        except (nkeys.NkeysError, ValueError, IndexError):  # not chained: the text may hold the seed
            raise MalformedCredentials("the seed is damaged") from None
        pair.wipe()
        return public.decode()
