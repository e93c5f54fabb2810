"""The drill of a disk that fills: a store whose floor is just below the free space, and a file that takes that space.

Appends must be refused while reads and deletes go on, and must be taken again by themselves when the file is gone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.support import checks
from eddyline.cli.drill.support.lone_store import lone_store
from eddyline.cli.drill.support.scene import Verdict
from eddyline.cli.drill.support.writers import numbered_record
from eddyline.core.errors import EddylineError
from eddyline.core.model.topic import Kind
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.lone_store import LoneStore
    from eddyline.core.runtime.clock import Clock

ROOM_BYTES: Final = 2 << 30
"""Between the floor and the free space when the drill begins: more than what others do to the disk meanwhile."""
ROOM_PART_MAX: Final = 4
"""And at most this part of what is free."""
BELOW_BYTES: Final = 256 << 20
PATIENCE_S: Final = 20.0
TOPIC: Final = "drill-full"
OTHER_TOPIC: Final = "drill-deleted"
RECORDS: Final = 20


async def full_disk_drill(folder: Path, context: Context) -> Verdict:
    """Fill the disk down to the floor, look, and free it."""
    verdict = Verdict("disk")
    clock, started_s = context.clock, context.clock.monotonic_s()
    free_bytes = _free_bytes(folder.parent)
    floor_bytes = free_bytes - min(ROOM_BYTES, free_bytes // ROOM_PART_MAX)
    ballast = folder / "ballast"
    async with lone_store(folder / "disk", context, settings={"DISK_FLOOR_BYTES": str(floor_bytes)}) as store:
        for topic in (TOPIC, OTHER_TOPIC):
            await store.client.create_topic(topic, Kind.LOG)
        written = await _append(store, 0)
        try:
            _fill(ballast, _free_bytes(folder.parent) - floor_bytes + BELOW_BYTES)
            verdict.findings += await _refuses(store, clock)
            read = [item async for item in store.client.read(TOPIC)]
            verdict.findings += checks.every_append_once(read, {"full": written})
            await store.client.delete_topic(OTHER_TOPIC)
            deleted = await store.client.delete_records(TOPIC, before_seq=RECORDS // 2 + 1)
            if deleted.deleted_count != RECORDS // 2:
                verdict.findings.append(f"disk: a delete took {deleted.deleted_count} records, not {RECORDS // 2}")
        finally:
            ballast.unlink(missing_ok=True)
        verdict.findings += await _takes_again(store, clock, written)
        verdict.records += written
    verdict.seconds = clock.monotonic_s() - started_s
    return verdict


async def _append(store: LoneStore, first: int) -> int:
    await store.client.append(TOPIC, [numbered_record("full", first + number) for number in range(RECORDS)])
    return first + RECORDS


async def _refuses(store: LoneStore, clock: Clock) -> list[str]:
    """Wait until the store says that it takes nothing; an append must say so too."""
    until_s = clock.monotonic_s() + PATIENCE_S
    while (status := await store.status()) is None or status.reason != "DISK_FLOOR":
        if clock.monotonic_s() > until_s:
            return [f"disk: appends are taken below the floor ({status.reason if status else 'no answer'})"]
        await sleep(clock, 0.05)
    try:
        await store.client.append(TOPIC, [numbered_record("refused", 0)])
    except EddylineError as error:
        return [] if error.reason == "DISK_FLOOR" else [f"disk: an append was refused by {error.reason}"]
    return ["disk: an append was taken below the floor"]


async def _takes_again(store: LoneStore, clock: Clock, written: int) -> list[str]:
    until_s = clock.monotonic_s() + PATIENCE_S
    while True:
        try:
            await _append(store, written)
            break
        except EddylineError as error:
            if error.reason != "DISK_FLOOR" or clock.monotonic_s() > until_s:
                return [f"disk: appends are not taken again: {error.reason}"]
        await sleep(clock, 0.1)
    left = [item async for item in store.client.read(TOPIC, after=RECORDS // 2)]
    expected = [f"full:{number}".encode() for number in range(RECORDS // 2, written + RECORDS)]
    found = [getattr(item, "data", None) for item in left]
    return [] if found == expected else [f"disk: {len(found)} records are left, not {len(expected)}"]


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def _fill(path: Path, size: int) -> None:
    """Take space, at once."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
