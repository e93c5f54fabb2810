"""How a read, a write or a job gets in at a cluster with keys or TLS: its options, and what is made of them on the driver.

Options go before the environment of the driver (`eddyline.client.transport.access.ENVIRONMENT`), each by itself. Files are
read once, on the driver, and travel to the tasks as bytes, so executors need none of them.
I1: a secret is in no text that we make: no repr and no error has it. Some of Spark's texts tell options, by patterns that do
not know the name `key`: `keyFile` is what to give.
Failure: InvalidArgument, by the option or the variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.access import ENVIRONMENT, AccessInvalid, client_access
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import InvalidArgument
from eddyline.core.tls.files import ClientTls
from eddyline.spark.options.values import choice, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMES: Final = {
    "key": "key",
    "key_file": "keyFile",
    "tls": "tls",
    "tls_ca": "tlsCa",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
}
"""How each field is called as an option."""
ACCESS_NAMES: Final = tuple(NAMES.values())
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """The access options; empty = not given. `key` is the secret itself, the others but `tls` are paths on the driver."""

    key: str = field(default="", repr=False)
    key_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def as_options(self) -> dict[str, str]:
        """The same by the options' names; what was not given is left out."""
        return {NAMES[part.name]: text for part in fields(self) if (text := getattr(self, part.name))}


NOT_ASKED: Final = AccessOptions()


def asked_access(named: Mapping[str, str]) -> AccessOptions:
    """Access by options and their names; other options are ignored.

    Raises:
        InvalidArgument: malformed or contradicting ones.
    """
    given = {name: named.get(option, "").strip() for name, option in NAMES.items()}
    if given["key"] and given["key_file"]:
        raise refused("key", "it does not go with keyFile")
    if given["tls"]:
        given["tls"] = choice("tls", given["tls"], (*_TRUE, *_FALSE))
    if given["tls"] in _FALSE:
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if given[name]:
                raise refused(NAMES[name], f"it does not go with tls={given['tls']}")
    return AccessOptions(**given)


def read_access(asked: AccessOptions, environ: Mapping[str, str]) -> CallerAccess:
    """Read the files that options and environment name.

    Raises:
        InvalidArgument: one of them cannot be used.
    """
    found = {name: getattr(asked, name) or environ.get(variable, "") for name, variable in ENVIRONMENT.items()}
    # A file that was asked for goes before a secret of the environment, and a secret before any file.
    if asked.key_file or found["key"]:
        found["key" if asked.key_file else "key_file"] = ""
    if asked.tls in _FALSE:
        found |= dict.fromkeys(("tls", "tls_ca", "tls_cert", "tls_key"), "")
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if found[one] and not found[other]:
            raise _refused(one, asked, f"it needs {NAMES[other]}, which is not given")
    key = _read(
        "key" if found["key"] else "key_file",
        asked,
        partial(client_access, key=found["key"], key_file=found["key_file"]),
    ).key
    authority = _read("tls_ca", asked, partial(client_access, tls_ca=found["tls_ca"])).tls
    own = _read("tls_cert", asked, partial(client_access, tls_cert=found["tls_cert"], tls_key=found["tls_key"])).tls
    if authority is None and own is None and found["tls"].lower() not in _TRUE:
        return CallerAccess(key)
    tls = ClientTls(authority.ca if authority is not None else b"", own.certificate if own is not None else None)
    return CallerAccess(key, tls)


def _read(name: str, asked: AccessOptions, read: Callable[[], CallerAccess]) -> CallerAccess:
    try:
        return read()
    except AccessInvalid as error:
        raise _refused(name, asked, str(error)) from None


def _refused(name: str, asked: AccessOptions, why: str) -> InvalidArgument:
    if getattr(asked, name):
        return refused(NAMES[name], why)
    variable = ENVIRONMENT[name]
    return InvalidArgument(f"{variable} of the driver's environment: {why}", field=variable)
