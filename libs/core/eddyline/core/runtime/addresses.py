"""Which listen addresses are loopback."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from eddyline.core.runtime.settings import SettingsError, check_address

if TYPE_CHECKING:
    pass


def is_loopback(listen: str) -> bool:
    """True = only this machine reaches it.

    Raises:
        SettingsError: it is no `host:port`.
    """
    check_address("the listen address", listen)
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_loopback(listen: str) -> None:
    """Refuse any bind but loopback: for what has no keys, whatever the role's calls have.

    Raises:
        SettingsError: it says what is allowed.
    """
    if not is_loopback(listen):
        raise SettingsError(
            f"refusing to listen on {listen}: whoever reaches it may read it, so only loopback is safe (127.0.0.1, [::1] or"
            " localhost)"
        )
