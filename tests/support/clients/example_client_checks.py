"""Checks of every example client, in any language: against a real cluster, and against scripts.

The script is for what a cluster of today cannot be made to say: a frame of a later version, a refused token, a hang.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.client.connect import connect
from eddyline.client.watch.watch import DEFECTS_MAX
from eddyline.core.errors import DiskFloor, Internal, ResumeTokenInvalid
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from eddyline.v1 import delivery_pb2, types_pb2
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority
from tests.support.clients.example_clients import ExampleClient, Line, built
from tests.support.cluster.processes import delivery_at, delivery_server, free_address, process, serving, tls_of
from tests.support.delivery.scripted_roles import (
    ScriptedDelivery,
    WatchScript,
    caught_up_frame,
    cursor,
    deleted_frame,
    heartbeat_frame,
    progress_frame,
    rows_frame,
    scripted_server,
    snapshot_begin_frame,
    snapshot_end_frame,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from eddyline.client.connect import Client

    Until = Callable[[Callable[[Line], bool]], Awaitable[None]]

RETRY_AFTER_MS = 600
UNKNOWN_FIELD = b"\x9a\x06\x02hi"
"""A field of number 99, two bytes long, which no version has."""
GOING_AWAY = b"\x6a\x00"
"""The field `going_away`, which older protos do not know."""


async def check_calls_and_errors(language: str, directory: Path) -> None:
    """Append, get, a snapshot and the end of its topic; errors by their reason."""
    command = await built(language)
    store = free_address()
    async with _store_at(store, directory), delivery_server(store) as delivery:
        client = ExampleClient(command, store, delivery)
        batch = ("append", "orders", "--kind=kv", "--idempotency-key=b1", "17=paid", "18=größer=als", "17=sent")
        first, again = await client.run(*batch), await client.run(*batch)
        assert (first.status, again.status) == (0, 0), (first, again)
        assert _picked(first.lines, "first_seq", "last_seq", "deduplicated") == [(1, 3, False)]
        assert _picked(again.lines, "first_seq", "last_seq", "deduplicated") == [(1, 3, True)]
        other = await client.run("append", "orders", "--idempotency-key=b1", "17=other")
        assert (other.status, _reasons(other.errors)) == (1, [("IDEMPOTENCY_CONFLICT", "ALREADY_EXISTS")])
        assert other.errors[0]["advice"]
        from_stdin = await client.run("append", "orders", stdin=b"19=a\n20=b\n")
        assert _picked(from_stdin.lines, "first_seq", "last_seq") == [(4, 5)]

        got = await client.run("get", "orders", "18")
        assert _picked(got.lines, "key", "data", "seq", "op") == [("18", "größer=als", 2, "PUT")]
        missing = await client.run("get", "orders", "21")
        assert (missing.status, _reasons(missing.errors)) == (1, [("KEY_NOT_FOUND", "NOT_FOUND")])
        nowhere = await client.run("watch", "nowhere")
        assert (nowhere.status, _reasons(nowhere.errors)) == (1, [("TOPIC_NOT_FOUND", "NOT_FOUND")])
        assert (await client.run("watch")).status == 2

        async with (
            connect(store) as python,
            client.watch("orders", "--start=snapshot") as watching,
            client.watch("orders", "--start=tail") as tail,
        ):
            await watching.until(lambda line: line.get("event") == "caught_up")
            await tail.until(lambda line: line.get("event") == "caught_up")
            await python.append("orders", [Record(op=Op.DELETE, key=b"18"), Record(op=Op.PUT, key=b"\xff", data=b"")])
            await watching.until(lambda line: line.get("op") == "DELETE")
            await tail.until(lambda line: line.get("op") == "PUT")
            await python.delete_topic("orders")
            assert (await watching.end(), await tail.end()) == (0, 0)
        assert _picked(tail.lines, "event", "seq", "key", "key_base64", "data") == [
            ("caught_up", None, None, None, None),
            (None, 6, "18", None, None),
            (None, 7, None, "/w==", ""),
            ("topic_deleted", None, None, None, None),
        ]
        assert _picked(watching.lines, "event", "key", "data", "in_snapshot") == [
            ("snapshot_begin", None, None, None),
            (None, "17", "sent", True),
            (None, "18", "größer=als", True),
            (None, "19", "a", True),
            (None, "20", "b", True),
            ("snapshot_end", None, None, None),
            ("caught_up", None, None, None),
            (None, "18", None, False),
            (None, None, "", False),
            ("topic_deleted", None, None, None),
        ]


async def check_kills(language: str, directory: Path) -> None:
    """Delivery and store are killed under a watch while writes go on: everything once, in order."""
    command = await built(language)
    store, delivery = free_address(), free_address()
    async with AsyncExitStack() as roles:
        store_process = await roles.enter_async_context(_store_at(store, directory))
        delivery_process = await roles.enter_async_context(delivery_at(delivery, store))
        async with connect(store) as python, asyncio.TaskGroup() as tasks:
            stop = asyncio.Event()
            await python.create_topic("orders", Kind.KV)
            writer = tasks.create_task(_write(python, stop))
            client = ExampleClient(command, store, delivery)
            async with client.watch("orders", "--heartbeat-ms=500") as watching:
                await watching.until(lambda line: line.get("seq") == 50)
                delivery_process.kill()
                await delivery_process.wait()
                delivery_process = await roles.enter_async_context(delivery_at(delivery, store))
                await _past_the_head(python, watching.until)
                store_process.kill()
                await store_process.wait()
                store_process = await roles.enter_async_context(_store_at(store, directory))
                await _past_the_head(python, watching.until)
                store_process.kill()
                delivery_process.kill()
                await store_process.wait()
                await delivery_process.wait()
                await roles.enter_async_context(_store_at(store, directory))
                await roles.enter_async_context(delivery_at(delivery, store))
                await _past_the_head(python, watching.until)
                stop.set()
                written = await writer
                if watching.records[-1]["seq"] != written:
                    await watching.until(lambda line: line.get("seq") == written)
            log = [item async for item in python.read("orders")]
    assert [record for record in log if not isinstance(record, Record)] == []
    assert _picked(watching.records, "seq", "key", "data") == [
        (record.seq, (record.key or b"").decode(), (record.data or b"").decode())
        for record in log
        if isinstance(record, Record)
    ]
    assert [line for line in watching.lines if "gap" in line] == []
    assert sum(line.get("event") == "reconnecting" for line in watching.lines) >= 2


async def check_script(language: str) -> None:
    """Two replicas by a script: each stream begins where the last frame of the one before it left off."""
    command = await built(language)
    first, second = _replicas()
    async with scripted_server(delivery=first) as one, scripted_server(delivery=second) as two:
        client = ExampleClient(command, free_address(), f"{one},{two}")
        async with client.watch("a", "b", "--start=snapshot", "--heartbeat-ms=500") as watching:
            await watching.until(lambda line: line.get("event") == "reconnecting")
            await watching.until(lambda line: line.get("event") == "resumed")
            assert await watching.end() == 0
    # arrival at the full one precedes its refusal, so the bound holds however late lines are read
    assert second.arrivals_s[1] - first.arrivals_s[1] >= RETRY_AFTER_MS / 1000
    asked = [_asked(request) for pair in zip(first.requests, second.requests, strict=True) for request in pair]
    assert asked == [
        (b"", {"a": None, "b": None}),
        (b"T2", {"a": (7, 5), "b": None}),
        (b"T2", {"a": (7, 6), "b": None}),
        (b"T2", {"a": (7, 6), "b": None}),
        (b"", {"a": (7, 6), "b": None}),
        (b"T3", {"b": (7, 10)}),
    ]
    assert _picked(watching.lines, "topic", "event", "gap", "seq") == [
        ("a", None, None, 1),
        ("a", None, None, 2),
        ("b", "snapshot_begin", None, None),
        ("b", None, None, 4),
        ("a", None, None, 4),
        ("a", None, None, 6),
        (None, "reconnecting", None, None),
        (None, "resumed", None, None),
        ("a", None, "RECREATED", None),
        ("a", None, None, 1),
        ("b", "snapshot_begin", None, None),
        ("b", None, None, 5),
        ("b", "snapshot_end", None, None),
        (None, "caught_up", None, None),
        ("a", "topic_deleted", None, None),
        ("b", None, None, 10),
        ("b", "topic_deleted", None, None),
    ]


async def check_signs_of_life(language: str) -> None:
    """A replica says a heartbeat and fails, each time: a few tries with growing pauses, then one error with its
    reason."""
    command = await built(language)
    first = [WatchScript((rows_frame("a", 1), caught_up_frame(b"T1")), Internal("defect", id="x"))]
    delivery = ScriptedDelivery(first + [WatchScript((heartbeat_frame(b"T1"),), Internal("defect", id="x"))] * 200)
    async with scripted_server(delivery=delivery) as address:
        done = await ExampleClient(command, free_address(), address).run("watch", "a", "--heartbeat-ms=500")
    assert (done.status, _reasons(done.errors)) == (1, [("INTERNAL", "INTERNAL")]), done
    assert len(delivery.requests) == 1 + DEFECTS_MAX
    assert [line["seq"] for line in done.lines if "op" in line] == [1]


async def check_batch_end(language: str) -> None:
    """Lines say where no append is cut, also where a filter hid its end."""
    command = await built(language)
    whole, end = rows_frame("a", 2, 3), progress_frame("a", 5)
    whole.batch_end = end.batch_end = True
    frames = (rows_frame("a", 1), whole, rows_frame("a", 4), end, deleted_frame("a"))
    async with scripted_server(delivery=ScriptedDelivery([WatchScript(frames, "end")])) as address:
        done = await ExampleClient(command, free_address(), address).run("watch", "a")
    assert done.status == 0, done
    assert _picked(done.lines, "seq", "event", "batch_end") == [
        (1, None, None),
        (2, None, None),
        (3, None, True),
        (4, None, None),
        (None, "batch_end", None),
        (None, "topic_deleted", None),
    ]


async def check_access(language: str, directory: Path) -> None:
    """A key and TLS from the environment: a client with both gets in; the error of another one names the missing
    part."""
    command = await built(language)
    keys, authority = Keys(directory), Authority(directory / "certificates")
    keys.add("roles", "role")
    keys.add("reader", "read")
    keys.add("owner", "read", "write", "admin")
    files = {name: directory / f"{name}.key" for name in ("roles", "owner")}
    for name, path in files.items():
        path.write_text(secret_of(name) + "\n", encoding="utf-8")
    server, ca = authority.sign("roles"), str(authority.own.certificate)
    keyed = {"EDDYLINE_COMMON_KEYS_FILE": str(keys.path), "EDDYLINE_COMMON_KEY_FILE": str(files["roles"])}
    tls = {
        "EDDYLINE_COMMON_TLS_CERT": str(server.certificate),
        "EDDYLINE_COMMON_TLS_KEY": str(server.key),
        "EDDYLINE_COMMON_TLS_CA": ca,
    }
    append = ("append", "orders", "--kind=kv", "17=paid")
    store, delivery = free_address(), free_address()

    def client(**environment: str) -> ExampleClient:
        # Node warns of an address where TLS wants a name.
        named, replica = (at.replace("127.0.0.1", "localhost") for at in (store, delivery))
        return ExampleClient(command, named, replica, environment)

    async with _store_at(store, directory, **keyed):
        done = await client(EDDYLINE_KEY=secret_of("owner")).run(*append)
        assert (done.status, _picked(done.lines, "last_seq")) == (0, [(1,)]), done
    async with _store_at(store, directory, **keyed, **tls), delivery_at(delivery, store, **keyed, **tls):
        owner = client(EDDYLINE_TLS_CA=ca, EDDYLINE_KEY_FILE=str(files["owner"]))
        done = await owner.run(*append)
        assert (done.status, _picked(done.lines, "last_seq")) == (0, [(2,)]), done
        async with owner.watch("orders") as watching:
            await watching.until(lambda line: line.get("event") == "caught_up")
        assert [record["seq"] for record in watching.records] == [1, 2]
        reader = client(EDDYLINE_TLS_CA=ca, EDDYLINE_KEY=secret_of("reader"), EDDYLINE_KEY_FILE=str(files["owner"]))
        assert (await reader.run("get", "orders", "17")).status == 0
        refused, unknown = await reader.run(*append), await client(EDDYLINE_TLS_CA=ca).run(*append)
        assert (refused.status, _reasons(refused.errors)) == (1, [("PERMISSION_DENIED", "PERMISSION_DENIED")])
        assert (unknown.status, _reasons(unknown.errors)) == (1, [("UNAUTHENTICATED", "UNAUTHENTICATED")])
        assert "EDDYLINE_KEY" in str(unknown.errors[0]["advice"])
    for name in ("EDDYLINE_TLS_CA", "EDDYLINE_KEY_FILE"):
        wrong = await client(**{name: str(directory / "none")}).run(*append)
        assert (wrong.status, name in str(wrong.errors[0]["message"])) == (2, True), wrong


def _replicas() -> tuple[ScriptedDelivery, ScriptedDelivery]:
    """Two replicas whose scripts take turns, the first one's first."""
    going_away = delivery_pb2.WatchTopicsResponse(resume_token=b"T2").SerializeToString() + GOING_AWAY
    first = ScriptedDelivery(
        [
            WatchScript(
                (
                    rows_frame("a", 1, 2),
                    heartbeat_frame(b"T1"),
                    snapshot_begin_frame("b", 9),
                    rows_frame("b", 4, in_snapshot_of=1),
                    rows_frame("a", 4),
                    _with_unknown_frame(delivery_pb2.WatchTopicsResponse(topic="a", cursor=cursor("a", 5))),
                    delivery_pb2.WatchTopicsResponse.FromString(going_away),
                ),
                "end",
            ),
            WatchScript(ending=DiskFloor("full", retryAfterMs=str(RETRY_AFTER_MS))),
            WatchScript(
                (
                    _recreated("a"),
                    rows_frame("a", 1),
                    snapshot_begin_frame("b", 9),
                    rows_frame("b", 5, in_snapshot_of=1),
                    snapshot_end_frame("b", 9, 1),
                    caught_up_frame(b"T3"),
                    deleted_frame("a"),
                    rows_frame("b", 10),
                ),
                "end",
            ),
        ]
    )
    second = ScriptedDelivery(
        [
            WatchScript((rows_frame("a", 6),), "silence"),
            WatchScript(ending=ResumeTokenInvalid("not ours")),
            WatchScript((deleted_frame("b"),), "end"),
        ]
    )
    return first, second


@asynccontextmanager
async def _store_at(address: str, directory: Path, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A store at a given address, which it names to who asks for the cluster; its process, once it serves."""
    settings = {
        "EDDYLINE_STORE_LISTEN": address,
        "EDDYLINE_STORE_DATA_DIR": str(directory / "store"),
        "EDDYLINE_COMMON_STORE_ADDRESSES": address,
        **more,
    }
    async with process("eddyline.store", **settings) as started:
        await serving(address, tls=tls_of(settings))
        yield started


async def _write(python: Client, stop: asyncio.Event) -> int:
    """Append one record after the other until the stop event; return their number."""
    written = 0
    while not stop.is_set():
        record = Record(op=Op.PUT, key=b"k%d" % (written % 10), data=b"%d" % (written + 1))
        await python.append("orders", [record], idempotency_key=f"w{written}")
        written += 1
        # Some hundred a second: enough for each kill to come between a write and its frame.
        await asyncio.sleep(0.002)
    return written


async def _past_the_head(python: Client, until: Until) -> None:
    """Wait until the watch has what is written from now on."""
    head = (await python.get_topic("orders")).head_seq
    await until(lambda line: line.get("seq") == head + 20)


def _with_unknown_frame(frame: delivery_pb2.WatchTopicsResponse) -> delivery_pb2.WatchTopicsResponse:
    return delivery_pb2.WatchTopicsResponse.FromString(frame.SerializeToString() + UNKNOWN_FIELD)


def _recreated(topic: str) -> delivery_pb2.WatchTopicsResponse:
    gap = types_pb2.Gap(reason=types_pb2.GAP_REASON_RECREATED, old_epoch=6, new_epoch=7)
    return delivery_pb2.WatchTopicsResponse(topic=topic, cursor=cursor(topic, 0), gap=gap)


def _asked(request: delivery_pb2.WatchTopicsRequest) -> tuple[bytes, dict[str, tuple[int, int] | None]]:
    places = {
        wanted.topic: (wanted.cursor.epoch, wanted.cursor.seq) if wanted.WhichOneof("start") == "cursor" else None
        for wanted in request.topics
    }
    return request.resume_token, places


def _picked(lines: list[Line], *names: str) -> list[tuple[object, ...]]:
    return [tuple(line.get(name) for name in names) for line in lines]


def _reasons(errors: list[Line]) -> list[tuple[object, ...]]:
    return _picked(errors, "error", "code")
