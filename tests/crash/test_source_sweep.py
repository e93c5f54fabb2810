"""Changes of a source's settings with a crash at every file-system call: each acknowledged update survives, complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.model.source import SourceChange, SourceDefinition, changed_source
from tests.store.recovery.test_replay import Machine
from tests.support.store.simulated import log_topic

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

pytestmark = pytest.mark.crash

FIRST: Final = SourceDefinition("s", "log", stream="EVENTS", subjects=("a.>",))
CHANGES: Final = (
    SourceChange("STOP"),
    SourceChange(dead_letter_topic="letters"),
    SourceChange(None, "RESYNC", "others"),
    SourceChange("RESYNC", "STOP", ""),
)


@pytest.mark.parametrize("then", ["kill", "power"])
async def test_every_crash_leaves_the_last_acknowledged_update_or_the_one_in_flight(then: CrashKind) -> None:
    crash_at, swept = 1, 0
    while True:
        machine = Machine(seed=crash_at)
        await machine.run(_made, "kill")
        machine.fs.crash_at = crash_at
        steps = [FIRST]
        answered = 0

        async def change(link: Shard) -> None:
            nonlocal answered
            for number, update in enumerate(CHANGES):
                steps.append(changed_source(steps[-1], update))  # noqa: B023 - runs within this round
                assert (await link.update_source("s", update)).definition == steps[-1]  # noqa: B023
                answered += 1
                if number == 1:
                    await link._parts.checkpointer.run()

        async def look(link: Shard) -> None:
            info = await link.get_source("s")
            assert info.definition in steps[answered : answered + 2], f"call {crash_at}"  # noqa: B023
            assert info.control == (True, 0)

        await machine.run(change, then)
        await machine.run(look, "kill")
        await machine.run(look)
        if answered == len(CHANGES):
            break
        swept += 1
        crash_at += 1
    assert swept > 2 * len(CHANGES), "the sweep stopped nothing"


async def _made(link: Shard) -> None:
    await log_topic(link, "log")
    await link.put_source(FIRST)
    await link.control_source("s", paused=True)
