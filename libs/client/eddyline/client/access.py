"""How a client gets in: `connect(address, access=client_access(key_file="my.key", tls_ca="ca.pem"))`.

A key goes with every call; TLS is used where any TLS argument is given, or `tls` alone, which goes by the authorities of the
system. `access_of_environment` reads the same from names that begin with EDDYLINE_ (`ENVIRONMENT`).
Files are read once. Failure: AccessInvalid, one line that shows nothing of a secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.access_keys import SECRET_CHARS_MAX, MalformedKeys, parse_secret
from eddyline.core.caller_channel import CallerAccess, HeldKey
from eddyline.core.tls import ClientTls, MalformedTls, read_authority, read_certificate

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT: Final = {
    "key": "EDDYLINE_KEY",
    "key_file": "EDDYLINE_KEY_FILE",
    "tls": "EDDYLINE_TLS",
    "tls_ca": "EDDYLINE_TLS_CA",
    "tls_cert": "EDDYLINE_TLS_CERT",
    "tls_key": "EDDYLINE_TLS_KEY",
}
"""Which variable of the environment stands for which argument."""
_TRUE: Final = ("1", "true", "yes", "on")


class AccessInvalid(Exception):
    """What was given cannot be used; the message says which of it, and why."""


def client_access(
    *, key: str = "", key_file: str = "", tls: bool = False, tls_ca: str = "", tls_cert: str = "", tls_key: str = ""
) -> CallerAccess:
    """What a client shows. `key` is the secret itself and goes before `key_file`, a file that holds it.

    Raises:
        AccessInvalid.
    """
    try:
        secret = parse_secret(key.encode()) if key else _secret_in(key_file)
        if bool(tls_cert) is not bool(tls_key):
            raise AccessInvalid("a certificate and its key go together; one of them is not given")
        own = read_certificate(tls_cert, tls_key) if tls_cert else None
        authority = read_authority(tls_ca) if tls_ca else b""
    except (MalformedKeys, MalformedTls) as error:
        raise AccessInvalid(f"the key {error}" if isinstance(error, MalformedKeys) else str(error)) from None
    encrypted = tls or bool(authority) or own is not None
    return CallerAccess(HeldKey(secret), ClientTls(authority, own) if encrypted else None)


def access_of_environment(environ: Mapping[str, str], **given: str) -> CallerAccess:
    """The same of variables; what is `given`, by the names of `client_access`, goes before them.

    Raises:
        AccessInvalid.
    """
    found = {name: given.get(name) or environ.get(variable, "") for name, variable in ENVIRONMENT.items()}
    if given.get("key_file"):
        found["key"] = ""
    tls = found.pop("tls").lower() in _TRUE
    return client_access(tls=tls, **found)


def _secret_in(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            return parse_secret(file.read(SECRET_CHARS_MAX + 1))
    except OSError as error:
        raise AccessInvalid(f"{path} cannot be read: {error.strerror or error}") from None
