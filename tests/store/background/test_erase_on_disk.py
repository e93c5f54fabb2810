"""Deleted payloads are in no file: searched byte by byte, on a real disk with real RocksDB."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from tests.support.manual_clock import settle
from tests.support.store.served import passing_time, served_store
from tests.support.store.simulated import all_rows, append, kv_topic, log_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.model.deletion import EraseProgress
    from eddyline.store.shard.shard import Shard

HALF_DAY_S = 12 * 3600.0
PATIENCE_S = 200.0


class Payloads:
    """Incompressible cells, by their expected fate."""

    def __init__(self) -> None:
        self._random = Random(7)
        self.secret: dict[str, bytes] = {}
        self.kept: dict[str, bytes] = {}

    def make(self, name: str, *, secret: bool) -> bytes:
        (self.secret if secret else self.kept)[name] = made = self._random.randbytes(64)
        return made


def files_with(directory: Path, payload: bytes) -> set[str]:
    """Return the kinds of files below the data directory that hold these bytes."""
    kinds = set()
    for path in directory.rglob("*"):
        if path.is_file() and payload in path.read_bytes():
            kinds.add(path.relative_to(directory).parts[0] + ("-base" if path.name.startswith("base") else ""))
    return kinds


async def sealed(link: Shard, name: str) -> None:
    topic = link._table.get(name)
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)


async def erased(link: Shard, name: str) -> list[EraseProgress]:
    return [progress async for progress in link.erase_topic(name)]


async def rounds_until(link: Shard, condition: Callable[[], bool]) -> None:
    """Let the store work until `condition` holds. Bound by time: a round waits for no thread that erases, and on a busy
    machine thousands pass before it has its turn."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            assert await link._parts.maintenance.round()
            await settle(1)


async def fill(link: Shard, payloads: Payloads, name: str, *, kv: bool, secret: bool = True) -> None:
    """Append records that end in segment and base (if the topic has a fold), then records in the WAL alone."""
    for place in ("segment", "wal"):
        mine = payloads.make(f"{name} {place}", secret=secret)
        others = payloads.make(f"{name} {place} live", secret=name.startswith("gone"))
        if kv:
            keys = (f"secret-{place}".encode(), f"kept-{place}".encode())
            records = [Record(op=Op.PUT, key=key, data=data) for key, data in zip(keys, (mine, others), strict=True)]
        else:
            records = [Record(data=mine, tag="secret"), Record(data=others, tag="kept")]
        await append(link, name, Batch.from_rows(records))
        if place == "segment":
            await sealed(link, name)
            if kv:
                await link._parts.maintenance._planner._bases.make(link._table.get(name))


async def test_no_deleted_payload_is_on_disk_after_an_erasure(tmp_path: Path) -> None:
    payloads, data = Payloads(), tmp_path / "data"
    async with served_store(data) as store, passing_time(store.clock):
        link = store.link
        for name in ("log", "gone-log"):
            await log_topic(link, name)
        for name in ("kv", "gone-kv"):
            await kv_topic(link, name)
        for name in ("log", "kv", "gone-log", "gone-kv"):
            await fill(link, payloads, name, kv="kv" in name)
        for name, payload in payloads.secret.items():
            assert "wal" in files_with(data, payload), name
            assert ("topics" in files_with(data, payload)) == ("segment" in name), name
            if "kv" in name:
                assert "fold" in files_with(data, payload), name
        assert "topics-base" in files_with(data, payloads.secret["kv segment"])

        await link.delete_records("log", match=Match(MatchField.TAG, MatchKind.EQ, b"secret"))
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.PREFIX, b"secret"))
        for name in ("log", "kv"):
            steps = await erased(link, name)
            assert [step.erased for step in steps] == [False] * (len(steps) - 1) + [True]
            assert all(step.done_bytes <= step.total_bytes for step in steps)
            assert link._table.get(name).erase_due_ms == 0
            for place in ("segment", "wal"):
                assert files_with(data, payloads.secret[f"{name} {place}"]) == set(), (name, place)

        for name in ("gone-log", "gone-kv"):
            await link.delete_topic(name)
        assert len(link._parts.garbage.erasing) == 2
        store.clock.advance(HALF_DAY_S)
        await rounds_until(link, lambda: not link._parts.garbage.erasing)
        for name, payload in payloads.secret.items():
            assert files_with(data, payload) == set(), name
        for name, payload in payloads.kept.items():
            assert files_with(data, payload), name
        assert [row.data for row in await all_rows(link, "log")] == [
            payloads.kept["log segment live"],
            payloads.kept["log wal live"],
        ]
        page = await link.batch_get_entries("kv", [b"kept-segment", b"secret-segment", b"secret-wal"])
        assert [entry.data if entry else None for entry in page.entries] == [
            payloads.kept["kv segment live"],
            None,
            None,
        ]


async def test_trimmed_records_of_a_kv_topic_are_erased_too(tmp_path: Path) -> None:
    """The fold needs the rows until it has a base; no base holds a replaced value."""
    payloads, data = Payloads(), tmp_path / "data"
    async with served_store(data) as store, passing_time(store.clock):
        link = store.link
        await kv_topic(link)
        old, new = payloads.make("old", secret=True), payloads.make("new", secret=False)
        await append(link, "kv", Batch.from_rows([Record(op=Op.PUT, key=b"k", data=old)]))
        await sealed(link, "kv")
        await append(link, "kv", Batch.from_rows([Record(op=Op.PUT, key=b"k", data=new)]))
        await link.delete_records("kv", before_seq=3)
        await erased(link, "kv")
        assert files_with(data, old) == set()
        assert "topics-base" in files_with(data, new)
        assert await all_rows(link, "kv") == []
        (entry,) = (await link.batch_get_entries("kv", [b"k"])).entries
        assert entry is not None
        assert entry.data == new


async def test_an_erasure_survives_a_restart_half_way(tmp_path: Path) -> None:
    """The deadline survives a restart after the delete, also for deleted topics."""
    payloads, data = Payloads(), tmp_path / "data"
    async with served_store(data) as store:
        for name, kv in (("log", False), ("gone-kv", True)):
            await (kv_topic if kv else log_topic)(store.link, name)
            await fill(store.link, payloads, name, kv=kv)
        await store.link.delete_records("log", match=Match(MatchField.TAG, MatchKind.EQ, b"secret"))
        await store.link.delete_topic("gone-kv")
        due_ms = store.link._table.get("log").erase_due_ms
        erasing = dict(store.link._parts.garbage.erasing)
    async with served_store(data) as store, passing_time(store.clock):
        topic = store.link._table.get("log")
        assert (topic.erase_due_ms, store.link._parts.garbage.erasing) == (due_ms, erasing)
        store.clock.advance(HALF_DAY_S)
        await rounds_until(store.link, lambda: not store.link._parts.garbage.erasing and not topic.erase_due_ms)
        for name, payload in payloads.secret.items():
            assert files_with(data, payload) == set(), name
