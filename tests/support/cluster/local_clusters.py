"""A local cluster as `eddyline up` runs it, at free ports, with what is set of the environment."""

from __future__ import annotations

import os
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.cli.local_cluster.cluster import LocalClusterPlan, local_cluster
from eddyline.core.runtime.clock import SystemClock, SystemHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.cli.local_cluster.cluster import LocalCluster


@asynccontextmanager
async def cluster_in(folder: Path) -> AsyncIterator[LocalCluster]:
    """One with its data in `folder`, until left."""
    async with local_cluster(
        LocalClusterPlan(folder / "data", free_ports=True),
        environ=os.environ,
        clock=SystemClock(),
        host=SystemHost(),
        random_source=random.Random(7),
        tell=lambda _event: None,
    ) as cluster:
        yield cluster
