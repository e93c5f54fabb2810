"""Every answer whose status is OK was sent whole, in order, however a connection ends meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.http2 import frames
from eddyline.wire.http2.connection import DRAIN_PING
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from tests.support.certificates import Authority
from tests.support.hang import HANG_S
from tests.support.wire.client import unary_unary, until
from tests.support.wire.echo_server import echo_server
from tests.support.wire.fake_socket import FakeOwner, FakeSocket, HoldingService
from tests.support.wire.frames import HELLO, headers, request_block, settings, window_update
from tests.support.wire.tls import client_credentials, server_context

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.wire.echo_server import EchoServer
    from tests.support.wire.frames import Frame

END = encode_field(b"grpc-status", b"0")
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
PONG = encode_frame(frames.PING, 1, 0, DRAIN_PING)


@given(
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=4),
    steps=st.lists(
        st.one_of(
            st.sampled_from(["drain", "pong", "turn", "pause", "resume"]),
            st.tuples(st.integers(0, 4), st.integers(1, 300_000)),
        ),
        max_size=30,
    ),
)
def test_any_course_of_windows_and_drain_sends_whole_answers_and_then_closes(
    sizes: list[int], steps: list[str | tuple[int, int]]
) -> None:
    service = HoldingService()
    socket = FakeSocket(FakeOwner(service))
    sent = socket.send(HELLO, settings({frames.INITIAL_WINDOW_SIZE: 1}))
    ids = [1 + 2 * index for index in range(len(sizes))]
    for stream_id in ids:
        sent += socket.send(headers(stream_id, request_block(), is_end=True))
    for stream, size in zip(service.streams, sizes, strict=True):
        stream.open(STATUS_200)
        stream.send(bytes(size))
        stream.end(END)
    connection = socket.connection
    courses = {
        "drain": connection.drain,
        "pong": lambda: connection.data_received(PONG),
        "turn": socket.loop.turn,
        "pause": connection.pause_writing,
        "resume": connection.resume_writing,
    }
    for step in (*steps, "drain", "pong", "resume", (0, 1 << 21), *((stream_id, 1 << 21) for stream_id in ids)):
        if isinstance(step, str):
            courses[step]()
        else:
            # of a stream that may be closed: then it is ignored
            stream_id = step[0] if step[0] == 0 or step[0] in ids else ids[0]
            connection.data_received(window_update(stream_id, step[1]))
    for _ in range(100):
        sent += socket.written()
    assert socket.transport.is_closed
    assert {stream_id: bytes_before_the_end(sent, stream_id) for stream_id in ids} == dict(zip(ids, sizes, strict=True))


def bytes_before_the_end(sent: list[Frame], stream_id: int) -> int | None:
    """Of a stream's DATA; None = it has no end, or something after it."""
    own = [frame for frame in sent if frame.stream_id == stream_id and frame.kind in (frames.DATA, frames.HEADERS)]
    ends = [
        index for index, frame in enumerate(own) if frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM
    ]
    if ends != [len(own) - 1]:
        return None
    return sum(len(frame.payload) for frame in own if frame.kind == frames.DATA)


@pytest.fixture(params=["plain", "tls"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Authority | None:
    return Authority(tmp_path / "authority") if request.param == "tls" else None


def has_calls(echo: EchoServer, count: int) -> bool:
    return echo.server.calls_open == count


async def test_a_server_that_stops_sends_large_answers_whole(authority: Authority | None) -> None:
    """Calls that the server has taken end well; one on its way may be refused, and never looks like an empty answer."""
    context = server_context(authority.sign("server")) if authority is not None else None
    body = bytes(range(256)) * 12_000
    for calls_count in (1, 3):
        async with echo_server(context=(lambda: context) if context else None, grace_s=HANG_S) as echo:
            channel = (
                grpc.aio.secure_channel(echo.address, client_credentials(authority), options=OWN_CONNECTION)
                if authority is not None
                else grpc.aio.insecure_channel(echo.address, options=OWN_CONNECTION)
            )
            calls = [unary_unary(channel, "/t.T/Echo")(body, wait_for_ready=True) for _ in range(calls_count)]
            await until(partial(has_calls, echo, calls_count))
        assert [await call for call in calls] == [body] * calls_count
        await channel.close()
