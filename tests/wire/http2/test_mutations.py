"""Recordings of real clients, whole and mutated: the connection raises nothing, and ends only by its own error."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.wire.calls.assembler import Assembler, MessageRefused
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.http2.limits import Limits
from tests.support.wire.frames import HELLO, frames_of
from tests.support.wire.peer import Peer

if TYPE_CHECKING:
    from eddyline.wire.http2.errors import ErrorCode
    from eddyline.wire.http2.stream import Http2Stream

RECORDINGS: Final = Path(__file__).parents[2] / "golden" / "wire"
NAMES: Final = ("python", "go", "node")
LIMITS: Final = Limits(message_bytes_max=100_000)
MUTANTS: Final = 150


class _Echo:
    """Sends back what comes, as messages."""

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._assembler = Assembler(LIMITS.message_bytes_max)
        self.messages: list[bytes] = []

    def on_data(self, data: bytes) -> None:
        self._stream.consume(len(data))
        try:
            self.messages += self._assembler.feed(data)
        except MessageRefused:
            self._stream.end(STATUS_200)
        else:
            if not self._stream.is_opened:
                self._stream.open(STATUS_200)
            self._stream.send(data)

    def on_end(self) -> None:
        self._stream.end(encode_field(b"grpc-status", b"0"))

    def on_writable(self) -> None: ...

    def on_closed(self, code: ErrorCode | None) -> None: ...


class _EchoPeer(Peer):
    """A connection whose streams send back what comes."""

    def on_request(self, stream: Http2Stream) -> None:
        super().on_request(stream)
        stream.handler = _Echo(stream)


def replay(recorded: bytes, rng: Random) -> _EchoPeer:
    """Play bytes in pieces to a new connection; its output must be whole frames."""
    peer = _EchoPeer(LIMITS, greets=False)
    peer.connection.begin()
    at = 0
    while at < len(recorded):
        end = at + rng.choice((1, 9, 100, 5_000, 70_000))
        peer.connection.receive(recorded[at:end])
        frames_of(peer.connection.take_output())
        at = end
    return peer


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_plays_without_an_error(name: str) -> None:
    recorded = (RECORDINGS / f"{name}.bin").read_bytes()
    peer = replay(recorded, Random(1))
    assert peer.failure is None
    paths = [stream.request.path for stream in peer.streams.values()]
    assert paths.count(b"/t.T/Echo") == 6 and b"/t.T/Bidi" in paths


@pytest.mark.parametrize("name", NAMES)
def test_mutated_recordings_raise_nothing(name: str) -> None:
    recorded = (RECORDINGS / f"{name}.bin").read_bytes()
    rng = Random(name)
    for _ in range(MUTANTS):
        mutant = bytearray(recorded)
        for _ in range(rng.randrange(1, 8)):
            # most mutations in the first part, which has all kinds of frames
            at = rng.randrange(len(HELLO), rng.choice((1_000, 4_000, len(mutant))))
            if rng.random() < 0.2:
                del mutant[at : at + rng.randrange(20)]
            else:
                mutant[at] = rng.randrange(256)
        peer = replay(bytes(mutant), rng)
        connection = peer.connection
        if peer.failure is not None:
            assert not connection.streams and not connection.ready
        assert connection.unread <= LIMITS.unread_bytes_max + LIMITS.connection_window_bytes
