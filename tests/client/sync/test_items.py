"""Blocking iterators: bounded read-ahead, order, errors, clean-up."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client import Kind, Record, errors
from eddyline.client.sync import Items, connect
from eddyline.client.sync.items import BYTES_MAX, ITEMS_MAX
from eddyline.client.transport.items import Items as AioItems
from tests.support.clients.served_thread import store_in_thread
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from eddyline.client.sync import Client

COUNT = 3 * ITEMS_MAX


class Source:
    """Numbers from 0, or records of a size; counts how many were made."""

    def __init__(self, *, nbytes: int = 0, fail_at: int = -1) -> None:
        self.made = 0
        self.ended = threading.Event()
        self.nbytes = nbytes
        self.fail_at = fail_at

    async def records(self) -> AsyncGenerator[Record, None]:
        try:
            while self.made < COUNT:
                await asyncio.sleep(0)
                if self.made == self.fail_at:
                    self.fail_at = -1
                    raise errors.NotReady("gone for a moment")
                self.made += 1
                yield Record(seq=self.made, data=bytes(self.nbytes))
        finally:
            self.ended.set()


@contextmanager
def reading(data: Path, source: Source, *, once: str = "") -> Iterator[Items[Record]]:
    with store_in_thread(data) as address, connect(address) as client:
        yield Items(client._loop, AioItems.one_by_one(source.records, once=once))


def settle(client_or_items: Client | Items[Record]) -> None:
    """Let the loop run for a thousand turns."""

    async def turns() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0)

    client_or_items._loop.run(turns)


def test_all_items_come_in_order(tmp_path: Path) -> None:
    with reading(tmp_path, Source()) as items:
        assert [record.seq for record in items] == [*range(1, COUNT + 1)]
        assert [*items] == []


@pytest.mark.parametrize(("nbytes", "ahead_max"), [(0, ITEMS_MAX), (BYTES_MAX // 4, 4), (2 * BYTES_MAX, 1)])
def test_a_slow_reader_holds_the_source_back(tmp_path: Path, nbytes: int, ahead_max: int) -> None:
    source = Source(nbytes=nbytes)
    with reading(tmp_path, source) as items:
        for taken in range(1, 4):
            next(items)
            settle(items)
            assert source.made - taken <= ahead_max
            assert source.made >= ahead_max


def test_an_error_comes_after_the_items_before_it_and_the_next_read_resumes(tmp_path: Path) -> None:
    source = Source(fail_at=3)
    with reading(tmp_path, source) as items:
        assert [next(items).seq for _ in range(3)] == [1, 2, 3]
        with pytest.raises(errors.NotReady):
            next(items)
        assert next(items).seq == 4


def test_an_iterator_of_one_moment_is_spent_by_an_error(tmp_path: Path) -> None:
    with reading(tmp_path, Source(fail_at=1), once="range") as items:
        next(items)
        with pytest.raises(errors.NotReady):
            next(items)
        with pytest.raises(errors.StreamOrder):
            next(items)


@pytest.mark.parametrize("how", ["close", "with", "drop", "client"])
def test_a_half_read_iterator_ends_its_source(tmp_path: Path, how: str) -> None:
    source = Source()
    with reading(tmp_path, source) as items:
        next(items)
        if how == "close":
            items.close()
            items.close()
            assert [*items] == []
        elif how == "with":
            with items:
                next(items)
        elif how == "client":
            items._loop.close()
        else:
            del items
            gc.collect()
        assert source.ended.wait(HANG_S)


def test_a_follower_waits_for_what_comes(tmp_path: Path) -> None:
    with store_in_thread(tmp_path) as address, connect(address) as client:
        client.append("log", [Record(data=b"1")], create=Kind.LOG)
        with client.read("log", follow=True) as items:
            assert next(items).seq == 1
            client.append("log", [Record(data=b"2")])
            assert next(items).seq == 2
