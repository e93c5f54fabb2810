"""Checks whether a listen address is loopback."""

from __future__ import annotations

import ipaddress

from eddyline.core.runtime.settings import SettingsError, check_address


def is_loopback(listen: str) -> bool:
    """Return True if only this machine can connect to the address.

    Raises:
        SettingsError: it is not `host:port`.
    """
    check_address("the listen address", listen)
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_loopback(listen: str) -> None:
    """Refuse a bind other than loopback, for an endpoint without a key.

    Raises:
        SettingsError: the message says which binds are allowed.
    """
    if not is_loopback(listen):
        raise SettingsError(
            f"refusing to listen on {listen}: this endpoint has no key, so only loopback is safe (127.0.0.1, [::1] or"
            " localhost)"
        )
