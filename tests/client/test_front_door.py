"""The ten lines that a program begins with: one import, put, delete, append; and mistakes that are named."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import traceback
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import eddyline.client as face
from eddyline.cli.errors import failure_line
from eddyline.client import Kind, MetaEntry, Op, Record, connect, errors
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.client import Client


@asynccontextmanager
async def connected(data: Path) -> AsyncIterator[Client]:
    async with served_store(data) as store, connect(store.address) as client:
        yield client


async def test_an_op_that_is_not_given_is_the_topics(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.append("log", [Record(data=b"1")], create=Kind.LOG)
        await client.append("kv", [Record(key=b"a", data=b"1")], create=Kind.KV)
        async with client.append_stream("kv") as stream:
            await stream.append([Record(key=b"b", data=b"2")])
        assert [record.op async for record in client.read("log") if isinstance(record, Record)] == [Op.APPEND]
        assert [record.op async for record in client.read("kv") if isinstance(record, Record)] == [Op.PUT, Op.PUT]


async def test_an_op_that_is_given_is_kept(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.create_topic("kv", Kind.KV)
        with pytest.raises(errors.InvalidOp):
            await client.append("kv", [Record(op=Op.APPEND, key=b"a", data=b"1")])


async def test_a_key_is_put_and_deleted_by_their_names(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        with pytest.raises(errors.TopicNotFound):
            await client.put("kv", b"a", b"1")
        first = await client.put("kv", b"a", b"1", create=True, expected_version=b"")
        live = await client.get("kv", b"a")
        assert live is not None and (live.data, live.seq) == (b"1", first.first_seq)
        with pytest.raises(errors.VersionMismatch):
            await client.put("kv", b"a", b"2", expected_version=b"")
        again = await client.put("kv", b"a", b"2", expected_version=live.version, idempotency_key="one")
        assert await client.put(
            "kv", b"a", b"2", expected_version=live.version, idempotency_key="one"
        ) == again._replace(deduplicated=True)
        await client.delete("kv", b"a")
        assert await client.get("kv", b"a") is None


WRONG_RECORDS = {
    "record 1: key is bytes or None, not a str: give b'17'": [Record(), Record(key="17")],  # type: ignore[arg-type]
    "record 0: data is bytes or None, not a dict": [Record(data={})],  # type: ignore[arg-type]
    "record 0: data is bytes or None, not a bytearray": [Record(data=bytearray(b"x"))],  # type: ignore[arg-type]
    "record 0: version is bytes, not a str: give b'1'": [Record(version="1")],  # type: ignore[arg-type]
    "record 0: op is int, not a str: give": [Record(op="put")],  # type: ignore[arg-type]
    "record 0: tag is str or None, not an int": [Record(tag=5)],  # type: ignore[arg-type]
    "record 0: meta[0].value is bytes, not a str: give b'v'": [Record(meta=(MetaEntry("n", "v"),))],  # type: ignore[arg-type]
    "record 0: meta[0] is a str: give MetaEntry(name, value)": [Record(meta=("n",))],  # type: ignore[arg-type]
    "record 2 is a dict: give Record(": [Record(), Record(), {"key": b"a"}],
    "record 0 is a bytes: give Record(": [b"x"],
    "records is one Record: give a list of records": Record(key=b"a"),
    "records is a bytes: give a list of records": b"x",
    "records is None: give a list of records": None,
}


@pytest.mark.parametrize("said", WRONG_RECORDS)
async def test_what_is_no_record_is_named_by_its_place(said: str) -> None:
    wrong = WRONG_RECORDS[said]
    async with client_of_nobody() as client:
        with pytest.raises(TypeError) as caught:
            await client.append("kv", wrong)  # type: ignore[arg-type]
    assert str(caught.value).startswith(said.removesuffix(": give") if "op is" in said else said)


@pytest.mark.parametrize("record", [Record(op=1 << 40), Record(seq=-1), Record(tag="\ud800")])
async def test_a_value_that_no_record_has_names_its_record(record: Record) -> None:
    async with client_of_nobody() as client:
        with pytest.raises(ValueError, match="record 1: "):
            await client.append("kv", [Record(), record])


@asynccontextmanager
async def client_of_nobody() -> AsyncIterator[Client]:
    """A client whose calls nobody would answer: what it refuses it refuses by itself."""
    from tests.support.clients.clients import client_of

    async with client_of("127.0.0.1:9") as client:
        yield client


async def test_every_key_and_value_that_is_no_bytes_is_named() -> None:
    async with client_of_nobody() as client:
        text: Any = "17"
        calls: list[Awaitable[object]] = []
        calls += [client.put("kv", text, b""), client.put("kv", b"", text), client.delete("kv", text)]
        calls += [client.get("kv", text), client.get_many("kv", [b"", text]), client.get_many("kv", text)]
        calls += [client.get_columns("kv", [text])]
        calls += [client.get_at("kv", text, at_seq=1), client.append("kv", [], expected_versions={text: b""})]
        said = []
        for call in calls:
            with pytest.raises(TypeError) as caught:
                await call
            said.append(str(caught.value))
        with pytest.raises(TypeError) as caught:
            client.watch("kv", key_prefixes=text)
        said.append(str(caught.value))
    assert [line.split(" is ")[0] for line in said] == [
        "key", "value", "key", "keys[0]", "keys[1]", "keys", "keys[0]", "key", "key", "key_prefixes",
    ]  # fmt: skip


async def test_an_unhandled_error_ends_with_the_commands_advice(tmp_path: Path) -> None:
    with pytest.raises(errors.TopicNotFound) as caught:
        async with connected(tmp_path) as client:
            await client.put("nowhere", b"a", b"1")
    assert caught.value.advice in failure_line(caught.value)
    assert "eddyline topic create" in "".join(traceback.format_exception(caught.value)).splitlines()[-1]


CALLS: dict[str, tuple[bool, Callable[[Client], Awaitable[object]]]] = {
    "put": (True, lambda client: client.put("t", b"a", b"1")),
    "delete": (True, lambda client: client.delete("t", b"a")),
    "get": (True, lambda client: client.get("t", b"a")),
    "get_at": (True, lambda client: client.get_at("t", b"a", at_seq=1)),
    "history": (True, lambda client: anext(aiter(client.history("t", b"a")))),
    "range": (True, lambda client: anext(aiter(client.range("t")))),
    "settle_fold": (True, lambda client: client.settle_fold("t")),
    "verify_fold": (True, lambda client: anext(aiter(client.verify_fold("t")))),
    "append": (False, lambda client: client.append("t", [Record(data=b"1")])),
    "read": (False, lambda client: anext(aiter(client.read("t")))),
    "get_topic": (False, lambda client: client.get_topic("t")),
}
"""By name: whether the call needs a KV topic, and the call."""


@pytest.mark.parametrize("name", CALLS)
async def test_advice_for_a_missing_topic_creates_one_of_the_kind_that_the_call_needs(
    name: str, tmp_path: Path
) -> None:
    needs_kv, call = CALLS[name]
    async with connected(tmp_path) as client:
        with pytest.raises(errors.TopicNotFound) as missing:
            await call(client)
    creates = "NAME --kind kv`" if needs_kv else "NAME` (add `--kind kv` for a KV topic)"
    assert missing.value.advice.endswith(f"create one with `eddyline topic create {creates}")


async def test_put_into_a_log_topic_advises_a_kv_topic(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.create_topic("log", Kind.LOG)
        with pytest.raises(errors.InvalidOp, match="must have op APPEND") as refused:
            await client.put("log", b"a", b"1")
    assert "`eddyline topic create NAME --kind kv`" in refused.value.advice


@pytest.mark.parametrize("greeting", [b'INFO {"server_id":"x"}\r\n', b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_port_of_another_protocol_is_named_in_plain_words(greeting: bytes) -> None:
    served: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        writer.write(greeting)
        with suppress(OSError):
            while await reader.read(100):
                pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as other:
        address = "127.0.0.1:{1}".format(*other.sockets[0].getsockname())
        with pytest.raises(errors.NotReady) as raised:
            async with connect(address, timeout_s=0.5):
                pass
        await asyncio.wait(served)
    assert raised.value.message == f"the port {address} does not speak gRPC"
    assert raised.value.__notes__ == ["give the address of an Eddyline role"]


async def test_address_at_which_nothing_listens_is_named() -> None:
    with pytest.raises(errors.NotReady) as raised:
        async with connect("127.0.0.1:1", timeout_s=0.5):
            pass
    assert raised.value.__notes__ == ["nothing listens at 127.0.0.1:1: start the cluster or correct the address"]
    assert "the role is starting" in errors.NotReady("the store is recovering").advice


async def test_of_a_group_each_error_has_its_advice(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with connected(tmp_path) as client, asyncio.TaskGroup() as group:
            group.create_task(client.put("nowhere", b"a", b"1"))
    assert caught.value.exceptions[0].__notes__ == [errors.TopicNotFound("gone", kvWanted=1).advice]


def test_the_face_has_what_it_lists() -> None:
    """Type checkers, `*` and the loader have one list of names."""
    tree = ast.parse(Path(face.__file__ or "").read_text(encoding="utf-8"))
    checked = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names} - {
        "annotations",
        "import_module",
        "ModuleType",
        "TYPE_CHECKING",
        "Final",
    }
    assert checked | {"__version__"} == set(face.__all__) == set(dir(face))
    for name in face.__all__:
        assert getattr(face, name) is not None
    with pytest.raises(AttributeError):
        _ = face.nothing


def test_connect_is_the_function_whatever_was_imported_before() -> None:
    program = (
        "import sys, eddyline.client; assert 'grpc' not in sys.modules\n"
        "import eddyline.client.connect\nfrom eddyline.client import connect, __version__\n"
        "print(connect.__name__, __version__)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.split() == ["connect", "0.1.0"]
