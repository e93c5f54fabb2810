"""A store with keys and client certificates, and what its callers have."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.access import client_access
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority, Certificate
from tests.support.cluster.processes import free_address, process
from tests.support.spark.topics import SEALS_OFTEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess

HOLDER: Final = "analyst"
"""May read, write and make topics whose names begin with `routes`."""
READER: Final = "reader"
"""May read them."""


@dataclass(frozen=True, slots=True)
class SecuredStore:
    """A running one."""

    address: str
    authority: Certificate
    own: Certificate
    folder: Path

    def files(self) -> dict[str, str]:
        """The options of TLS."""
        return {
            "tlsCa": str(self.authority.certificate),
            "tlsCert": str(self.own.certificate),
            "tlsKey": str(self.own.key),
        }

    def key_file(self, name: str = HOLDER) -> Path:
        """A file with a key's secret."""
        path = self.folder / f"{name}.key"
        path.write_text(secret_of(name) + "\n", encoding="utf-8")
        return path

    def place(self, **more: str) -> dict[str, str]:
        """The options of a caller with a certificate; `more` gives its key."""
        return {"store": self.address, **self.files(), "patienceSeconds": "20", **more}

    def client(self, name: str = HOLDER) -> CallerAccess:
        """The same for the client library."""
        files = self.files()
        return client_access(
            key=secret_of(name), tls_ca=files["tlsCa"], tls_cert=files["tlsCert"], tls_key=files["tlsKey"]
        )


@asynccontextmanager
async def secured_store(folder: Path) -> AsyncIterator[SecuredStore]:
    """Start it; who calls it waits for it."""
    authority, keys = Authority(folder / "certificates"), Keys(folder)
    role, own = authority.sign("store"), authority.sign("spark")
    keys.add(HOLDER, "read", "write", "admin", prefixes=("routes",))
    keys.add(READER, "read", prefixes=("routes",))
    settings = {
        **SEALS_OFTEN,
        "EDDYLINE_STORE_LISTEN": (address := free_address()),
        "EDDYLINE_STORE_DATA_DIR": str(folder / "store"),
        "EDDYLINE_COMMON_KEYS_FILE": str(keys.path),
        "EDDYLINE_COMMON_TLS_CERT": str(role.certificate),
        "EDDYLINE_COMMON_TLS_KEY": str(role.key),
        "EDDYLINE_COMMON_TLS_CLIENT_CA": str(authority.own.certificate),
    }
    async with process("eddyline.store", **settings):
        yield SecuredStore(address, authority.own, own, folder)
