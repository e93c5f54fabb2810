"""NATS accounts of a test's own: operator, account and user, signed here; and a server's configuration that trusts them."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass

import nkeys  # type: ignore[import-untyped]  # no py.typed in it

ISSUED_S = 1_700_000_000
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


class Key:
    """One key pair."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self.public: str = nkeys.from_seed(bytearray(self.seed)).public_key.decode()

    def signed(self, subject: str, name: str, nats: dict[str, object], *, expires_s: int = 0) -> str:
        """A JWT about `subject`."""
        claims: dict[str, object] = {"jti": name, "iat": ISSUED_S, "iss": self.public, "name": name, "sub": subject}
        if expires_s:
            claims["exp"] = expires_s
        claims["nats"] = {"version": 2, **nats}
        text = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(claims)}"
        signature = nkeys.from_seed(bytearray(self.seed)).sign(text.encode())
        return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@dataclass(frozen=True, slots=True)
class Accounts:
    """Configuration of a server, and the account's key, which signs users."""

    config: str
    account: Key

    def user(self, *, expires_s: int = 0, bearer: bool = False) -> bytes:
        """Make a new user's credentials file; a bearer's has no seed."""
        key = Key(nkeys.PREFIX_BYTE_USER)
        claims: dict[str, object] = {"type": "user", **_UNLIMITED} | ({"bearer_token": True} if bearer else {})
        jwt = self.account.signed(key.public, "user", claims, expires_s=expires_s)
        text = credentials(jwt, key.seed.decode())
        return text.partition(b"\n\n")[0] if bearer else text


def credentials(jwt: str, seed: str) -> bytes:
    """Make a credentials file, as `nsc` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    ).encode()


def new_accounts() -> Accounts:
    """Make an operator with a system account and one with JetStream."""
    operator, system, account = (Key(prefix) for prefix in (nkeys.PREFIX_BYTE_OPERATOR, 0, 0))
    limits: dict[str, object] = {
        **_UNLIMITED,
        "imports": -1,
        "exports": -1,
        "wildcards": True,
        "conn": -1,
        "leaf": -1,
        "mem_storage": -1,
        "disk_storage": -1,
        "streams": -1,
        "consumer": -1,
    }
    system_limits = {name: limit for name, limit in limits.items() if name not in {"mem_storage", "disk_storage"}}
    operator_jwt = operator.signed(operator.public, "operator", {"type": "operator"})
    account_jwt = operator.signed(account.public, "account", {"type": "account", "limits": limits})
    system_jwt = operator.signed(system.public, "SYS", {"type": "account", "limits": system_limits})
    config = (
        f"operator: {operator_jwt}\nsystem_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {account_jwt}, {system.public}: {system_jwt} }}\n"
    )
    return Accounts(config, account)


def _encoded(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
