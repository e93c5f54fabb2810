"""The parser of raw subscriptions, with nats-py's own as the model, for any split of the bytes into pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from eddyline.ingest.nats.raw_parser import LINE_BYTES_MAX, RawParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.ingest.nats.raw_parser import Receive

RAW = 7
OTHER = 8

words = st.binary(min_size=1, max_size=12).filter(lambda word: not any(mark in word for mark in b" \t\r\n\v\f"))
payloads = st.binary(max_size=40) | st.just(b"MSG a 7 1\r\n") | st.just(b"\r\n\r\n")
headers = st.just(b"") | st.binary(max_size=20).map(lambda text: b"NATS/1.0\r\n" + text + b"\r\n\r\n")


def message(sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes) -> bytes:
    words = [b"HMSG" if header else b"MSG", subject, str(sid).encode(), *([reply] if reply else [])]
    words += [str(len(header)).encode()] if header else []
    words.append(str(len(header) + len(data)).encode())
    return b" ".join(words) + b"\r\n" + header + data + b"\r\n"


operations = st.one_of(
    st.builds(message, st.sampled_from((RAW, OTHER)), words, st.just(b"") | words, payloads, headers),
    st.sampled_from((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b'INFO {"server_id":"x"}\r\n', b"-ERR 'Slow Consumer'\r\n")),
)


class Told(Client):
    """A client that records the parser's calls, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[object, ...]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.heard.append((sid, bytes(subject), bytes(reply), data, headers or b""))

    async def _process_ping(self) -> None:
        self.heard.append(("PING",))

    async def _process_pong(self) -> None:
        self.heard.append(("PONG",))

    async def _process_info(self, info: dict[str, object], initial_connection: bool = False) -> None:
        self.heard.append(("INFO", str(info), initial_connection))

    async def _process_err(self, error: str) -> None:
        self.heard.append(("ERR", error))


def raw(client: Told) -> RawParser:
    def receive(subject: bytes, reply: bytes, data: bytes, header: bytes) -> None:
        client.heard.append((RAW, subject, reply, data, header))

    return RawParser(client, {RAW: cast("Receive", receive)})


async def heard(parser: Parser, client: Told, pieces: Sequence[bytes]) -> list[tuple[object, ...]]:
    for piece in pieces:
        await parser.parse(piece)
    return client.heard


@given(st.lists(operations, max_size=8), st.lists(st.integers(0, 400), max_size=6))
async def test_any_pieces_are_what_the_whole_is_to_the_clients_own_parser(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(sent)
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(ends)]
    model = Told()
    ours = Told()
    assert await heard(raw(ours), ours, pieces) == await heard(Parser(model), model, [stream])


async def test_message_in_many_pieces_is_parsed_once_it_is_whole() -> None:
    client = Told()
    data = bytes(1 << 20)
    stream = message(RAW, b"a", b"", data, b"")
    pieces = [stream[kit : kit + 1000] for kit in range(0, len(stream), 1000)]
    assert await heard(raw(client), client, pieces) == [(RAW, b"a", b"", data, b"")]


@pytest.mark.parametrize(
    "line", [b"MSG a x 1\r\n", b"MSG a 7 one\r\n", b"MSG \r\n", b"HMSG a 7 x 1\r\n1\r\n", b"WHAT\r\n"]
)
async def test_what_no_server_sends_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        await heard(raw(client := Told()), client, [line])


async def test_line_without_end_is_refused_at_its_bound() -> None:
    with pytest.raises(ProtocolError):
        await heard(raw(client := Told()), client, [b"x" * (1 << 16)] * (LINE_BYTES_MAX // (1 << 16) + 1))


async def test_what_follows_the_end_of_a_connection_is_forgotten() -> None:
    class Ended(Told):
        async def _process_err(self, error: str) -> None:
            await super()._process_err(error)
            parser.reset()

    client = Ended()
    parser = raw(client)
    lost = b"-ERR 'Stale Connection'\r\n" + message(RAW, b"old", b"", b"", b"") + b"MSG half"
    kept = message(RAW, b"new", b"", b"", b"")
    assert await heard(parser, client, [lost, kept]) == [("ERR", "'stale connection'"), (RAW, b"new", b"", b"", b"")]
