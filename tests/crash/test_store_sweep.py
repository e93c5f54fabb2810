"""Every operation of a store, stopped at every file-system and catalog call; see `sweep.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.crash import scenarios
from tests.crash.sweep import PARTS, Plan, Tuning, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.crash

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


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.name))
def test_every_crash_point_recovers(plan: Plan, part: int, record_property: Callable[[str, object], None]) -> None:
    record_property(f"crashes recovered: {plan.name}", sweep(plan, part))
