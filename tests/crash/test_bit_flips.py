"""One flipped bit in every byte of a store's files: the right answer, a gap for a loss, or a domain error.

A start reads a WAL file with every type of frame, the identity, and the catalog's values; an open store reads the segments.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt, EddylineError
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import ConfigChange, Durability, Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason
from eddyline.store.shard.lifecycle import IdentityMismatch
from eddyline.store.storage.layout import Layout, wal_file
from tests.crash.sweep import MachineHistory, Tuning
from tests.support.manual_clock import settle
from tests.support.models.history import Seen, look
from tests.support.models.recorded_store import Play, kv_rows, log_rows
from tests.support.store.simulated import CATALOG, settings, sim_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.store.shard.shard import Shard

pytestmark = pytest.mark.crash

LAYOUT = Layout(settings().directory)
TAIL = "tail"
"""Topic of the last frame: a damaged frame that no completed fdatasync covers is cut, and was not acknowledged as
durable."""


async def furnished() -> MachineHistory:
    """Make a killed store whose newest WAL file has every type of frame, with segments and a catalog."""
    life = MachineHistory(Tuning())
    async with life.store() as link:
        await settle()
        play = Play(link, life.history, life.clock)
        log = await play.make("log", config=TopicConfig(cap_records=5))
        kv = await play.make("kv", Kind.KV)
        gone = await play.make("gone")
        tail = await play.make(TAIL)
        certs = await play.make("certs", Kind.KV, Durability.FSYNC)
        await play.checkpoint()
        await play.add(log, log_rows("ax1", "bx2"), log_rows("ay3", "cy4", "az5", "bz6"))
        await play.add(kv, kv_rows(("k", "a"), ("l", "b"), ("m", "c"), ("k", "d")))
        await play.upkeep()
        await play.add(kv, kv_rows(("n", "e"), ("k",)))
        await play.delete(kv, match=Match(MatchField.KEY, MatchKind.EQ, b"m"))
        await play.update(log, ConfigChange(ttl_ms=60_000))
        await link.put_source(SourceDefinition("source", certs.name, "bucket"))
        await link.acquire_lease("source", holder="h", lease_ms=1_000)
        await play.drop(gone)
        await play.clock.pass_time(15)
        await play.add(tail, log_rows("1"))
        life.fs.crash_at = life.fs.calls + 10_000
        stopped = MachineHistory(
            life.tuning, life.fs.reboot("kill"), deepcopy(life.fold).kill(), life.clock, life.history
        )
    return stopped.copy(0)


async def seen(link: Shard) -> dict[str, Seen]:
    names = [info.name for info in await link.list_topics("", "", 100)]
    return {name: await look(link, name) for name in names if name != TAIL}


async def verdict(life: MachineHistory, right: dict[str, Seen]) -> str:
    """Start the store and read everything. Returns the outcome."""
    try:
        async with life.store() as link:
            topics = await seen(link)
            return "right" if topics == right else "told" if _records(topics) == _records(right) else "WRONG"
    except (DataCorrupt, IdentityMismatch) as error:
        assert str(error), "an error that says nothing"
        return "named"
    except EddylineError as error:
        return "named" if error.code.name == "DATA_LOSS" else f"{type(error).__name__}: {error}"


def _records(topics: dict[str, Seen]) -> dict[str, tuple[list[object], object]]:
    """Drop the gaps of lost unsynced bytes, at the end of each topic that may have lost some."""
    unsynced = GapReason.UNSYNCED
    return {
        name: ([item for item in one.reads[0] if not (isinstance(item, Gap) and item.reason is unsynced)], one.entries)
        for name, one in topics.items()
    }


async def flips_of_starts(life: MachineHistory, path: Path, count: int) -> dict[str, list[int]]:
    """Flip one bit in each of the first `count` bytes of a file. Returns the bytes by outcome."""
    async with life.copy(1).store() as link:
        right = await seen(link)
    verdicts: dict[str, list[int]] = {}
    for at in range(count):
        damaged = life.copy(1)
        damaged.fs.content(path)[at] ^= 1 << at * 5 % 8
        verdicts.setdefault(await verdict(damaged, right), []).append(at)
    return verdicts


def report(verdicts: dict[str, list[int]], name: str, record_property: Callable[[str, object], None]) -> None:
    for word in ("right", "told", "named"):
        record_property(f"bit flips of {name}: {word}", len(verdicts.pop(word, [])))
    assert not verdicts, f"{name}: {verdicts}"


def test_bit_flipped_in_a_wal_file(record_property: Callable[[str, object], None]) -> None:
    life = asyncio.run(furnished())  # noqa: TID251
    directory = LAYOUT.wal_shard(0)
    newest = max(name for name in life.fs.listdir(directory) if name.endswith(".wal"))
    path = wal_file(directory, int(newest[:16], 16))
    used = len(bytes(life.fs.content(path)).rstrip(b"\0")) + 16
    report(asyncio.run(flips_of_starts(life, path, used)), "a WAL file", record_property)  # noqa: TID251


def test_bit_flipped_in_the_identity(record_property: Callable[[str, object], None]) -> None:
    life = asyncio.run(furnished())  # noqa: TID251
    count = len(life.fs.content(LAYOUT.identity))
    report(asyncio.run(flips_of_starts(life, LAYOUT.identity, count)), "an identity", record_property)  # noqa: TID251


def test_bit_flipped_in_the_catalog(record_property: Callable[[str, object], None]) -> None:
    async def flips() -> dict[str, list[int]]:
        life = await furnished()
        async with life.copy(1).store() as link:
            right = await seen(link)
        verdicts: dict[str, list[int]] = {}
        for key, value in sorted(life.fs.engines[CATALOG].items()):
            for at in range(len(value)):
                damaged = life.copy(1)
                changed = bytearray(value)
                changed[at] ^= 1 << at * 5 % 8
                damaged.fs.engines[CATALOG][key] = bytes(changed)
                verdicts.setdefault(await verdict(damaged, right), []).append(at)
        return verdicts

    report(asyncio.run(flips()), "a catalog", record_property)  # noqa: TID251


def test_bit_flipped_in_a_segment(record_property: Callable[[str, object], None]) -> None:
    async def flips() -> dict[str, list[int]]:
        life = (await furnished()).copy(1)
        verdicts: dict[str, list[int]] = {}
        async with sim_store(life.fs, life.fold, life.clock, cache_bytes=0) as link:
            right = await seen(link)
            for segment in [one for topic in link._table.all() for one in topic.segments]:
                content = life.fs.content(segment.path)
                for at in range(len(content)):
                    segment.footer = None
                    content[at] ^= 1 << at * 5 % 8
                    try:
                        word = "right" if await seen(link) == right else "WRONG"
                    except DataCorrupt as error:
                        word = "named" if segment.path.name in str(error) else f"unnamed {error}"
                    content[at] ^= 1 << at * 5 % 8
                    verdicts.setdefault(word, []).append(at)
        return verdicts

    report(asyncio.run(flips()), "a segment", record_property)  # noqa: TID251
