"""Repeating calls: only what may be mended, with jitter, as long as the caller said."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.client.transport.call import Retry
from eddyline.core.errors import EddylineError, NotReady, Throttled, TopicNotFound
from eddyline.core.transport.status import to_status
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def raised(error: EddylineError) -> grpc.aio.AioRpcError:
    status = to_status(error)
    return grpc.aio.AioRpcError(
        status.code, grpc.aio.Metadata(), grpc.aio.Metadata(*status.trailing_metadata), status.message
    )


class Calls:
    """A call that fails as listed, then answers."""

    def __init__(self, *failures: EddylineError) -> None:
        self.failures = list(failures)
        self.times_s: list[float] = []

    def made_by(self, clock: ManualClock) -> Callable[[float], Awaitable[str]]:
        async def call(left_s: float) -> str:
            self.times_s.append(clock.monotonic_s())
            if self.failures:
                raise raised(self.failures.pop(0))
            return "answer"

        return call


async def outcome(calls: Calls, *, timeout_s: float = 30.0) -> str:
    clock = ManualClock()
    retry = Retry(clock, random_source=random.Random(1))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(retry.run(calls.made_by(clock), timeout_s=timeout_s))
        while not running.done():
            await clock.pass_time(0.05)
    return running.result()


async def test_unavailable_is_tried_again() -> None:
    calls = Calls(NotReady("starting"), NotReady("starting"))
    assert await outcome(calls) == "answer"
    assert len(calls.times_s) == 3


async def test_the_roles_delay_is_kept() -> None:
    calls = Calls(Throttled("busy", retryAfterMs=700))
    assert await outcome(calls) == "answer"
    assert calls.times_s[1] - calls.times_s[0] >= 0.7


async def test_final_error_is_raised_at_once() -> None:
    calls = Calls(TopicNotFound("no such topic"))
    with pytest.raises(ExceptionGroup) as caught:
        await outcome(calls)
    assert caught.group_contains(TopicNotFound)
    assert len(calls.times_s) == 1


async def test_last_error_is_raised_when_the_time_is_over() -> None:
    calls = Calls(*[NotReady("starting")] * 1000)
    with pytest.raises(ExceptionGroup) as caught:
        await outcome(calls, timeout_s=5.0)
    assert caught.group_contains(NotReady)
    assert calls.times_s[-1] <= 5.0
