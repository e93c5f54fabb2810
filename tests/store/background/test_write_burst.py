"""Background jobs are postponed during a burst of appends, and only then."""

from __future__ import annotations

from eddyline.store.background.write_burst import BURST_BYTES_PER_S, WriteBurst
from tests.support.manual_clock import ManualClock
from tests.support.store.simulated import append, log_topic, rows, sim_store

MIB = 1 << 20


async def test_burst_lasts_while_the_log_grows_fast_and_little_is_unsegmented() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock, wal_file_bytes=64 * MIB) as link:
        await log_topic(link)
        burst = WriteBurst(link._engine, clock, unsegmented_bytes_max=64 * MIB)
        burst.is_active()
        await append(link, "log", rows(*["x" * (MIB // 2)] * 10))
        clock.advance(4 * MIB / BURST_BYTES_PER_S)
        assert burst.is_active()
        clock.advance(4 * MIB / BURST_BYTES_PER_S)
        assert not burst.is_active()
        await append(link, "log", rows("a trickle"))
        clock.advance(1)
        assert not burst.is_active()
        await append(link, "log", rows(*["x" * (MIB // 2)] * 24))
        assert not burst.is_active(), "too much waits already"
