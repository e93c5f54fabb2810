"""The disturbing subscriber of P14: `python -m tests.bench.disturber KIND ADDRESS TOPIC`; KIND is stopped, behind, scan or
splits. Says `ready` once it does."""

from __future__ import annotations

import asyncio
import sys

import grpc
import uvloop

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import log_pb2, log_pb2_grpc, types_pb2
from tests.bench.split_streams import read_all
from tests.bench.watch_readers import OPTIONS, WATCH

READ_LIMIT = 10_000
SPLIT_STREAMS = 8


async def watch(channel: grpc.aio.Channel, topic: str, *, reads: bool) -> None:
    """Watch `topic`: from its first record on to its head, again and again; or from its end, and never read."""
    point = pb.START_POINT_EARLIEST if reads else pb.START_POINT_TAIL
    request = pb.WatchTopicsRequest(
        topics=[pb.WatchTopic(topic=topic, point=point)], format=types_pb2.BATCH_FORMAT_COLUMNS
    )
    method: grpc.aio.UnaryStreamMultiCallable[pb.WatchTopicsRequest, bytes]
    method = channel.unary_stream(WATCH, request_serializer=pb.WatchTopicsRequest.SerializeToString)
    told = False
    while True:
        call = method(request)
        async for frame in call:
            if not told:
                told = True
                print("ready", flush=True)
            if not reads:
                await asyncio.Event().wait()
            if pb.WatchTopicsResponse.FromString(frame).HasField("caught_up"):
                break
        call.cancel()


async def scan(channel: grpc.aio.Channel, topic: str) -> None:
    """Read all of `topic` from the store, again and again."""
    stub = log_pb2_grpc.LogServiceStub(channel)
    print("ready", flush=True)
    after_seq = 0
    while True:
        answer = await stub.ReadRecords(
            log_pb2.ReadRecordsRequest(
                topic=topic, after_seq=after_seq, limit=READ_LIMIT, format=types_pb2.BATCH_FORMAT_COLUMNS
            )
        )
        after_seq = answer.next_after_seq if answer.next_after_seq > after_seq else 0


async def scan_splits(channel: grpc.aio.Channel, topic: str) -> None:
    """Read all of `topic` by its splits, many streams at a time, again and again."""
    print("ready", flush=True)
    while True:
        await read_all(channel, topic, streams=SPLIT_STREAMS)


async def main(kind: str, address: str, topic: str) -> None:
    """Disturb until stopped."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        if kind == "scan":
            await scan(channel, topic)
        elif kind == "splits":
            await scan_splits(channel, topic)
        else:
            await watch(channel, topic, reads=kind == "behind")


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
