"""Every operation of a store, stopped at every file-system and catalog call; see `sweep.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.crash import scenarios
from tests.crash.sweep import PARTS, Break, Plan, Tuning, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.models.history import End

pytestmark = pytest.mark.crash

ENDS: Final[tuple[End, ...]] = ("kill", "power")
SHARDED: Final = Tuning(wal_shards=3)
MERGED: Final = Tuning(seal_records=16, seal_age_ms=400)
"""Sealed by age, long before a segment is full."""
PLAIN: Final = Tuning(compression="none")
"""So that a value on the disk is found by its bytes."""
PLANS: Final = (
    Plan(scenarios.appends),
    Plan(scenarios.mixed),
    Plan(scenarios.rotation),
    Plan(scenarios.topics),
    Plan(scenarios.topics, tuning=SHARDED, powers=1),
    Plan(scenarios.idle),
    Plan(scenarios.sealing, powers=1),
    Plan(scenarios.checkpoints, powers=1),
    Plan(scenarios.checkpoints, tuning=SHARDED, powers=1),
    Plan(scenarios.caps, powers=1),
    Plan(scenarios.ages, powers=1, power_every=2, every=3),
    Plan(scenarios.updates),
    Plan(scenarios.ephemeral),
    Plan(scenarios.deletes, powers=1),
    Plan(scenarios.merging, tuning=MERGED, powers=1, power_every=2, every=3),
    Plan(scenarios.bases, powers=1, power_every=2, every=3),
    Plan(scenarios.erasing, tuning=PLAIN, powers=1, power_every=2, every=3),
    Plan(scenarios.restart, scenarios.full_store, powers=1),
)
RECOVERIES: Final = tuple(
    Plan(scenarios.restart, scenarios.full_store, Break(crash_at, ENDS[crash_at % 2]), powers=1)
    for crash_at in (111, 160, 260)
)
"""Recovery itself is stopped at every call, after a store with everything was stopped somewhere."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.name))
def test_every_crash_point_recovers(plan: Plan, part: int, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sweep(plan, part))


@pytest.mark.parametrize("plan", RECOVERIES, ids=lambda plan: str(plan.name))
def test_every_crash_of_a_recovery_recovers(plan: Plan, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sum(sweep(plan, part) for part in range(PARTS)))
