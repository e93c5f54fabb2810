"""Unsuitable file systems, and the warning at a store's start on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from eddyline.store.storage.volume import MEMORY, NETWORK, type_in, unsuitable_volume, volume_type
from tests.support.store.simulated import sim_store

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /mnt rw - tmpfs tmpfs rw,size=1024k
24 22 0:22 / /mnt/far\\040away rw shared:5 master:2 - nfs4 host:/export rw,vers=4.2
25 22 0:23 / /twice rw - ext4 /dev/b rw
26 22 0:24 / /twice rw - tmpfs tmpfs rw
not a mount
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/", "ext4"),
        ("/mntelse/store", "ext4"),
        ("/mnt", "tmpfs"),
        ("/mnt/data/store", "tmpfs"),
        ("/mnt/far away/store", "nfs4"),
        ("/twice/store", "tmpfs"),
    ],
)
def test_type_is_that_of_the_innermost_and_latest_mount(directory: str, kind: str) -> None:
    assert type_in(MOUNTS, Path(directory)) == kind


def test_unreadable_mount_table_gives_no_type() -> None:
    assert type_in("", Path("/data")) == ""
    assert unsuitable_volume("") == ""


def test_network_and_memory_volumes_are_unsuitable_and_disks_are_not() -> None:
    assert all("network" in unsuitable_volume(kind) for kind in NETWORK)
    assert all("memory" in unsuitable_volume(kind) for kind in MEMORY)
    assert [unsuitable_volume(kind) for kind in ("ext4", "xfs", "btrfs", "zfs", "overlay")] == [""] * 5


def test_real_directories_have_a_type(tmp_path: Path) -> None:
    assert volume_type(tmp_path / "not" / "made") == volume_type(tmp_path) != ""


@pytest.mark.parametrize(("kind", "warned"), [("nfs4", True), ("tmpfs", True), ("ext4", False), ("", False)])
async def test_store_warns_at_its_start(kind: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with sim_store(volume=kind):
        warnings = [record for record in caplog.records if record.getMessage() == "a bad place for data"]
    assert len(warnings) == warned
