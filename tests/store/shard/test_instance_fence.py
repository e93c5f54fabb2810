"""H06: a directory that two stores have at once, where the lock did not hold: the earlier one writes no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eddyline.core.errors import ReadOnly
from eddyline.core.model.topic import Durability
from eddyline.store.shard.instance_fence import CHECK_INTERVAL_S
from eddyline.store.storage.identity import read_identity, write_identity
from eddyline.store.storage.layout import Layout
from tests.support.manual_clock import ManualClock
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import LASTING, append, log_topic, rows, sim_store

LAYOUT = Layout(Path("/data"))


def start_elsewhere(fs: SimFs) -> int:
    """Write the identity that another process's start writes first; return its number."""
    identity = read_identity(fs, LAYOUT)
    assert identity is not None
    write_identity(fs, LAYOUT, replace(identity, instance=identity.instance + 1, boot_id="elsewhere"))
    return identity.instance + 1


@pytest.mark.parametrize("durability", LASTING)
async def test_h06_store_whose_directory_another_one_has_stops_at_the_next_append(durability: Durability) -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await log_topic(link, durability=durability)
        await append(link, "log", rows("a"))
        instance = start_elsewhere(fs)
        clock.advance(CHECK_INTERVAL_S)
        for _ in range(2):
            with pytest.raises(ReadOnly) as refused:
                await append(link, "log", rows("b"))
            assert refused.value.metadata["cause"] == "SUPERSEDED"
        status = link.status()
        assert status.read_only_reason == "SUPERSEDED"
    identity = read_identity(fs, LAYOUT)
    assert identity is not None
    assert (identity.instance, identity.boot_id, identity.clean) == (instance, "elsewhere", False)


async def test_store_that_stops_leaves_the_identity_of_a_later_start() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        await log_topic(link)
        start_elsewhere(fs)
    identity = read_identity(fs, LAYOUT)
    assert identity is not None
    assert (identity.boot_id, identity.clean) == ("elsewhere", False)


async def test_own_identity_is_no_other_store_however_long_it_runs() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await log_topic(link)
        for _ in range(5):
            clock.advance(10 * CHECK_INTERVAL_S)
            await append(link, "log", rows("a"))
        assert link.status().read_only_reason == ""
