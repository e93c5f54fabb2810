"""A topic read by its splits, several streams at a time, as a scan engine does: answers are taken as bytes, and only
the last one of a split is looked into."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.v1 import segment_pb2 as pb
from eddyline.v1 import segment_pb2_grpc

if TYPE_CHECKING:
    import grpc

READ_SPLIT = "/eddyline.v1.SegmentService/ReadSplit"
SPLIT_RECORDS = 131_072
"""Half a segment: enough splits for every stream, of a million records too."""


async def planned(channel: grpc.aio.Channel, topic: str) -> pb.PlanSplitsResponse:
    """All of a topic in splits."""
    request = pb.PlanSplitsRequest(topic=topic, max_records=SPLIT_RECORDS)
    return await segment_pb2_grpc.SegmentServiceStub(channel).PlanSplits(request)


async def read_all(channel: grpc.aio.Channel, topic: str, *, streams: int) -> int:
    """Read a topic once; its records."""
    plan = await planned(channel, topic)
    splits = list(plan.splits)
    method: grpc.aio.UnaryStreamMultiCallable[pb.ReadSplitRequest, bytes]
    method = channel.unary_stream(READ_SPLIT, request_serializer=pb.ReadSplitRequest.SerializeToString)

    async def reader() -> int:
        count = 0
        while splits:
            last = b""
            async for answer in method(pb.ReadSplitRequest(topic=topic, epoch=plan.epoch, split=splits.pop())):
                last = answer
            end = pb.ReadSplitResponse.FromString(last)
            assert end.HasField("end"), "a split that is not complete"
            count += end.end.row_count
        return count

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(reader()) for _ in range(streams)]
    return sum(each.result() for each in readers)
