"""Whether a part serves: the very process we started, not whoever else answers at its port.

A role tells its pid (GetStatus); nats-server tells the name that we gave it, which is the folder's alone.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import TYPE_CHECKING, Final

from eddyline.client.admin.status import is_ready, role_status
from eddyline.core.auth.caller_channel import CallerAccess

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.client.admin.status import RoleName

PROBE_S: Final = 1.0
DISK_FLOOR: Final = "DISK_FLOOR"
"""Reason of a store that serves everything but appends: it must be up for anybody to make room in it."""
NATS_UNREACHABLE: Final = "NATS_UNREACHABLE"
NATS_REFUSES: Final = "credentials"
"""In the reason of an ingest whose credentials NATS does not take."""
NATS_MS_MAX: Final = 10_000
"""A server that takes connections lets a client in within a second; five times the longest try to connect."""
PLAIN: Final = CallerAccess()
"""Roles that ask nobody who he is."""
_GREETING: Final = b"INFO "


def nats_name(data: Path) -> str:
    """The name of a folder's nats-server: no other folder of this machine has it, and a folder has one at a time."""
    return f"eddyline-{zlib.crc32(str(data).encode()):08x}"


async def nats_is_ready(address: str, name: str) -> bool:
    """True = the server of this name greets there, which it begins when JetStream has recovered."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                greeting = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        # ValueError: a line without an end, so not NATS.
        return False
    return _name_in(greeting) == name


async def role_is_ready(role: RoleName, address: str, pid: int, *, access: CallerAccess = PLAIN) -> bool:
    """True = the process `pid` answers there, and its gRPC health says that it serves, or that the disk is too full for
    appends alone."""
    # A connection of its own each time: one that failed while the role started would back off.
    channel = access.open_channel(address, own_connection=True)
    try:
        serves = await is_ready(channel)
        status = await role_status(channel, role, address)
        return status.pid == pid and (serves or status.reason == DISK_FLOOR)
    finally:
        await channel.close()


async def recovered_bytes(address: str, pid: int, *, access: CallerAccess = PLAIN) -> int:
    """How far the store of process `pid` is with its recovery; 0 = it has not begun, or is through."""
    channel = access.open_channel(address, own_connection=True)
    try:
        status = await role_status(channel, "store", address)
    finally:
        await channel.close()
    done = dict(status.figures).get("replayed_bytes", 0)
    return int(done) if status.pid == pid else 0


async def nats_trouble(address: str, pid: int, *, access: CallerAccess = PLAIN) -> str:
    """Why the ingest of process `pid` does not reach a NATS that takes connections; "" = it does, or has hardly begun."""
    channel = access.open_channel(address, own_connection=True)
    try:
        status = await role_status(channel, "ingest", address)
    finally:
        await channel.close()
    if status.pid != pid or NATS_UNREACHABLE not in status.reason:
        return ""
    return status.reason if NATS_REFUSES in status.reason or status.uptime_ms >= NATS_MS_MAX else ""


def _name_in(greeting: bytes) -> str:
    if not greeting.startswith(_GREETING):
        return ""
    try:
        return str(json.loads(greeting.removeprefix(_GREETING))["server_name"])
    except (ValueError, KeyError, TypeError):
        return ""
