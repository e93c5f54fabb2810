"""gRPC health service of a role, with the names `""`, `live`, one for each leg and one for each source.

Owns the names and their meaning: `""` = the role is ready (NOT_SERVING until it says so), `live` = the process answers,
`nats` and `store` = the role is connected to it (unknown if the role has no such connection), `source/<name>` = the
source is being copied. With several stores, `store` means all of them, and `store/<shard>` one; a role is ready if any is
connected. A stopped source never makes its role NOT_SERVING.
Threading: one event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health, health_pb2

from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

READY: Final = ""
LIVE: Final = "live"
NATS_LEG: Final = "nats"
STORE_LEG: Final = "store"
SOURCE_PREFIX: Final = "source/"

_LOG: Final = logging.getLogger(__name__)
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthBoard:
    """State of one server's health service."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self._legs: dict[str, bool] = {}
        self.is_ready = False

    @property
    def missing_legs(self) -> list[str]:
        """Return the names of the legs that are not connected, sorted."""
        return sorted(leg for leg, connected in self._legs.items() if not connected)

    async def start(self) -> None:
        """Set live, and not ready. The server calls it when it starts."""
        await self.servicer.set(READY, _NOT_SERVING)
        await self.servicer.set(LIVE, _SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Set whether the role serves; a change is logged."""
        if ready is not self.is_ready:
            legs = self.missing_legs
            _LOG.info("ready" if ready else "not ready", extra=fields(**({"away": ",".join(legs)} if legs else {})))
        self.is_ready = ready
        await self.servicer.set(READY, _SERVING if ready else _NOT_SERVING)

    async def set_leg(self, leg: str, connected: bool) -> None:
        """Set whether one leg, `NATS_LEG` or `STORE_LEG`, is connected."""
        self._legs[leg] = connected
        await self.servicer.set(leg, _SERVING if connected else _NOT_SERVING)

    async def set_stores(self, connected: Sequence[bool]) -> None:
        """Set for each shard whether it is connected."""
        if len(connected) > 1:
            for shard, is_connected in enumerate(connected):
                await self.set_leg(f"{STORE_LEG}/{shard}", is_connected)
        await self.set_leg(STORE_LEG, all(connected))

    async def set_source(self, source: str, copying: bool) -> None:
        """Set whether one source is being copied."""
        await self.servicer.set(SOURCE_PREFIX + source, _SERVING if copying else _NOT_SERVING)

    async def forget_source(self, source: str) -> None:
        """Set SERVICE_UNKNOWN for a source that this replica no longer owns."""
        await self.servicer.set(SOURCE_PREFIX + source, _UNKNOWN)

    async def stop(self) -> None:
        """Set everything NOT_SERVING, for good."""
        self.is_ready = False
        await self.servicer.enter_graceful_shutdown()
