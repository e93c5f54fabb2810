"""Disk errors while a store appends or stops: callers get the error, and the next start has every acknowledged record."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CommitUnknown, DataCorrupt, EddylineError, ReadOnly
from eddyline.core.model.topic import Durability
from eddyline.core.records.record import Gap
from eddyline.store.fold.fold import FoldFailed
from eddyline.store.log.append import AppendRequest
from eddyline.store.storage.identity import read_identity
from eddyline.store.storage.layout import Layout, wal_file, wal_numbers
from tests.support.manual_clock import settle
from tests.support.models.history import read_items
from tests.support.sim.faulty_fs import Fault, FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import LASTING, append, kv_topic, log_topic, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.fold.fold import FoldWrite
    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

LAYOUT = Layout(settings().directory)
CLASSES = {"safe": Durability.FSYNC, "log": Durability.DISK}
VALUES = ("a", "b", "c")


def wal_bytes(fs: SimFs) -> dict[int, int]:
    """How long each WAL file is."""
    directory = LAYOUT.wal_shard(0)
    return {number: len(fs.content(wal_file(directory, number))) for number in wal_numbers(fs.listdir(directory))}


async def payloads(link: Shard, topic: str) -> list[bytes | None]:
    """Records of a topic, without gaps."""
    return [item.data for item in await read_items(link, topic) if not isinstance(item, Gap)]


# a group commit that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_fdatasync_that_fails_once_is_every_waiters_of_its_group(code: int) -> None:
    disk = FaultyFs(SimFs())
    fold = SimFold(0)
    async with sim_store(disk, fold) as link:
        for name in ("one", "two"):
            await log_topic(link, name, Durability.FSYNC)
            await append(link, name, rows("acknowledged"))
        syncs = disk.calls["fdatasync"]
        disk.next_fault("fdatasync", error=code)
        acks = [
            await link.stage(AppendRequest(topic=name, batch=rows(f"{number}")))
            for number in range(4)
            for name in ("one", "two")
        ]
        for ack in acks:
            with pytest.raises(CommitUnknown):
                await ack
        for committer in link._engine.committers:
            assert not committer.wal.all_synced, "what was not synced is not taken for synced"
            await committer.sync()
        with pytest.raises(ReadOnly):
            await append(link, "one", rows("later"))
        for name in ("one", "two"):
            assert await payloads(link, name) == [b"acknowledged"]
        assert disk.calls["fdatasync"] == syncs + 1, "it is not tried again"
    assert isinstance(disk.inner, SimFs)
    for seed in range(8):
        async with sim_store(disk.inner.reboot("power", seed=seed), fold.power()) as link:
            for name in ("one", "two"):
                found = await payloads(link, name)
                assert found == [b"acknowledged", b"0", b"1", b"2", b"3"][: len(found)]
                assert found


# an append that fails and a length that cannot be asked for ------------------------------------------------------------


@pytest.mark.parametrize("durability", LASTING)
@pytest.mark.parametrize("failing", ["pwritev", "fdatasync"])
async def test_failed_read_of_a_files_length_truncates_no_acknowledged_bytes(
    durability: Durability, failing: str
) -> None:
    fs = SimFs()
    disk = FaultyFs(fs)
    async with sim_store(disk) as link:
        await log_topic(link, "log", durability)
        await log_topic(link, "synced", Durability.FSYNC)
        for value in "abc":
            await append(link, "log", rows(value))
        acknowledged = wal_end(link)
        disk.next_fault("size", error=errno.EIO, lasting=True)
        disk.next_fault(failing, error=errno.EIO)
        with pytest.raises(EddylineError):
            await append(link, "synced", rows("fails"))
        assert wal_bytes(fs)[acknowledged[0]] >= acknowledged[1]
    assert wal_bytes(fs)[acknowledged[0]] >= acknowledged[1]
    asked = await calls_of_a_start(fs, "size")
    assert asked
    for call in range(1, asked + 1):
        left = fs.reboot("kill")
        try:
            async with sim_store(FaultyFs(left, [Fault("size", call, errno.EIO)]), boot_id=left.boot_id) as link:
                assert await payloads(link, "log") == [b"a", b"b", b"c"]
        except* (EddylineError, OSError):
            pass
        assert wal_bytes(left)[acknowledged[0]] >= acknowledged[1]
        async with sim_store(left.reboot("kill")) as link:
            assert await payloads(link, "log") == [b"a", b"b", b"c"]


def wal_end(link: Shard) -> tuple[int, int]:
    """The WAL file that is written, and where its frames end."""
    end = link._engine.committers[0].wal.end
    return end.file_number, end.file_bytes


async def calls_of_a_start(fs: SimFs, operation: str) -> int:
    """How often a start and a stop call it."""
    disk = FaultyFs(fs.reboot("kill"))
    async with sim_store(disk, boot_id=fs.boot_id):
        pass
    return disk.calls[operation]


# a stop that fails --------------------------------------------------------------------------------------------------


class Life:
    """A store that took appends of both classes and was stopped, maybe on a disk that erred meanwhile."""

    def __init__(self, fault: Fault | None = None, *, wal_shards: int = 1) -> None:
        self.fs, self.fold = SimFs(), SimFold(0)
        self._wal_shards = wal_shards
        self._faults = [fault] if fault is not None else []
        self.before: Counter[str] = Counter()
        """Calls by operation when the stop began."""
        self.after: Counter[str] = Counter()
        self.wal: dict[int, int] = {}

    async def run(self) -> None:
        disk = FaultyFs(self.fs, self._faults)
        try:
            async with sim_store(disk, self.fold, boot_id=self.fs.boot_id, wal_shards=self._wal_shards) as link:
                for name, durability in CLASSES.items():
                    await log_topic(link, name, durability)
                await kv_topic(link)
                for value in VALUES:
                    await append(link, "safe", rows(value))
                    await append(link, "kv", puts(("k", value), (value, value)))
                    await append(link, "log", rows(value))
                await settle()
                self.before, self.wal = disk.calls.copy(), wal_bytes(self.fs)
        except* OSError:
            assert self._faults
        self.after = disk.calls

    async def found(self, crash: CrashKind, seed: int = 0) -> dict[str, list[bytes | None]]:
        """Records that the next start serves."""
        fold = deepcopy(self.fold)
        async with sim_store(
            self.fs.reboot(crash, seed=seed),
            fold.power() if crash == "power" else fold.kill(),
            wal_shards=self._wal_shards,
        ) as link:
            keys = [key.encode() for key in ("k", *VALUES)]
            entries = (await link.batch_get_entries("kv", keys)).entries
            return {
                **{name: await payloads(link, name) for name in CLASSES},
                "kv": [entry and entry.data for entry in entries],
            }


ALL = {name: [value.encode() for value in VALUES] for name in CLASSES} | {
    "kv": [value.encode() for value in (VALUES[-1], *VALUES)]
}


async def test_sync_of_the_log_that_fails_at_a_stop_is_no_clean_stop_and_the_next_start_replays() -> None:
    clean = Life()
    await clean.run()
    assert clean.after["fdatasync"] > clean.before["fdatasync"], "there is something to sync"
    life = Life(Fault("fdatasync", clean.before["fdatasync"] + 1, errno.EIO))
    await life.run()
    identity = read_identity(life.fs, LAYOUT)
    assert identity is not None
    assert not identity.clean
    assert wal_bytes(life.fs) == life.wal, "no file of the log is cut or gone"
    assert await life.found("kill") == ALL


@pytest.mark.parametrize("wal_shards", [1, 3])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("operation", ["fdatasync", "fsync", "fsync_dir", "rename", "pwritev"])
async def test_any_error_of_the_disk_at_a_stop_loses_nothing_that_was_acknowledged(
    operation: str, lasting: bool, wal_shards: int
) -> None:
    clean = Life(wal_shards=wal_shards)
    await clean.run()
    calls = range(clean.before[operation] + 1, clean.after[operation] + 1)
    assert calls
    for call in calls:
        life = Life(Fault(operation, call, errno.EIO, lasting=lasting), wal_shards=wal_shards)
        await life.run()
        assert await life.found("kill") == ALL, call
        identity = read_identity(life.fs, LAYOUT)
        assert identity is not None
        for seed in range(4):
            found = await life.found("power", seed)
            assert found["safe"] == ALL["safe"], (call, seed)
            assert found["log"] == ALL["log"][: len(found["log"])], (call, seed)
            assert found == ALL or not identity.clean, (call, seed)


@pytest.mark.parametrize("name", ["one", "two", "three"])
async def test_stop_is_clean_only_where_no_wal_shard_has_failed(name: str) -> None:
    """The shards end one after the other: that one of them ended well says nothing of the others."""
    disk = FaultyFs(SimFs())
    async with sim_store(disk, wal_shards=3) as link:
        for one in ("one", "two", "three"):
            await log_topic(link, one, Durability.FSYNC)
        await settle()
        disk.next_fault("fdatasync", error=errno.EIO)
        with pytest.raises(CommitUnknown):
            await append(link, name, rows("unknown"))
    assert link.status().read_only_reason == "SYNC_FAILED"
    identity = read_identity(disk, LAYOUT)
    assert identity is not None
    assert not identity.clean


# a fold that fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [FoldFailed("once"), DataCorrupt("once", file="fold", offset=0)])
async def test_nothing_is_applied_behind_a_write_that_the_fold_failed(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, fold = SimFs(), SimFold(0)
    async with sim_store(disk, fold) as link:
        await kv_topic(link)
        failures, write = [error], fold.apply

        def fails_once(writes: Sequence[FoldWrite]) -> None:
            if failures:
                raise failures.pop()
            write(writes)

        monkeypatch.setattr(fold, "apply", fails_once)
        acks = []
        for key in ("a", "b", "c"):
            acks.append(await link.stage(AppendRequest(topic="kv", batch=puts((key, key)))))
            for _ in range(3):
                await asyncio.sleep(0)
        for ack in acks:
            with pytest.raises((CommitUnknown, ReadOnly)):
                await ack
        assert not fold.applied(link._table.get("kv").id)
        monkeypatch.undo()
    async with sim_store(disk.reboot("kill"), fold.kill()) as link:
        found = await payloads(link, "kv")
        assert found
        topic = link._table.get("kv")
        entries = (await link._parts.entries.get(topic, [b"a", b"b", b"c"])).entries
        assert [entry.data for entry in entries if entry is not None] == found
