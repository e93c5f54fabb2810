"""The supervisor: starts parts stage by stage, keeps them running, takes them down in order.

*Invariant:* when `supervised` is left, no part runs: each got SIGTERM and a bounded time, then SIGKILL. Should the
supervisor itself be killed, the kernel kills them (`eddyline.cli.local_cluster.launcher`).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from eddyline.cli.local_cluster.find import role_of
from eddyline.cli.local_cluster.process import ManagedProcess

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from eddyline.cli.local_cluster.process import PartEvent, ProcessSpec
    from eddyline.core.runtime.clock import Clock

READY_S: Final = 60.0
"""For a start that does not get on: a store that recovers takes as long as it takes."""
STOP_ORDER: Final = ("ingest", "delivery", "store", "nats")
"""Against the flow: nobody loses its upstream while it still hands on what it has."""


class Supervisor:
    """The running parts, by name."""

    def __init__(self, parts: dict[str, ManagedProcess]) -> None:
        self.parts = parts

    async def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until every part serves.

        Raises:
            CommandError: one does not.
        """
        for part in self.parts.values():
            await part.wait_ready(timeout_s)

    async def stop(self) -> None:
        """Take all down in order."""
        others = [name for name in self.parts if role_of(name) not in STOP_ORDER]
        known = [name for role in STOP_ORDER for name in self.parts if role_of(name) == role]
        for name in [*others, *known]:
            await self.parts[name].stop()


@asynccontextmanager
async def supervised(
    stages: Sequence[Sequence[ProcessSpec]],
    *,
    data: Path,
    clock: Clock,
    random_source: random.Random,
    tell: Callable[[PartEvent], None],
) -> AsyncIterator[Supervisor]:
    """Run the parts: the next stage starts when the one before it is ready. Leaving it stops all.

    Raises:
        CommandError: a part did not become ready.
    """
    parts = {
        spec.name: ManagedProcess(spec, data=data, clock=clock, random_source=random_source, tell=tell)
        for stage in stages
        for spec in stage
    }
    supervisor = Supervisor(parts)
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        try:
            for stage in stages:
                for spec in stage:
                    group.create_task(parts[spec.name].run(), name=f"part {spec.name}")
                for spec in stage:
                    await parts[spec.name].wait_ready(READY_S)
            yield supervisor
        except BaseException as error:
            # Past the group, so that the caller's error is not wrapped into a group of errors.
            failure = error
        await supervisor.stop()
    if failure is not None:
        raise failure
