"""Bytes of the log lost without a power-up: no acknowledged seq is assigned again, and the loss is a gap."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Durability
from eddyline.core.records.record import GapReason
from eddyline.store.log.topic import RESERVATION_SEQS
from eddyline.store.storage.identity import read_identity, write_identity
from eddyline.store.storage.layout import Layout, wal_file
from tests.support.manual_clock import ManualClock
from tests.support.models.history import read_all
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.simulated import LASTING, append, kv_topic, log_topic, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

LAYOUT = Layout(settings().directory)
SYNCED, ACKNOWLEDGED = 5, 6
BIG = RESERVATION_SEQS + 1


async def killed(work: Callable[[Shard], Awaitable[None]], fs: SimFs | None = None, *, marked: bool = True) -> SimFs:
    """Return the disk of a store that was killed after `work`."""
    fs = fs or SimFs()
    with pytest.RaisesGroup(Crashed, flatten_subgroups=True, allow_unwrapped=True):
        async with sim_store(fs, SimFold(0), ManualClock(), marked=marked) as link:
            await work(link)
            fs.crashed = True
    return fs.reboot("kill")


def six_appends(durability: Durability) -> Callable[[Shard], Awaitable[None]]:
    async def work(link: Shard) -> None:
        await log_topic(link, "log", durability)
        await append(link, "log", rows(*map(str, range(SYNCED))))
        await link._engine.committers[0].sync()
        assert (await append(link, "log", rows("last"))).last_seq == ACKNOWLEDGED

    return work


async def check_never_again(fs: SimFs, *, marked: bool = True, last_seq: int = ACKNOWLEDGED) -> None:
    """Check over two starts that no seq up to `last_seq` is assigned again, and that missing ones are a gap."""
    async with sim_store(fs, SimFold(0), ManualClock(), marked=marked) as link:
        records, gaps = await read_all(link, "log")
        kept = records[-1].seq if records else 0
        if kept < last_seq:
            assert [(gap.first_seq, gap.reason) for gap in gaps] == [(kept + 1, GapReason.UNSYNCED)]
            assert gaps[0].last_seq >= last_seq
        assert (await append(link, "log", rows("next"))).first_seq > last_seq
        left = fs.reboot("kill")
    async with sim_store(left, SimFold(0), ManualClock(), marked=marked) as link:
        assert (await read_all(link, "log"))[1] == gaps, "a gap is told once"


def last_frame(fs: SimFs) -> tuple[bytearray, range]:
    """Return the newest WAL file and the range of its last frame."""
    newest = max(name for name in fs.listdir(LAYOUT.wal_shard(0)) if name.endswith(".wal"))
    content = fs.content(wal_file(LAYOUT.wal_shard(0), int(newest[:16], 16)))
    return content, range(content.rindex(b"EDYF"), -(-len(bytes(content).rstrip(b"\0")) // 8) * 8)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("durability", LASTING)
async def test_a_flipped_bit_of_the_last_frame(durability: Durability, marked: bool) -> None:
    fs = await killed(six_appends(durability), marked=marked)
    for at in last_frame(fs)[1][::3]:
        damaged = fs.reboot("kill")
        last_frame(damaged)[0][at] ^= 1 << at % 8
        await check_never_again(damaged, marked=marked)


async def test_unsynced_bytes_are_lost_in_the_same_boot() -> None:
    fs = await killed(six_appends(Durability.DISK))
    for seed in range(16):
        await check_never_again(fs.reboot("detach", seed=seed))


async def test_unsynced_bytes_are_zeros() -> None:
    fs = await killed(six_appends(Durability.DISK))
    content, place = last_frame(fs)
    content[place.start : place.stop] = bytes(len(place))
    await check_never_again(fs)


async def test_a_reservation_is_damaged_with_the_append_that_waited_for_it() -> None:
    async def work(link: Shard) -> None:
        await log_topic(link)
        await append(link, "log", rows(*["x"] * SYNCED))
        for _ in range(2):
            last = await append(link, "log", rows(*["x"] * (BIG // 2)))
        assert last.last_seq > RESERVATION_SEQS

    fs = await killed(work)
    content, place = last_frame(fs)
    reservation = content.rindex(b"EDYF", 0, place.start)
    for at in (reservation + 12, reservation + 24):
        damaged = fs.reboot("kill")
        last_frame(damaged)[0][at] ^= 1
        await check_never_again(damaged, last_seq=SYNCED + 2 * (BIG // 2))


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_kill_is_no_loss_unless_the_mark_is_missing(is_there: bool) -> None:
    fs = await killed(six_appends(Durability.DISK))
    if not is_there:
        fs.written_mark = None
    async with sim_store(fs.reboot("kill"), SimFold(0), ManualClock()) as link:
        first_seq = (await append(link, "log", rows("next"))).first_seq
    assert (first_seq == ACKNOWLEDGED + 1) is is_there
    assert first_seq > ACKNOWLEDGED


@pytest.mark.parametrize(
    ("kind", "is_marked", "word"),
    [("power", True, "rebooted"), ("detach", True, "ends before"), ("kill", False, "TMPDIR")],
)
async def test_a_start_logs_the_proof_of_a_loss(
    kind: CrashKind, is_marked: bool, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = await killed(six_appends(Durability.DISK))
    if not is_marked:
        fs.written_mark = None
    logged = []
    for seed in range(16):  # of some nothing is lost
        async with sim_store(fs.reboot(kind, seed=seed), SimFold(0), ManualClock()) as link:
            gaps = (await read_all(link, "log"))[1]
        warnings = [record for record in caplog.records if record.message == "acknowledged records may be lost"]
        assert len(warnings) == len(gaps)
        logged += [str(vars(record)) for record in warnings]
        caplog.clear()
    assert logged
    assert all(word in line for line in logged)


async def test_a_start_killed_at_any_call_decides_the_same() -> None:
    async def work(link: Shard) -> None:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "v")))
        await six_appends(Durability.DISK)(link)

    damaged = await killed(work)
    last_frame(damaged)[0][last_frame(damaged)[1].start + 60] ^= 1
    whole = damaged.reboot("kill")
    async with sim_store(whole, SimFold(0), ManualClock()):
        calls = whole.calls
    for crash_at in range(1, calls, 3):
        fs, fold = damaged.reboot("kill", crash_at=crash_at), SimFold(0)
        with pytest.RaisesGroup(Crashed, flatten_subgroups=True, allow_unwrapped=True):
            async with sim_store(fs, fold, ManualClock()):
                pass
        async with sim_store(fs.reboot("kill"), deepcopy(fold).kill(), ManualClock()) as link:
            assert (await append(link, "log", rows("next"))).first_seq > ACKNOWLEDGED, crash_at
            assert len((await read_all(link, "log"))[1]) == 1, crash_at


async def test_an_identity_of_an_earlier_version_trusts_the_boot_id_and_what_was_cut() -> None:
    fs = await killed(six_appends(Durability.DISK), marked=False)
    identity = read_identity(fs.reboot("kill"), LAYOUT)
    assert identity is not None
    assert not identity.marked
    left = fs.reboot("kill")
    write_identity(left, LAYOUT, identity)
    async with sim_store(left, SimFold(0), ManualClock()) as link:
        assert (await append(link, "log", rows("next"))).first_seq == ACKNOWLEDGED + 1
