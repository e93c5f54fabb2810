"""Stop the machine at every file-system call of every operation, recover, and hold the store against the history.

Each crash is judged as the death of the process and as a power failure with several outcomes of the disk; recovering twice
must change nothing, and the recovered store must take appends that continue the history.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.topic import Durability, Kind, TopicConfig
from eddyline.store.append import AppendRequest
from eddyline.store.fold.memory import SimFold
from tests.support.history import Asked, History, TopicHistory, judge, read_all
from tests.support.manual_clock import ManualClock
from tests.support.sim_fs import SimFs
from tests.support.store import puts, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.store.link import LocalLink
    from tests.support.sim_fs import CrashKind

    Scenario = Callable[[LocalLink, History], Awaitable[None]]

pytestmark = pytest.mark.crash

POWER_OUTCOMES = 6
FILLER = "x" * 9_000


async def make(link: LocalLink, history: History, name: str, kind: Kind, durability: Durability) -> TopicHistory:
    topic = history.topics[name] = TopicHistory(name, kind, durability)
    topic.epoch = (await link.create_topic(name, kind, TopicConfig(durability=durability))).epoch
    topic.made = True
    return topic


async def add(link: LocalLink, topic: TopicHistory, *appends: tuple[str, ...]) -> None:
    """Append in one group; each value is unique in the history."""
    acks = []
    for texts in appends:
        asked = Asked(tuple(text.encode() for text in texts))
        if topic.kind is Kind.KV:
            asked.keys = tuple(f"k{len(text) % 3}".encode() for text in texts)
        topic.appends.append(asked)
        batch = rows(*texts) if topic.kind is Kind.LOG else puts(*((f"k{len(t) % 3}", t) for t in texts))
        acks.append((asked, await link.stage(AppendRequest(topic=topic.name, batch=batch))))
    for asked, ack in acks:
        asked.first_seq = (await ack).first_seq


async def appends(link: LocalLink, history: History) -> None:
    log = await make(link, history, "log", Kind.LOG, Durability.DISK)
    safe = await make(link, history, "safe", Kind.LOG, Durability.FSYNC)
    kv = await make(link, history, "kv", Kind.KV, Durability.FSYNC)
    loose = await make(link, history, "loose", Kind.KV, Durability.DISK)
    for i in range(3):
        await add(link, log, (f"a{i}",), (f"b{i}", f"bb{i}"), (f"c{i}",))
        await add(link, safe, (f"d{i}",), (f"e{i}", f"ee{i}"))
        await add(link, kv, (f"f{i}", f"ff{i}"), (f"g{i}",))
        await add(link, loose, (f"h{i}", f"hh{i}"), (f"i{i}",))


async def mixed(link: LocalLink, history: History) -> None:
    """Both classes in one group: what needs the fdatasync must wait for it, what does not must not be lost by it."""
    log = await make(link, history, "log", Kind.LOG, Durability.DISK)
    safe = await make(link, history, "safe", Kind.LOG, Durability.FSYNC)
    for i in range(4):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(add(link, log, (f"a{i}",)))
            tasks.create_task(add(link, safe, (f"b{i}",)))
            tasks.create_task(add(link, log, (f"c{i}",)))


async def rotation(link: LocalLink, history: History) -> None:
    log = await make(link, history, "log", Kind.LOG, Durability.DISK)
    safe = await make(link, history, "safe", Kind.LOG, Durability.FSYNC)
    for i in range(12):
        await add(link, log, (f"{i}{FILLER}",))
        await add(link, safe, (f"s{i}",))
    await add(link, log, ("big" + FILLER * 9,))


async def deletion(link: LocalLink, history: History) -> None:
    for name, kind in (("a", Kind.LOG), ("b", Kind.KV)):
        topic = await make(link, history, name, kind, Durability.DISK)
        await add(link, topic, ("1", "22"))
        topic.gone = None
        await link.delete_topic(name)
        topic.gone = True
        kept = await make(link, history, name + "2", kind, Durability.FSYNC)
        await add(link, kept, ("3", "44"))


async def idle(link: LocalLink, history: History) -> None:
    """Reservations are given back and taken again."""
    clock = CLOCKS[-1]
    topic = await make(link, history, "log", Kind.LOG, Durability.DISK)
    await add(link, topic, ("1",))
    await clock.pass_time(15)
    await add(link, topic, ("2",))
    await clock.pass_time(2)
    await add(link, topic, ("3",), ("4",))
    engine, live = link._engine, link._table.get("log")
    engine.reserve(live, live.staged_seq)  # given back in the very moment an append comes
    await add(link, topic, (f"5{FILLER}",))


CLOCKS: list[ManualClock] = []
SCENARIOS = {scenario.__name__: scenario for scenario in (appends, mixed, rotation, deletion, idle)}


async def run(scenario: Scenario, fs: SimFs, fold: SimFold, history: History) -> bool:
    """Run until done or stopped; True = the machine stopped."""
    clock = ManualClock()
    CLOCKS[:] = [clock]
    try:
        async with sim_store(fs, fold, clock) as link:
            await scenario(link, history)
    except BaseException:
        if not fs.crashed:
            raise
        return True
    return fs.crashed


async def recover_and_judge(fs: SimFs, fold: SimFold, history: History, crash: CrashKind) -> None:
    """Recover, judge, go on, recover again: the same."""
    async with sim_store(fs, fold) as link:
        await judge(history, link, crash)
        before = {name: await read_all(link, name) for name in history.topics if await exists(link, name)}
    fold = fold.kill()
    async with sim_store(fs, fold) as link:
        for name, content in before.items():
            assert await read_all(link, name) == content, "recovering twice changed something"
            topic = history.topics[name]
            head = (await link.get_topic(name)).head_seq
            await add(link, topic, (f"after {name}",))
            assert topic.appends.pop().first_seq == head + 1


async def exists(link: LocalLink, name: str) -> bool:
    return any(topic.name == name for topic in await link.list_topics(name, "", 1))


def crash_points(scenario: Scenario) -> int:
    """Number of file-system calls of a whole run."""
    fs = SimFs()
    assert not asyncio.run(run(scenario, fs, SimFold(0), History()))  # noqa: TID251
    return fs.calls


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_point_recovers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, tried = SCENARIOS[name], 0
    total = crash_points(scenario)
    for crash_at in range(1, total + 1):
        for outcome in range(POWER_OUTCOMES + 1):
            tried += 1
            asyncio.run(one_crash(scenario, crash_at, outcome))  # noqa: TID251
    with capsys.disabled():
        print(f"\ncrash sweep {name}: {total} calls, {tried} crashes recovered")  # noqa: T201


async def one_crash(scenario: Scenario, crash_at: int, outcome: int) -> None:
    """Crash at a call; outcome 0 is kill, the others are power failures."""
    history, fs, fold = History(), SimFs(outcome, crash_at=crash_at), SimFold(crash_at * 100 + outcome)
    assert await run(scenario, fs, fold, history)
    crash: CrashKind = "power" if outcome else "kill"
    try:
        await recover_and_judge(
            fs.reboot(crash, seed=outcome), fold.power() if outcome else fold.kill(), history, crash
        )
    except BaseException as error:
        error.add_note(f"crash_at={crash_at} outcome={outcome}")
        raise
