"""A killed replay continues at the next start: the catalog has its progress, saved between any two frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import ConfigChange, Durability
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.recovery import open as opening
from eddyline.store.recovery.replay import Replay
from eddyline.store.storage.layout import Layout, wal_file
from tests.support.manual_clock import ManualClock
from tests.support.models.history import look
from tests.support.sim.catalog import SimCatalog
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import CATALOG, append, kv_topic, log_topic, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

LAYOUT = Layout(settings().directory)
APPENDS = 10
KILLS = 20
NAMES = ("log", "kv", "certs")


@pytest.fixture(params=["REPLAYED_BYTES_MAX", "REPLAYED_S_MAX"])
def steps_each_frame(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, request.param, 0)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Location]:
    """Locations of the frames that a replay applies."""
    locations: list[Location] = []
    apply = Replay._apply

    def counted(replay: Replay, frame: WalFrame, location: Location) -> None:
        locations.append(location)
        apply(replay, frame, location)

    monkeypatch.setattr(Replay, "_apply", counted)
    return locations


async def fill(link: Shard) -> None:
    """Log frames of many kinds."""
    await log_topic(link)
    await kv_topic(link)
    await kv_topic(link, "certs", Durability.FSYNC)
    await link.put_source(SourceDefinition("source", "certs", "bucket"))
    for number in range(APPENDS):
        await (await link.stage(AppendRequest(topic="log", batch=rows(str(number)), idempotency_key=str(number))))
        position = WriterPosition("w", 1, b"%d" % number if number else b"", b"%d" % (number + 1))
        await append(link, "kv", puts((f"k{number % 3}", str(number))), writer=position)
    await link.update_topic("log", ConfigChange(ttl_ms=600_000))
    await link.delete_records("log", before_seq=4)
    await append(link, "kv", puts(("k1", None)))
    await log_topic(link, "gone")
    await link.delete_topic("gone")


async def killed() -> tuple[SimFs, SimFold]:
    fs, fold = SimFs(), SimFold(0)
    with pytest.RaisesGroup(Crashed, flatten_subgroups=True, allow_unwrapped=True):
        async with sim_store(fs, fold, ManualClock()) as link:
            await fill(link)
            fs.crashed = True
    return fs.reboot("kill"), fold.kill()


@pytest.mark.usefixtures("steps_each_frame")
async def test_a_replay_killed_at_any_call_continues_to_the_same_state(applied: list[Location]) -> None:
    fs, fold = await killed()
    whole = fs.reboot("kill")
    async with sim_store(whole, fold.kill(), ManualClock()) as link:
        calls = whole.calls
        right = [await look(link, name) for name in NAMES]
    all_frames = least = len(applied)
    for crash_at in range(calls, 1, -calls // KILLS):
        stopped, half = fs.reboot("kill", crash_at=crash_at), fold.kill()
        with pytest.RaisesGroup(Crashed, flatten_subgroups=True, allow_unwrapped=True):
            async with sim_store(stopped, half, ManualClock()):
                pass
        applied.clear()
        async with sim_store(stopped.reboot("kill"), half.kill(), ManualClock()) as link:
            least = min(least, len(applied))
            assert [await look(link, name) for name in NAMES] == right, crash_at
            ack = await link.stage(AppendRequest(topic="log", batch=rows("7"), idempotency_key="7"))
            assert (await ack).deduplicated, crash_at
    assert least < all_frames / 4, "the last of them had little left to do"


@pytest.mark.usefixtures("steps_each_frame")
async def test_a_log_that_ends_before_a_replays_saved_progress_is_refused() -> None:
    fs, fold = await killed()
    for crash_at in range(60, 1_000):
        stopped = fs.reboot("kill", crash_at=crash_at)
        with pytest.RaisesGroup(Crashed, flatten_subgroups=True, allow_unwrapped=True):
            async with sim_store(stopped, fold.kill(), ManualClock()):
                pass
        left = stopped.reboot("kill")
        head, _ = SimCatalog(left, CATALOG).load()
        if head is not None and head.wal[0].state_offset > 1_000:
            break
    assert head is not None
    content = left.content(wal_file(LAYOUT.wal_shard(0), head.wal[0].state_number))
    content[head.wal[0].state_offset - 20] ^= 1
    with pytest.raises(DataCorrupt, match="is corrupt at offset"):
        async with sim_store(left, fold.kill(), ManualClock()):
            pass
