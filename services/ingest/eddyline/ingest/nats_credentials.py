"""Credentials of a NATS user: a JWT and the seed of the key that it names.

    -----BEGIN NATS USER JWT-----
    <header>.<claims>.<signature>
    ------END NATS USER JWT------
    -----BEGIN USER NKEY SEED-----
    SU…
    ------END USER NKEY SEED------

Read by ourselves: nats-py reads a file without the first line for ever.
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

import nkeys  # type: ignore[import-untyped]  # no py.typed in it

CREDENTIALS_BYTES_MAX: Final = 64 << 10
"""Elsewhere unbounded. A JWT with a long list of permissions is a few KiB."""

_JWT: Final = re.compile(rb"BEGIN NATS USER JWT-+\s+([\w-]+\.[\w-]+\.[\w-]+)\s+-+END NATS USER JWT")
_SEED: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s+(SU[A-Z2-7]+)\s+-+END USER NKEY SEED")


class MalformedCredentials(Exception):
    """Bytes that are no credentials; the text says what is missing, and nothing of what is there."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What signs for a user."""

    jwt: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: bytes) -> Credentials:
        """Read a credentials file's bytes.

        Raises:
            MalformedCredentials.
        """
        if len(text) > CREDENTIALS_BYTES_MAX:
            raise MalformedCredentials(f"more than {CREDENTIALS_BYTES_MAX} bytes are no credentials file")
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None:
            raise MalformedCredentials("no NATS USER JWT is in it; it is no credentials file")
        if seed is None:
            raise MalformedCredentials("no USER NKEY SEED is in it; it is no credentials file")
        found = cls(jwt[1], seed[1])
        if found._subject() != found._public_key():
            raise MalformedCredentials("the seed is not that of the user whom the JWT names")
        return found

    def sign(self, nonce: str) -> bytes:
        """The nonce's signature, in base64."""
        pair = nkeys.from_seed(bytearray(self.seed))
        try:
            signature: bytes = pair.sign(nonce.encode())
        finally:
            pair.wipe()
        return base64.b64encode(signature)

    def _subject(self) -> str:
        claims = self.jwt.split(b".")[1]
        try:
            told = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))
        except (binascii.Error, ValueError):
            raise MalformedCredentials("the JWT's claims cannot be read") from None
        subject = told.get("sub") if isinstance(told, dict) else None
        return subject if isinstance(subject, str) else ""

    def _public_key(self) -> str:
        try:
            pair = nkeys.from_seed(bytearray(self.seed))
            public: bytes = pair.public_key
        except (nkeys.NkeysError, ValueError, IndexError):  # not chained: the text may hold the seed
            raise MalformedCredentials("the seed is damaged") from None
        pair.wipe()
        return public.decode()
