"""Requests that nobody would send: random bytes and random valid messages, against a role that runs on a thread of its own.

The role's loop is not the test's, so that properties are plain functions that call it, as clients do.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.core.records.record import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

PATIENCE_S: Final = 0.1
"""Calls that wait, for records or for ever, are given up: they are no answer, and no harm."""
START_S: Final = 30.0
DEPTH_MAX: Final = 4
NAMES: Final = ("log", "kv", "nobody", "", "x" * 300, "../up", "a b", "ä", "log\x00", "log.")
NOT_ANSWERS: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
"""With these a role says that something is wrong with itself."""

T = TypeVar("T")


@contextmanager
def on_a_thread(serve: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Serve in a loop on a thread; what `serve` gives is not to be used but for its figures and addresses."""
    started: Future[tuple[T, Callable[[], object]]] = Future()

    async def run() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serve() as served:
            started.set_result((served, lambda: loop.call_soon_threadsafe(over.set)))
            await over.wait()

    def life() -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(run())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=life, name="served")
    thread.start()
    try:
        served, stop = started.result(START_S)
        try:
            yield served
        finally:
            stop()
    finally:
        thread.join(START_S)
    assert not thread.is_alive(), "the role did not stop"


class Caller:
    """Calls any method with any bytes."""

    def __init__(self, address: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        options = [("grpc.max_send_message_length", 2 * MESSAGE_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options=options)
        self._metadata = metadata

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def code(self, method: str, *requests: bytes) -> grpc.StatusCode:
        """Send requests and give the code of what comes, OK at the first answer."""
        make: Any = self._channel.stream_stream
        call = make(method)(iter(requests), timeout=PATIENCE_S, metadata=self._metadata)
        try:
            for _answer in call:
                return grpc.StatusCode.OK
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        finally:
            call.cancel()
        return grpc.StatusCode.OK


def messages(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Random content of a message, by its descriptor: fields and values as its class's constructor takes them."""
    fields = {
        field.name: _values(field, depth)
        for field in descriptor.fields
        if field.type != field.TYPE_MESSAGE or depth < DEPTH_MAX
    }
    return st.fixed_dictionaries({}, optional=fields)


def _values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    one = _value(field, depth)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    match field.type:
        case field.TYPE_MESSAGE:
            inner = field.message_type
            assert inner is not None
            return st.deferred(lambda: messages(inner, depth + 1))
        case field.TYPE_STRING:
            return st.sampled_from(NAMES) | st.text(max_size=20)
        case field.TYPE_BYTES:
            return st.binary(max_size=40) | st.just(b"k" * 2_000)
        case field.TYPE_BOOL:
            return st.booleans()
        case field.TYPE_ENUM:
            assert field.enum_type is not None
            return st.sampled_from([value.number for value in field.enum_type.values]) | st.integers(-1, 99)
        case field.TYPE_DOUBLE | field.TYPE_FLOAT:
            return st.floats(width=32)
        case field.TYPE_UINT32 | field.TYPE_FIXED32:
            return _around(0, 2**32 - 1)
        case field.TYPE_UINT64 | field.TYPE_FIXED64:
            return _around(0, 2**64 - 1)
        case field.TYPE_INT32 | field.TYPE_SINT32 | field.TYPE_SFIXED32:
            return _around(-(2**31), 2**31 - 1)
        case _:
            return _around(-(2**63), 2**63 - 1)


def _around(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from((low, 0, 1, 2, 5, high)) | st.integers(low, high)


def check_messages(caller: Caller, method: str, request: type[Message], *, examples: int) -> None:
    """Random messages of a call are answered or refused."""

    @settings(max_examples=examples)
    @given(st.lists(messages(request.DESCRIPTOR), min_size=1, max_size=2))
    def sent(contents: list[dict[str, object]]) -> None:
        assert caller.code(method, *(request(**content).SerializeToString() for content in contents)) not in NOT_ANSWERS

    sent()


def check_bytes(caller: Caller, method: str, *, examples: int) -> None:
    """Random bytes are answered or refused."""

    @settings(max_examples=examples)
    @given(st.lists(st.binary(max_size=200), max_size=3))
    def sent(requests: list[bytes]) -> None:
        assert caller.code(method, *requests) not in NOT_ANSWERS

    sent()
