"""Health as every role serves it: `""`, `live`, one name a leg and one a source.

Owns the names and what they mean: `""` = the role is ready (NOT_SERVING until said otherwise), `live` = the process
answers, `nats` and `store` = that leg of a role is connected (unknown of a role that has none), `source/<name>` = one source
copies. Where there are several stores `store` means all of them, and `store/<shard>` one; a role is ready by any.
A stopped source never makes its role NOT_SERVING.
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
    """What the health service of one server answers."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self._legs: dict[str, bool] = {}
        self.is_ready = False

    @property
    def missing_legs(self) -> list[str]:
        """The legs that were said to be away, by name."""
        return sorted(leg for leg, connected in self._legs.items() if not connected)

    async def start(self) -> None:
        """The process answers, and is not ready yet. Said by the server when it starts."""
        await self.servicer.set(READY, _NOT_SERVING)
        await self.servicer.set(LIVE, _SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Whether the role serves. What changes of it is a line of the log."""
        if ready is not self.is_ready:
            legs = self.missing_legs
            _LOG.info("ready" if ready else "not ready", extra=fields(**({"away": ",".join(legs)} if legs else {})))
        self.is_ready = ready
        await self.servicer.set(READY, _SERVING if ready else _NOT_SERVING)

    async def set_leg(self, leg: str, connected: bool) -> None:
        """Whether one leg of the role, `NATS_LEG` or `STORE_LEG`, is connected."""
        self._legs[leg] = connected
        await self.servicer.set(leg, _SERVING if connected else _NOT_SERVING)

    async def set_stores(self, connected: Sequence[bool]) -> None:
        """Of every shard whether it is connected."""
        if len(connected) > 1:
            for shard, is_connected in enumerate(connected):
                await self.set_leg(f"{STORE_LEG}/{shard}", is_connected)
        await self.set_leg(STORE_LEG, all(connected))

    async def set_source(self, source: str, copying: bool) -> None:
        """Whether one source copies."""
        await self.servicer.set(SOURCE_PREFIX + source, _SERVING if copying else _NOT_SERVING)

    async def forget_source(self, source: str) -> None:
        """The source is no longer this replica's: SERVICE_UNKNOWN from now on."""
        await self.servicer.set(SOURCE_PREFIX + source, _UNKNOWN)

    async def stop(self) -> None:
        """Everything is NOT_SERVING from now on, for good."""
        self.is_ready = False
        await self.servicer.enter_graceful_shutdown()
