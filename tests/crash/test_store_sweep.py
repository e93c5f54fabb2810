"""Crash sweeps of every operation of a store; see `sweep.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.crash import scenarios
from tests.crash.sweep import PARTS, PrologueCrash, SweepPlan, Tuning, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.models.history import End

pytestmark = pytest.mark.crash

ENDS: Final[tuple[End, ...]] = ("kill", "power")
SHARDED: Final = Tuning(wal_shards=3)
MERGED: Final = Tuning(seal_records=16, seal_age_ms=400)
"""Segments sealed by age, long before they are full."""
PLAIN: Final = Tuning(compression="none")
"""Without compression, so that a value on the disk can be searched by its bytes."""
PLANS: Final = (
    SweepPlan(scenarios.appends),
    SweepPlan(scenarios.mixed),
    SweepPlan(scenarios.rotation),
    SweepPlan(scenarios.topics),
    SweepPlan(scenarios.topics, tuning=SHARDED, powers=1),
    SweepPlan(scenarios.idle),
    SweepPlan(scenarios.sealing, powers=1),
    SweepPlan(scenarios.checkpoints, powers=1),
    SweepPlan(scenarios.checkpoints, tuning=SHARDED, powers=1),
    SweepPlan(scenarios.caps, powers=1),
    SweepPlan(scenarios.ages, powers=1, power_every=2, every=3),
    SweepPlan(scenarios.updates),
    SweepPlan(scenarios.ephemeral),
    SweepPlan(scenarios.deletes, powers=1),
    SweepPlan(scenarios.merging, tuning=MERGED, powers=1, power_every=2, every=3),
    SweepPlan(scenarios.bases, powers=1, power_every=2, every=3),
    SweepPlan(scenarios.erasing, tuning=PLAIN, powers=1, power_every=2, every=3),
    SweepPlan(scenarios.restart, scenarios.full_store, powers=1),
)
RECOVERIES: Final = tuple(
    SweepPlan(scenarios.restart, scenarios.full_store, PrologueCrash(crash_at, ENDS[crash_at % 2]), powers=1)
    for crash_at in (111, 160, 260)
)
"""Crashes at every call of a recovery, after a crash of a store that has everything."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.name))
def test_every_crash_point_recovers(plan: SweepPlan, part: int, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sweep(plan, part))


@pytest.mark.parametrize("plan", RECOVERIES, ids=lambda plan: str(plan.name))
def test_every_crash_of_a_recovery_recovers(plan: SweepPlan, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sum(sweep(plan, part) for part in range(PARTS)))
