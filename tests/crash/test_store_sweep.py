"""Every operation of a store, stopped at every file-system and catalog call; see `sweep.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.crash import scenarios
from tests.crash.sweep import PARTS, Break, Plan, Tuning, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.history import End

pytestmark = pytest.mark.crash

ENDS: Final[tuple[End, ...]] = ("kill", "power")
SHARDED: Final = Tuning(wal_shards=3)
PLANS: Final = (
    Plan(scenarios.appends),
    Plan(scenarios.mixed),
    Plan(scenarios.rotation),
    Plan(scenarios.topics),
    Plan(scenarios.topics, tuning=SHARDED),
    Plan(scenarios.idle),
    Plan(scenarios.sealing),
    Plan(scenarios.checkpoints),
    Plan(scenarios.checkpoints, tuning=SHARDED),
    Plan(scenarios.caps),
    Plan(scenarios.ages),
    Plan(scenarios.updates),
    Plan(scenarios.ephemeral),
    Plan(scenarios.restart, scenarios.full_store),
)
RECOVERIES: Final = tuple(
    Plan(scenarios.restart, scenarios.full_store, Break(crash_at, ENDS[crash_at % 2]), powers=1)
    for crash_at in (60, 111, 160, 211, 260)
)
"""Recovery itself is stopped at every call, after a store with everything was stopped somewhere."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.name))
def test_every_crash_point_recovers(plan: Plan, part: int, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sweep(plan, part))


@pytest.mark.parametrize("plan", RECOVERIES, ids=lambda plan: str(plan.name))
def test_every_crash_of_a_recovery_recovers(plan: Plan, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sum(sweep(plan, part) for part in range(PARTS)))
