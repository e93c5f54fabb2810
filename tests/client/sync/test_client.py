"""The blocking client against a whole store: results, errors, threads, closing."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, assert_type

import pytest

from eddyline.client import Kind, Op, Record, errors
from eddyline.client.sync import connect
from tests.support.clients.served_thread import store_in_thread
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eddyline.client.sync import Client

THREADS = 8


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with store_in_thread(tmp_path) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with connect(address) as client:
        yield client


def test_keys_are_put_read_and_deleted(client: Client) -> None:
    first = client.put("kv", b"a", b"1", create=True)
    client.append("kv", [Record(key=b"b", data=b"2"), Record(key=b"c", data=b"3")])
    live = client.get("kv", b"a")
    assert live is not None and (live.data, live.seq) == (b"1", first.first_seq)
    assert client.get_many("kv", [b"b", b"none"]).entries[1] is None
    columns = client.get_columns("kv", [b"b", b"none"])
    assert columns.batch is not None and columns.batch.keys() == [b"b"]
    assert [record.key for record in client.range("kv")] == [b"a", b"b", b"c"]
    client.delete("kv", b"a")
    assert client.get("kv", b"a") is None
    assert [record.op for record in client.history("kv", b"a") if isinstance(record, Record)] == [Op.PUT, Op.DELETE]


def test_topics_are_created_listed_and_deleted(client: Client) -> None:
    made = client.create_topic("orders", Kind.LOG)
    assert client.get_topic("orders") == made
    assert [topic.name for topic in client.list_topics()] == ["orders"]
    assert client.delete_topic("orders") == made.epoch


def test_find_seq_and_delete_records(client: Client) -> None:
    client.append("log", [Record(data=b"1", source_ts_ns=5), Record(data=b"2", source_ts_ns=9)], create=Kind.LOG)
    assert client.find_seq("log", source_time_ns=6).seq == 2
    assert client.delete_records("log", before_seq=2).deleted_count == 1


def test_parameters_are_checked_by_type_checkers(client: Client) -> None:
    client.create_topic("kv", Kind.KV)
    assert_type(client.get("kv", b"a"), Record | None)
    assert_type(client.list_topics().close(), None)
    with pytest.raises(TypeError, match="key"):
        client.get("kv", "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        client.get("kv", b"a", colour=1)  # type: ignore[call-arg]


def test_an_error_is_the_asyncio_clients_with_its_advice(client: Client) -> None:
    with pytest.raises(errors.TopicNotFound) as caught:
        client.put("nowhere", b"a", b"1")
    assert caught.value.__notes__ == [caught.value.advice]


def test_an_address_without_a_cluster_is_not_ready() -> None:
    with pytest.raises(errors.NotReady) as caught:
        connect("127.0.0.1:9", timeout_s=0.1)
    assert caught.value.advice in caught.value.__notes__
    assert "eddyline-client" not in names_of_threads()


def test_a_cluster_without_ingest_is_not_ready_for_sources(client: Client) -> None:
    with pytest.raises(errors.EddylineError):
        client.kv.put("bucket", b"a", b"1", timeout_s=0.1)


def test_many_threads_use_one_client(client: Client) -> None:
    client.create_topic("kv", Kind.KV)

    def write_and_read(number: int) -> int:
        key = b"%d" % number
        for value in range(20):
            client.put("kv", key, b"%d" % value)
        live = client.get("kv", key)
        assert live is not None
        return len([*client.history("kv", key)]) + int(live.data or b"")

    with ThreadPoolExecutor(THREADS) as pool:
        assert [*pool.map(write_and_read, range(THREADS))] == [20 + 19] * THREADS


def test_close_is_idempotent_and_later_calls_name_connect(address: str) -> None:
    client = connect(address)
    client.create_topic("kv", Kind.KV)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match=r"closed.*connect\(\)"):
        client.get("kv", b"a")
    with pytest.raises(RuntimeError, match="closed"):
        client.read("kv")
    assert "eddyline-client" not in names_of_threads()


def test_close_ends_the_calls_of_other_threads(address: str) -> None:
    client = connect(address)
    client.create_topic("log", Kind.LOG)
    items = client.read("log", follow=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(HANG_S)


def test_a_client_that_is_dropped_ends_its_thread(address: str) -> None:
    client = connect(address)
    thread = next(thread for thread in threading.enumerate() if thread.name == "eddyline-client")
    items = client.list_topics()
    del client
    assert [*items] == []
    del items
    gc.collect()
    thread.join(HANG_S)
    assert not thread.is_alive()


async def test_a_running_event_loop_is_refused_by_name_of_the_asyncio_client(tmp_path: Path) -> None:
    with store_in_thread(tmp_path) as address:
        with pytest.raises(RuntimeError, match=r"from eddyline\.client import connect"):
            connect(address)
        client = await asyncio.to_thread(connect, address)
        with client, pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            client.get("kv", b"a")
        assert await asyncio.to_thread(lambda: "eddyline-client" not in names_of_threads())


def test_a_blocking_call_in_a_callback_is_refused(client: Client) -> None:
    client.create_topic("log", Kind.LOG)
    caught: list[str] = []

    async def on_loop() -> None:
        try:
            client.get_topic("log")
        except RuntimeError as error:
            caught.append(str(error))

    client._loop.run(on_loop)
    assert "callback" in caught[0]


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
