"""Random histories of a whole store in process, with kills and power failures, against the semantics."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.strategies import integers, sampled_from

from tests.sim.test_walk import Walk


class StoreMachine(RuleBasedStateMachine):
    """Lives of some steps each; what hypothesis draws is how many, and whose randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.walk = Walk(0)
        self.end = self.runner.run(self.walk.live("clean", steps=0))

    @initialize(seed=integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.walk.random = self.walk.wanderer.random = Random(seed)

    @rule(steps=sampled_from((1, 3, 10, 30)))
    def live(self, steps: int) -> None:
        self.end = self.runner.run(self.walk.live(self.end, steps=steps))

    @rule()
    def look(self) -> None:
        self.end = self.runner.run(self.walk.live(self.end, steps=0))

    def teardown(self) -> None:
        self.runner.close()


TestStoreMachine = StoreMachine.TestCase
# No shrinking: a smaller seed is another walk, and looking for one takes so long that a failure is told as a timeout.
TestStoreMachine.settings = settings(
    max_examples=12,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
