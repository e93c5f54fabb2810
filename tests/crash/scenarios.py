"""Scenarios of the crash sweeps: each operation of a store, alone and together with others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from tests.support.models.recorded_store import kv_rows, log_rows

if TYPE_CHECKING:
    from tests.support.models.recorded_store import Play

FILLER: Final = "x" * 9_000


async def appends(play: Play) -> None:
    """Append to topics of both classes and kinds, several appends a group."""
    log = await play.make("log")
    safe = await play.make("safe", durability=Durability.FSYNC)
    kv = await play.make("kv", Kind.KV, Durability.FSYNC)
    loose = await play.make("loose", Kind.KV)
    for i in range(3):
        await play.add(log, log_rows(f"a{i}"), log_rows(f"b{i}", f"c{i}"), log_rows(f"d{i}"))
        await play.add(safe, log_rows(f"a{i}"), log_rows(f"b{i}", f"c{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), ("l", f"b{i}")), kv_rows(("k",)))
        await play.add(loose, kv_rows(("k", f"a{i}"), ("l", f"b{i}")), kv_rows((f"k{i}", "c")))


async def mixed(play: Play) -> None:
    """Append in both classes in one group: FSYNC appends must wait for the fdatasync, DISK appends must not be lost by
    it."""
    log = await play.make("log")
    safe = await play.make("safe", durability=Durability.FSYNC)
    for i in range(4):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(play.add(log, log_rows(f"a{i}")))
            tasks.create_task(play.add(safe, log_rows(f"b{i}")))


async def rotation(play: Play) -> None:
    """Fill WAL files, and write a frame larger than a file."""
    log = await play.make("log")
    safe = await play.make("safe", durability=Durability.FSYNC)
    for i in range(12):
        await play.add(log, log_rows(f"a{i}{FILLER}"))
        await play.add(safe, log_rows(f"s{i}"))
    await play.add(log, log_rows("big" + FILLER * 9))


async def topics(play: Play) -> None:
    """Create, delete and recreate topics under the same names, each in the next WAL shard; with segments and without."""
    for round_ in range(3):
        for name, kind in (("a", Kind.LOG), ("b", Kind.KV)):
            durability = Durability.FSYNC if round_ == 1 else Durability.DISK
            topic = await play.make(name, kind, durability)
            rows = kv_rows if kind is Kind.KV else lambda *pairs: log_rows(*(value for _, value in pairs))
            await play.add(topic, rows(("k", f"v{round_}"), ("l", f"w{round_}")))
            if round_ == 1:
                await play.add(topic, rows(("k", "x"), ("l", "y")))
                await play.upkeep()
            await play.drop(topic)
            if round_ == 1:
                await play.upkeep()
    await play.make("a", Kind.KV)
    await play.make("b")


async def idle(play: Play) -> None:
    """Give reservations back and take them again."""
    topic = await play.make("log")
    await play.add(topic, log_rows("1"))
    await play.clock.pass_time(15)
    await play.add(topic, log_rows("2"))
    await play.clock.pass_time(2)
    await play.add(topic, log_rows("3"), log_rows("4"))
    engine, live = play.link._engine, play.link._table.get("log")
    engine.reserve(live, live.staged_seq)  # given back at the moment of an append
    await play.add(topic, log_rows(f"5{FILLER}"))


async def sealing(play: Play) -> None:
    """Seal segments by record count, of both kinds, with concurrent reads."""
    log = await play.make("log")
    kv = await play.make("kv", Kind.KV, Durability.FSYNC)
    for i in range(3):
        await play.add(log, log_rows(f"a{i}", f"b{i}"), log_rows(f"c{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), ("l", f"b{i}")), kv_rows(("k",), (f"m{i}", "c")))
        await play.upkeep()
        await play.check()


async def checkpoints(play: Play) -> None:
    """Take a checkpoint with all its steps: carry, seal, cut, catalog, trim; with concurrent appends."""
    log = await play.make("log")
    kv = await play.make("kv", Kind.KV)
    safe = await play.make("safe", durability=Durability.FSYNC)
    await play.add(kv, kv_rows(("k", "a"), ("l", "b")))
    for i in range(3):
        await play.add(log, log_rows(f"a{i}"), log_rows(f"b{i}"))
        await play.add(safe, log_rows(f"c{i}"))
        if i == 1:
            await play.add(kv, kv_rows(("k",)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(play.checkpoint())
            tasks.create_task(play.add(safe, log_rows(f"d{i}")))
        await play.upkeep()
        await play.check()


async def caps(play: Play) -> None:
    """Evict by caps of records and bytes, and refuse appends at a refusing cap; over frames and segments."""
    few = await play.make("few", config=TopicConfig(cap_records=3))
    small = await play.make("small", durability=Durability.FSYNC, config=TopicConfig(cap_bytes=150))
    full = await play.make("full", config=TopicConfig(cap_records=4, discard=Discard.REJECT))
    kv = await play.make("kv", Kind.KV, config=TopicConfig(cap_records=2))
    for i in range(3):
        await play.add(few, log_rows(f"a{i}", f"b{i}"), log_rows(f"c{i}"))
        await play.add(small, log_rows(f"a{i}", f"b{i}", f"c{i}"))
        await play.add(full, log_rows(f"a{i}", f"b{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")))
        if i == 1:
            await play.upkeep()
            await play.checkpoint()
        await play.check()


async def ages(play: Play) -> None:
    """Expire records by TTL, over frames and segments, to the last record."""
    log = await play.make("log", config=TopicConfig(ttl_ms=3_000))
    kv = await play.make("kv", Kind.KV, Durability.FSYNC, TopicConfig(ttl_ms=5_000))
    for i in range(3):
        await play.add(log, log_rows(f"a{i}", f"b{i}"), log_rows(f"c{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")))
        await play.clock.pass_time(2)
        if i == 1:
            await play.upkeep()
        await play.check()
    await play.clock.pass_time(4)
    await play.check()


async def updates(play: Play) -> None:
    """Change settings; records that expire by the new ones are evicted."""
    log = await play.make("log")
    await play.add(log, log_rows("a", "b", "c", "d", "e"))
    await play.update(log, ConfigChange(cap_records=3))
    await play.upkeep()
    await play.update(log, ConfigChange(durability=Durability.FSYNC, cap_records=0))
    await play.add(log, log_rows("f", "g"))
    await play.checkpoint()
    await play.update(log, ConfigChange(discard=Discard.REJECT, cap_records=5))
    await play.add(log, log_rows("h"))
    await play.update(log, ConfigChange(cap_bytes=70, discard=Discard.OLD))
    await play.check()


async def ephemeral(play: Play) -> None:
    """Append to EPHEMERAL topics and others; every start moves a floor, and no seq is assigned twice."""
    memory = await play.make("memory", durability=Durability.EPHEMERAL)
    capped = await play.make("capped", durability=Durability.EPHEMERAL, config=TopicConfig(cap_records=3))
    log = await play.make("log")
    for i in range(3):
        await play.add(memory, log_rows(f"a{i}"), log_rows(f"b{i}", f"c{i}"))
        await play.add(capped, log_rows(f"a{i}", f"b{i}"))
        await play.add(log, log_rows(f"a{i}"))
        if i == 1:
            await play.checkpoint()
            await play.update(memory, ConfigChange(ttl_ms=60_000))
        await play.check()


async def full_store(play: Play) -> None:
    """Prologue: topics of all kinds, segments, unsegmented frames, floors, deletions, checkpoints."""
    log = await play.make("log", config=TopicConfig(cap_records=9))
    kv = await play.make("kv", Kind.KV)
    safe = await play.make("safe", durability=Durability.FSYNC, config=TopicConfig(ttl_ms=60_000))
    await play.make("memory", durability=Durability.EPHEMERAL)
    gone = await play.make("gone")
    for i in range(3):
        await play.add(log, log_rows(f"a{i}", f"b{i}"), log_rows(f"c{i}"), log_rows(f"d{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")), kv_rows(("m",)))
        await play.add(safe, log_rows(f"a{i}"))
        await play.add(gone, log_rows(f"a{i}", f"b{i}", f"c{i}"))
        await play.upkeep()
        if i == 1:
            await play.checkpoint()
    await play.drop(gone)
    await play.add(log, log_rows("e"))
    await play.add(kv, kv_rows(("k",)))


async def restart(play: Play) -> None:
    """Start a store that has everything, and stop it cleanly."""


async def deletes(play: Play) -> None:
    """Delete records by seq, key and tag, in frames and segments, of both kinds; rewrite partly dead segments."""
    log = await play.make("log")
    kv = await play.make("kv", Kind.KV, Durability.FSYNC)
    for i in range(2):
        await play.add(log, log_rows(f"ax{i}", f"bx{i}", f"ay{i}"), log_rows(f"cy{i}", f"ax{i}2"))
        await play.add(kv, kv_rows(("ka", f"a{i}"), ("kb", f"b{i}"), ("l", f"c{i}")), kv_rows(("ka", f"d{i}")))
        await play.delete(log, match=Match(MatchField.TAG, MatchKind.EQ, b"a"))
        await play.delete(kv, match=Match(MatchField.KEY, MatchKind.PREFIX, b"k"))
        await play.upkeep()
        await play.delete(log, match=Match(MatchField.KEY, MatchKind.EQ, b"y"), before_seq=5)
        await play.delete(kv, before_seq=4)
        await play.check()
    await play.checkpoint()
    await play.delete(log, before_seq=9)
    await play.upkeep()
    await play.check()


async def merging(play: Play) -> None:
    """Merge small segments, rewrite partly dead ones, remove dead ones; with concurrent appends and reads."""
    log = await play.make("log", config=TopicConfig(cap_records=14))
    kv = await play.make("kv", Kind.KV)
    for i in range(5):
        await play.add(log, log_rows(f"a{i}"), log_rows(f"b{i}", f"c{i}"))
        await play.add(kv, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")))
        await play.clock.pass_time(0.5)
    await play.upkeep()
    await play.check()
    await play.delete(log, match=Match(MatchField.KEY, MatchKind.PREFIX, b"1"))
    await play.delete(log, match=Match(MatchField.TAG, MatchKind.EQ, b"c"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(play.upkeep())
        tasks.create_task(play.add(kv, kv_rows(("k", "last"))))
    for i in range(3):
        await play.add(log, log_rows(f"d{i}", f"e{i}", f"f{i}", f"g{i}"))
        await play.upkeep()
    await play.check()


async def bases(play: Play) -> None:
    """Make two bases of a fold, and trim its log up to them."""
    kv = await play.make("kv", Kind.KV, config=TopicConfig(cap_records=3))
    safe = await play.make("safe", Kind.KV, Durability.FSYNC, TopicConfig(ttl_ms=2_000))
    play.link._parts.maintenance._planner._bases._freed_bytes_min = 1
    for i in range(3):
        await play.add(kv, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")), kv_rows(("m", f"c{i}"), (f"l{i - 1}",)))
        await play.add(safe, kv_rows(("k", f"a{i}"), (f"l{i}", f"b{i}")), kv_rows(("k", f"c{i}"), ("n", f"d{i}")))
        await play.upkeep()
        await play.clock.pass_time(1)
        await play.upkeep()
        await play.check()


async def erasing(play: Play) -> None:
    """Erase deleted records from every file."""
    log = await play.make("log")
    kv = await play.make("kv", Kind.KV)
    await play.add(log, log_rows("a-secret", "b-kept"), log_rows("c-secret"))
    await play.add(kv, kv_rows(("k", "d-secret"), ("l", "e-kept")))
    await play.upkeep()
    await play.checkpoint()
    await play.add(log, log_rows("a-later-secret", "b-later"), log_rows("d", "e", "f"))
    await play.add(kv, kv_rows(("k", "later-secret"), ("m", "f-kept")), kv_rows(("n", "g"), ("o", "h"), ("p", "i")))
    await play.delete(log, match=Match(MatchField.TAG, MatchKind.EQ, b"a"))
    await play.erase(log, b"a-secret", b"a-later-secret")
    await play.delete(kv, match=Match(MatchField.KEY, MatchKind.EQ, b"k"))
    await play.delete(log, before_seq=4)
    await play.erase(kv, b"d-secret", b"later-secret")
    await play.erase(log, b"c-secret")
    await play.check()
