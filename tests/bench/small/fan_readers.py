"""P22's readers: subscribers by HTTP/2 by hand, each on a connection of its own, all in one process.

`python -m tests.bench.small.fan_readers ADDRESS TOPIC SUBSCRIBERS RECORDS` prints `ready` when all have caught up, and
once each has its records a line of JSON: seconds from the first frame to the last, and the latencies' median. A message
costs a few us here, with grpc.aio a hundred. Windows are given back by halves; nothing else is sent for a frame.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from typing import Final, cast

import uvloop

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2
from eddyline.wire.http2 import frames
from eddyline.wire.http2.hpack import encode_field
from tests.support.wire.frames import HELLO, data, headers, message, settings, window_update

FIELDS: Final = (
    *((b":path", b"/eddyline.v1.DeliveryService/WatchTopics"), (b":authority", b"localhost")),
    *((b"content-type", b"application/grpc"), (b"te", b"trailers")),
)
BLOCK: Final = b"\x83\x86" + b"".join(encode_field(name, value) for name, value in FIELDS)
"""POST by http, and the fields; gRPC's core wants an authority."""
WINDOW_BYTES: Final = 1 << 20
FIRST_WINDOW: Final = 65_535
OPENING_MAX: Final = 50
HEARTBEAT_MS: Final = 60_000
STAMP: Final = struct.Struct("<q")
HEAD: Final = struct.Struct(">IBI")


def now_stamp() -> bytes:
    """The time as the first bytes of a record."""
    return STAMP.pack(time.monotonic_ns())


class Readers:
    """All subscribers. `records` = of each."""

    def __init__(self, subscribers: int, records: int) -> None:
        self.records = records
        self.caught_up_left = self.done_left = subscribers
        self.caught_up = asyncio.Event()
        self.done = asyncio.Event()
        self.waited_ns: list[int] = []
        self.first_ns = self.last_ns = 0

    def told(self) -> str:
        """The line of figures."""
        waited = sorted(self.waited_ns)
        return json.dumps({"seconds": (self.last_ns - self.first_ns) / 1e9, "p50_ms": waited[len(waited) // 2] / 1e6})


class Reader(asyncio.Protocol):
    """One connection with one stream."""

    def __init__(self, readers: Readers, request: bytes, opening: asyncio.Semaphore) -> None:
        self._readers = readers
        self._request = request
        self._opening = opening
        self._bytes = b""
        self._messages = b""
        self._uncredited = 0
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        hello = HELLO + settings({frames.INITIAL_WINDOW_SIZE: WINDOW_BYTES})
        window = window_update(0, WINDOW_BYTES - FIRST_WINDOW)
        self._transport.write(hello + window + headers(1, BLOCK) + data(1, message(self._request), is_end=True))

    def data_received(self, data: bytes) -> None:
        held = self._bytes + data if self._bytes else data
        at, end = 0, len(held)
        while end - at >= HEAD.size:
            length_and_kind, flags, _ = HEAD.unpack_from(held, at)
            length, kind = length_and_kind >> 8, length_and_kind & 0xFF
            if end - at < HEAD.size + length:
                break
            at += HEAD.size
            if kind == frames.DATA:
                self._uncredited += length
                self._messages += held[at : at + length]
            elif kind == frames.SETTINGS and not flags:
                self._transport.write(frames.encode_frame(frames.SETTINGS, 1, 0))
            at += length
        self._bytes = held[at:]
        if self._uncredited * 2 >= WINDOW_BYTES:
            self._transport.write(window_update(0, self._uncredited) + window_update(1, self._uncredited))
            self._uncredited = 0
        self._take()

    def _take(self) -> None:
        held, at = self._messages, 0
        while len(held) - at >= 5 and len(held) - at >= (size := 5 + int.from_bytes(held[at + 1 : at + 5], "big")):
            self._on_message(pb.WatchTopicsResponse.FromString(held[at + 5 : at + size]))
            at += size
        self._messages = held[at:]

    def _on_message(self, answer: pb.WatchTopicsResponse) -> None:
        readers = self._readers
        if answer.HasField("caught_up"):
            self._opening.release()
            readers.caught_up_left -= 1
            if not readers.caught_up_left:
                readers.caught_up.set()
        count = answer.columns.count
        if not count or self._count >= readers.records:
            return
        now_ns = time.monotonic_ns()
        readers.first_ns = readers.first_ns or now_ns
        readers.waited_ns.append(now_ns - STAMP.unpack_from(answer.columns.data.values)[0])
        self._count += count
        if self._count >= readers.records:
            readers.last_ns = now_ns
            readers.done_left -= 1
            if not readers.done_left:
                readers.done.set()


async def main(address: str, topic: str, subscribers: int, records: int) -> None:
    """Open, read, tell."""
    wanted = pb.WatchTopic(topic=topic, point=pb.START_POINT_TAIL)
    request = pb.WatchTopicsRequest(
        topics=[wanted], format=types_pb2.BATCH_FORMAT_COLUMNS, heartbeat_ms=HEARTBEAT_MS
    ).SerializeToString()
    readers, opening = Readers(subscribers, records), asyncio.Semaphore(OPENING_MAX)
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    for _ in range(subscribers):
        await opening.acquire()
        await loop.create_connection(lambda: Reader(readers, request, opening), host, int(port))
    await readers.caught_up.wait()
    print("ready", flush=True)
    await readers.done.wait()
    print(readers.told(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])))
