"""How a client gets in: `connect(address, access=client_access(key_file="my.key", tls_ca="ca.pem"))`.

A key goes with every call; TLS is used where any TLS argument is given, or `tls` alone, which goes by the authorities
of the system. `access_of_environment` reads the same from names that begin with EDDYLINE_ (`ENVIRONMENT`). Files are
read here, and looked at again while a client is connected (`access_files`). Failure: AccessInvalid, one line that shows
nothing of a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.client.transport.access_files import AccessFiles
from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.keys_file import MalformedKeys, parse_secret
from eddyline.core.tls.files import ClientTls, MalformedTls

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
    """An argument cannot be used; the message names it and the reason."""


def client_access(
    *, key: str = "", key_file: str = "", tls: bool = False, tls_ca: str = "", tls_cert: str = "", tls_key: str = ""
) -> CallerAccess:
    """A client's credentials. `key` is the secret itself and goes before `key_file`, a file that holds it.

    Raises:
        AccessInvalid.
    """
    if bool(tls_cert) is not bool(tls_key):
        raise AccessInvalid("a certificate and its key go together: give both or neither")
    try:
        files = AccessFiles(key_file="" if key else key_file, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        held = CallerKey(parse_secret(key.encode())) if key else files.key
    except MalformedKeys as error:
        raise AccessInvalid(f"the key {error}") from None
    except MalformedTls as error:
        raise AccessInvalid(str(error)) from None
    except OSError as error:
        raise AccessInvalid(f"{key_file} cannot be read: {error.strerror or error}") from None
    newest = files.tls.newest if files.tls is not None else None
    return CallerAccess(held, newest or (ClientTls() if tls else None), renewed=files.tls, files=files or None)


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
