"""Pushed requests behind checks and behind a first request that was taken already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import PermissionDenied
from eddyline.core.transport.pushed_requests import CheckedRequests, RejoinedRequests, as_pushed

if TYPE_CHECKING:
    from collections.abc import Callable


class Scripted:
    """Requests `0`, `1`, …, given while the function that takes them says to go on."""

    def __init__(self, count: int) -> None:
        self._messages = [b"%d" % number for number in range(count)]
        self._take: Callable[[bytes], bool] | None = None

    def __aiter__(self) -> Scripted:
        return self

    async def __anext__(self) -> int:
        if not self._messages:
            raise StopAsyncIteration
        return int(self._messages.pop(0))

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        self._take, self._end = on_message, on_end
        self.resume()

    def decode(self, message: bytes) -> int:
        return int(message)

    def resume(self) -> None:
        assert self._take is not None
        while self._messages:
            if not self._take(self._messages.pop(0)):
                return
        self._end()


def odd(number: int) -> None:
    if number % 2:
        raise PermissionDenied("odd")


async def test_each_request_is_checked_received_or_iterated() -> None:
    requests = CheckedRequests(Scripted(2), odd)
    assert await anext(requests) == 0
    with pytest.raises(PermissionDenied):
        await anext(requests)
    messages: list[bytes] = []

    def take(message: bytes) -> bool:
        messages.append(message)
        return True

    CheckedRequests(Scripted(2), odd).receive(take, messages.reverse)
    assert messages == [b"1", b"0"]
    assert requests.decode(b"4") == 4
    with pytest.raises(PermissionDenied):
        requests.decode(b"5")


@pytest.mark.parametrize("pauses_at", [None, 0, 1, 2])
async def test_requests_behind_the_first_one_keep_their_order(pauses_at: int | None) -> None:
    scripted, seen = Scripted(3), list[int | str]()
    first = await anext(scripted)
    requests = RejoinedRequests(first, b"0", scripted)

    def take(message: bytes) -> bool:
        seen.append(requests.decode(message))
        return seen[-1] != pauses_at

    requests.receive(take, lambda: seen.append("end"))
    if pauses_at is not None:
        assert seen == list(range(pauses_at + 1))
        requests.resume()
    assert seen == [0, 1, 2, "end"]


async def test_requests_behind_the_first_one_are_iterated() -> None:
    scripted = Scripted(3)
    assert [one async for one in RejoinedRequests(await anext(scripted), b"0", scripted)] == [0, 1, 2]


def test_an_iterator_is_not_pushed() -> None:
    assert as_pushed(iter(())) is None
    assert as_pushed(Scripted(0)) is not None
