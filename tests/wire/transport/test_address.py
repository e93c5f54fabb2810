"""Sockets for an address."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from eddyline.wire.transport.address import bind

if TYPE_CHECKING:
    from pathlib import Path


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def test_port_0_is_a_free_port_and_one_for_all_addresses_of_a_name() -> None:
    sockets = bind("localhost:0")
    ports = {one.getsockname()[1] for one in sockets}
    close(sockets)
    assert len(ports) == 1 and 0 not in ports


def test_an_ipv6_address_is_bound() -> None:
    try:
        sockets = bind("[::1]:0")
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert sockets[0].family == socket.AF_INET6
    close(sockets)


def test_a_port_in_use_is_an_error_and_leaves_no_socket() -> None:
    first = bind("127.0.0.1:0")
    with pytest.raises(OSError, match="in use"):
        bind(f"127.0.0.1:{first[0].getsockname()[1]}")
    close(first)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:http", ""])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no port"):
        bind(address)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError, match="assign"):
        bind("192.0.2.1:0")


def test_a_unix_path_is_bound(tmp_path: Path) -> None:
    (listening,) = bind(f"unix:{tmp_path / 's'}")
    assert listening.getsockname() == str(tmp_path / "s")
    listening.close()
