"""Iterators of the client outlive a cancelled read, or say that they are spent; none ends without a word."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

import pytest

from eddyline.client.admin.kv import Kv
from eddyline.client.admin.sources import Sources
from eddyline.client.connect import Client
from eddyline.client.local_fold.local_fold import LocalFold
from eddyline.client.transport.items import Items
from eddyline.client.watch.events import CaughtUp, Records
from eddyline.core.errors import NotReady, StreamOrder, TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from tests.support.clients.clients import client_of
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

T = TypeVar("T")

PLACED = {
    "read": lambda client: client.read("kv"),
    "read of a few": lambda client: client.read("kv", limit=9),
    "stream": lambda client: client.stream("kv"),
    "history": lambda client: client.history("kv", b"k1", limit=9),
    "list_topics": lambda client: client.list_topics(),
}
ONCE = {
    "range": lambda client: client.range("kv"),
    "verify_fold": lambda client: client.verify_fold("kv"),
    "export_fold": lambda client: client.export_fold("kv"),
    "import_fold": lambda client: client.import_fold("kv"),
    "erase_topic": lambda client: client.erase_topic("kv"),
    "verify": lambda client: Sources(client.channel_to(client.topology.stores[0]), retry=client._retry).verify("kv"),
}


def record(number: int) -> Record:
    return Record(op=Op.PUT, key=b"k%d" % number, data=b"%d" % number)


async def cancel_a_read(items: AsyncIterator[object], *, turns: int) -> None:
    """Read, and cancel it while it waits."""

    async def read() -> object:
        return await anext(items)

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not reading.done()
        reading.cancel()
    assert reading.cancelled()


@pytest.mark.parametrize("read", PLACED.values(), ids=PLACED.keys())
async def test_a_read_that_was_cancelled_goes_on_where_it_was(
    read: Callable[[Client], Items[object]], tmp_path: Path
) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.append("kv", [record(number) for number in range(5)], create=Kind.KV)
        expected = [item async for item in read(client)]
        items = read(client)
        for turns in (1, 2, 3):
            await cancel_a_read(items, turns=turns)
        assert [item async for item in items] == expected
        assert [item async for item in items] == []


@pytest.mark.parametrize("limit", [0, 3], ids=["a stream", "pages"])
async def test_a_follower_whose_wait_timed_out_has_what_comes_later(limit: int, tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.append("kv", [record(1)], create=Kind.KV)
        seqs: list[int] = []
        async with aclosing(client.read("kv", limit=limit, follow=True)) as items:
            seqs.append((await anext(items)).seq)
            for number in (2, 3):
                with suppress(TimeoutError):
                    await asyncio.wait_for(anext(items), 0.01)
                await client.append("kv", [record(number)])
                async for item in items:
                    seqs.append(item.seq)
                    break
        assert seqs == [1, 2, 3]


async def test_a_stream_of_events_whose_wait_timed_out_neither_misses_nor_repeats(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.append("kv", [record(1)], create=Kind.KV)
        async with aclosing(client.stream("kv", follow=True)) as events:
            first = await anext(events)
            assert isinstance(first, Records)
            assert await anext(events) == CaughtUp()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.01)
            await client.append("kv", [record(2)])
            later = [event for event in [await anext(events), await anext(events)] if isinstance(event, Records)]
        assert [one.seq for event in later for one in event.records] == [2]


@pytest.mark.parametrize("read", ONCE.values(), ids=ONCE.keys())
async def test_an_iterator_without_a_place_says_that_it_is_spent(
    read: Callable[[Client], Items[object]], tmp_path: Path
) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.append("kv", [record(1)], create=Kind.KV)
        items = read(client)
        await cancel_a_read(items, turns=1)
        for _ in range(2):
            with pytest.raises(StreamOrder, match=r"cannot continue.*again"):
                await anext(items)


async def test_an_error_does_not_end_an_iterator_without_a_word(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        items = client.read("later", follow=True)
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                await anext(items)
        await client.append("later", [record(1)], create=Kind.KV)
        assert (await anext(items)).seq == 1
        await items.aclose()


async def test_a_failed_iterator_of_one_moment_is_spent() -> None:
    async def fail() -> AsyncGenerator[int, None]:
        yield 1
        raise NotReady("gone")

    items = Items.one_by_one(fail, once="range")
    assert await anext(items) == 1
    with pytest.raises(NotReady):
        await anext(items)
    with pytest.raises(StreamOrder):
        await anext(items)


async def test_an_iterator_of_batches_gives_their_items_and_waits_once_a_batch() -> None:
    begun: list[int] = []

    async def batches() -> AsyncGenerator[list[int], None]:
        for batch in range(len(begun), 4):
            await asyncio.sleep(0)
            begun.append(batch)
            yield [10 * batch + item for item in range(batch)]

    items = Items(batches)
    assert await anext(items) == 10
    assert begun == [0, 1]
    await cancel_a_read(items, turns=1)
    assert [await anext(items), *items.at_hand()] == [20, 21]
    assert begun == [0, 1, 2]
    assert [item async for item in items] == [30, 31, 32]
    assert [item async for item in items] == []


async def test_an_iterator_of_batches_that_is_closed_gives_no_more_of_its_batch() -> None:
    async def batches() -> AsyncGenerator[tuple[int, ...], None]:
        yield (1, 2, 3)

    items = Items(batches)
    assert await anext(items) == 1
    await items.aclose()
    assert [item async for item in items] == []


async def test_a_closed_iterator_ends(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.append("kv", [record(1)], create=Kind.KV)
        reads: list[Callable[[Client], Items[object]]] = [*PLACED.values(), *ONCE.values()]
        for read in reads:
            items = read(client)
            await items.aclose()
            assert [item async for item in items] == []


@pytest.mark.parametrize("kind", [Client, Sources, Kv, LocalFold])
def test_no_method_gives_a_bare_async_generator(kind: type) -> None:
    methods = [name for name, method in inspect.getmembers(kind) if inspect.isasyncgenfunction(method)]
    assert methods == []
