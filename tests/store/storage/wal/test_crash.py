"""Crash at every call of writing, syncing, rotating, recovering, by kill and by power: synced frames survive, in order."""

from __future__ import annotations

import pytest

from tests.support.sim.fs import Crashed, CrashKind, SimFs
from tests.support.storage.wal_frames import FILE_BYTES, append_of, put, recover

POWER_SEEDS = 4


class History:
    """Acknowledged progress of a scenario: frames written to the kernel, and frames that a sync covers."""

    def __init__(self) -> None:
        self.placed: list[bytes] = []
        self.written = 0
        self.synced = 0


def run(fs: SimFs, history: History) -> None:
    """Groups of many sizes, some synced and some not, over several rotations and one larger frame."""
    wal = recover(fs).wal
    sizes = [[100], [700, 10], [900, 1200], [FILE_BYTES - 100], [2 * FILE_BYTES, 30], [5], [600, 600, 3000], [40]]
    for number, group in enumerate(sizes):
        payloads = [b"%02d.%d" % (number, index) + b"x" * size for index, size in enumerate(group)]
        history.placed += payloads
        if number in (2, 6):
            wal.prepare_spare()
        put(wal, [append_of(payload) for payload in payloads], sync=False)
        history.written += len(group)
        if number % 3:
            wal.sync()
            history.synced = history.written


def calls_of_a_whole_run() -> int:
    fs, history = SimFs(), History()
    run(fs, history)
    assert history.synced == len(history.placed) > 10
    return fs.calls


CALLS = calls_of_a_whole_run()


def crashed_at(call: int) -> tuple[SimFs, History]:
    fs, history = SimFs(call, crash_at=call), History()
    with pytest.raises(Crashed):
        run(fs, history)
    return fs, history


def outcomes(fs: SimFs) -> list[tuple[CrashKind, SimFs]]:
    powers = [fs.reboot("power", seed=seed) for seed in range(POWER_SEEDS)]
    return [("kill", fs.reboot("kill")), *(("power", power) for power in powers)]


def test_crash_at_every_call_keeps_synced_frames_in_order() -> None:
    for call in range(1, CALLS + 1):
        fs, history = crashed_at(call)
        for crash, rebooted in outcomes(fs):
            payloads = recover(rebooted).payloads
            promised = history.written if crash == "kill" else history.synced
            assert len(payloads) >= promised, (call, crash)
            assert payloads == history.placed[: len(payloads)], (call, crash)


def test_recovered_frames_are_durable_and_a_second_recovery_changes_nothing() -> None:
    for call in range(1, CALLS + 1, 3):
        fs, _ = crashed_at(call)
        for crash, rebooted in outcomes(fs):
            first = recover(rebooted)
            put(first.wal, [append_of(b"after")])
            for seed in range(POWER_SEEDS):
                second = recover(rebooted.reboot("power", seed=seed))
                assert second.payloads == [*first.payloads, b"after"], (call, crash, seed)
                assert second.locations[:-1] == first.locations


def test_crash_at_every_call_of_recovery_loses_nothing_synced() -> None:
    for call in range(CALLS // 3, CALLS + 1, 7):
        fs, history = crashed_at(call)
        for crash, rebooted in outcomes(fs)[:2]:
            for again in range(1, 40):
                interrupted = rebooted.reboot("kill", seed=again, crash_at=again)
                try:
                    recover(interrupted)
                except Crashed:
                    payloads = recover(interrupted.reboot("power")).payloads
                    assert len(payloads) >= history.synced, (call, crash, again)
                    assert payloads == history.placed[: len(payloads)], (call, crash, again)
                else:
                    break


@pytest.mark.parametrize("prepared", [False, True])
def test_power_loss_at_a_rotation_with_unsynced_groups_leaves_no_missing_file(prepared: bool) -> None:
    before = [b"synced", *(b"%d" % number + b"x" * 900 for number in range(3))]
    behind = [b"first of the next" + b"x" * FILE_BYTES, b"second"]
    call, rolled = 0, False
    while not rolled:
        call += 1
        fs = SimFs(call)
        wal = recover(fs).wal
        if prepared:
            wal.prepare_spare()
        put(wal, [append_of(before[0])])
        put(wal, [append_of(payload) for payload in before[1:]], sync=False)
        fs.crash_at = fs.calls + call
        try:
            put(wal, [append_of(payload) for payload in behind], sync=False)
            rolled = True
        except Crashed:
            pass
        for seed in range(16):
            payloads = recover(fs.reboot("power", seed=seed)).payloads
            assert len(payloads) >= (len(before) if rolled else 1), (call, seed)
            assert payloads == (before + behind)[: len(payloads)], (call, seed)
    assert call > 5
