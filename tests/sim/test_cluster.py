"""A whole cluster, by seeds: under all faults each subscriber gets exactly the log's records, and gaps for losses.

Ingest is not part of it: its other side is a real nats-server. A source that writes by positions stands for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.cluster import WholeCluster
from tests.sim.seeds import naming, seeds

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sim

SEEDS = 24


@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_every_view_is_the_log_under_its_filter(
    seed: int, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    with naming(seed, capsys):
        cluster = WholeCluster(seed)
        await cluster.go()
        assert cluster.records + cluster.levels > 0, "nobody was shown anything"
    record_property("records that subscribers saw", cluster.records)
