"""Several appends in one message, and a machine that stops at any call to its disk: each is whole or absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.codec.row_split import SplitRequest
from eddyline.core.errors import CommitUnknown, NotReady, ReadOnly
from eddyline.core.model.topic import Durability
from eddyline.core.records.record import Gap
from eddyline.store.log.append import AppendRequest
from eddyline.store.rpc.append_stream_call import AppendStreamCall
from eddyline.store.rpc.shard_handle import ShardHandle
from eddyline.v1.log_pb2 import AppendBatch, AppendStart, AppendStreamRequest, AppendStreamResponse
from tests.store.rpc.requests import append_of, appends_step, keyless
from tests.support.manual_clock import ManualClock
from tests.support.models.history import read_items
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.sim.worker import SimulatedStop
from tests.support.store.simulated import log_topic, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

STOPPED: Final = (CommitUnknown, ReadOnly, NotReady)
SIZES: Final = (1, 4, 2, 7, 3, 5)
"""Appends of each message."""
POINTS_MAX: Final = 500


def values(number: int) -> list[str]:
    """The records of the append of this number: one to three."""
    return [f"{number}-{at}" for at in range(number % 3 + 1)]


def message_steps() -> list[AppendStreamRequest]:
    """The steps of one stream; append `n` has the key `n`."""
    steps = [AppendStreamRequest(start=AppendStart(topic="log", independent=True))]
    number = 0
    for size in SIZES:
        appends: list[AppendBatch] = []
        for _ in range(size):
            appends.append(append_of(*map(keyless, values(number)), key=str(number)))
            number += 1
        steps.append(appends_step(*appends))
    return steps


@dataclass
class Caller:
    """The caller's side of a stream: what it sends, and the answers that reached it."""

    answers: list[AppendStreamResponse] = field(default_factory=list)

    async def send_initial_metadata(self, initial_metadata: tuple[tuple[str, str], ...]) -> None:
        pass

    async def write(self, message: AppendStreamResponse) -> None:
        self.answers.append(message)

    async def steps(self) -> AsyncIterator[SplitRequest[AppendStreamRequest]]:
        for step in message_steps():
            yield SplitRequest(step)

    def acknowledged(self) -> dict[int, int]:
        """First seq by the number of the append."""
        told = [outcome for answer in self.answers for outcome in answer.outcomes]
        return {number: outcome.first_seq for number, outcome in enumerate(told) if not outcome.HasField("error")}


async def append_all(fs: SimFs, fold: SimFold, clock: ManualClock, *, writes_here: bool) -> Caller:
    """Send the stream to a store on this disk, until its end or that of the machine."""
    caller, handle = Caller(), ShardHandle()
    try:
        async with sim_store(fs, fold, clock, writes_here=writes_here) as link:
            handle.open(link)
            await AppendStreamCall(handle, steps=caller.steps(), context=caller).run()
    except* SimulatedStop:
        assert fs.crashed
    except* STOPPED:
        assert fs.crashed
    return caller


async def stored(link: Shard) -> list[str]:
    items = await read_items(link, "log")
    return [item.data.decode() for item in items if not isinstance(item, Gap) and item.data is not None]


def whole_appends(data: Sequence[str]) -> list[int]:
    """Numbers of the appends of a log, each of which it has whole."""
    numbers = list(dict.fromkeys(int(value.partition("-")[0]) for value in data))
    assert list(data) == [value for number in numbers for value in values(number)]
    return numbers


@pytest.mark.parametrize("writes_here", [False, True], ids=["by thread", "here"])
@pytest.mark.parametrize("crash", ["kill", "power"])
@pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
async def test_each_append_of_a_message_is_whole_or_absent_and_an_acknowledged_one_stays(
    durability: Durability, crash: CrashKind, writes_here: bool
) -> None:
    lasts = crash == "kill" or durability is Durability.FSYNC
    empty, clock = SimFs(), ManualClock()
    async with sim_store(empty, SimFold(0), clock) as link:
        await log_topic(link, "log", durability)
    crashes = 0
    for point in range(1, POINTS_MAX):
        fs, fold = empty.reboot("kill", seed=point, crash_at=point), SimFold(0)
        caller = await append_all(fs, fold, clock, writes_here=writes_here)
        if not fs.crashed:
            break
        crashes += 1
        again = fs.reboot(crash, seed=point)
        async with sim_store(again, SimFold(0), clock) as link:
            kept = whole_appends(await stored(link))
            acknowledged = caller.acknowledged()
            if lasts:
                assert set(acknowledged) <= set(kept)
            for number in range(sum(SIZES)):
                request = AppendRequest("log", rows(*values(number)), idempotency_key=str(number))
                result = await (await link.stage(request))
                assert result.deduplicated == (number in kept)
                if lasts and number in acknowledged:
                    assert result.first_seq == acknowledged[number]
            assert sorted(whole_appends(await stored(link))) == list(range(sum(SIZES)))
    else:
        raise AssertionError("the stream never came to its end")
    assert crashes > 10
    assert len(caller.acknowledged()) == sum(SIZES)
