"""A want of descriptors or memory is no failed disk: work waits or is refused, and goes on by itself."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import Throttled
from eddyline.core.model.topic import Durability
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.fs import RealFs, is_shortage
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.catalog.rocksdb import RocksCatalog
from eddyline.store.fold.fold import FoldShort, FoldWrite
from eddyline.store.fold.rocksdb import RocksFold
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.storage.catalog_entries import head, plain_topic
from tests.support.store.simulated import WAL_FILE_BYTES, append, kv_topic, log_topic, puts, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
HALF_A_FILE = "x" * (WAL_FILE_BYTES // 2)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, hard))
    try:
        while True:  # holes below the limit
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("error", SHORT)
@pytest.mark.parametrize("operation", ["open", "fsync_dir", "pwritev", "rename"])
@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
async def test_appends_go_on_where_the_next_file_could_not_be_had_at_once(
    operation: str, error: int, durability: Durability
) -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link, "log", durability)
        for number in range(1, 6):
            if operation != "rename":
                disk.next_fault(operation, error=error)
            assert (await append(link, "log", rows(HALF_A_FILE))).last_seq == number
        assert link.unserved_reason() == ""


async def test_while_the_log_waits_appends_are_refused_and_the_status_says_so() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        wal = link._engine.committers[0].wal
        wal.short_of = os.strerror(errno.EMFILE)
        with pytest.raises(Throttled, match="Too many open files"):
            await append(link, "log", rows("b"))
        assert link.unserved_reason() == "SHORTAGE"
        wal.short_of = ""
        assert (await append(link, "log", rows("b"))).last_seq == 2


async def test_a_failed_sync_stays_one_whatever_it_is_called() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        disk.next_fault("fdatasync", error=errno.ENOMEM)
        await link._engine.committers[0].sync()
        assert link.unserved_reason() == "SYNC_FAILED"


def test_a_failed_sync_of_a_directory_is_no_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(_fd: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fsync", short)
    with pytest.raises(OSError, match="Cannot allocate") as failed:
        RealFs().fsync_dir(tmp_path)
    assert not is_shortage(failed.value)


async def test_a_store_that_ends_waits_for_nothing() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await log_topic(link)
        wal = link._engine.committers[0].wal
        wal.give_up()
        disk.next_fault("pwritev", error=errno.ENOMEM)
        with pytest.raises(OSError, match="Cannot allocate"):
            wal._retry(lambda: disk.call("pwritev"))


async def test_a_file_that_cannot_be_opened_for_a_read_is_not_damaged() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk, cache_bytes=0, seal_records=2) as link:
        await log_topic(link)
        await kv_topic(link)
        await append(link, "log", rows("a", "b", "c", "d"))
        for _ in range(2):
            disk.next_fault("open", error=errno.EMFILE)
            with pytest.raises(Throttled):
                await link.read_records("log", after_seq=0, limit=10)
            assert len((await link.read_records("log", after_seq=0, limit=10)).items) == 1
            await link._parts.maintenance.round()
        assert link.status().corrupt_count == 0
        assert (await append(link, "kv", puts(("k", "v")))).last_seq == 1


def test_a_fold_short_of_descriptors_goes_on_with_all_it_took(tmp_path: Path) -> None:
    fold = RocksFold(tmp_path / "fold")
    try:
        fold.apply([FoldWrite(1, 1, [(b"a", value_of(1))], [])])
        with no_descriptors(), pytest.raises(FoldShort):
            fold.flush()
        fold.apply([FoldWrite(1, 2, [(b"b", value_of(2))], [])])
        fold.flush()
        assert (fold.applied(1), [record and record.seq for record in fold.get(1, [b"a", b"b"])]) == (2, [1, 2])
    finally:
        fold.close()


def test_a_catalog_short_of_descriptors_takes_the_next_checkpoint(tmp_path: Path) -> None:
    catalog = RocksCatalog(tmp_path / "catalog")
    assert list(catalog.load()[1]) == []
    catalog.write(head(), [plain_topic(1)], [])
    catalog._is_short = True
    with no_descriptors(), pytest.raises(CatalogFailed):
        catalog.write(head(2), [plain_topic(1), plain_topic(2)], [])
    catalog.write(head(2), [plain_topic(1), plain_topic(2)], [])
    _, entries = catalog.load()
    assert [one.id for one in entries] == [1, 2]
    catalog.close()


def value_of(seq: int) -> bytes:
    return encode_entry(Record(op=Op.PUT, key=b"", data=b"v", seq=seq))
