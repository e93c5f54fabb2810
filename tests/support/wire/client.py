"""Calls of bytes by the grpc.aio client, with their types, and waiting for a fact."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc


def unary_unary(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """A method of one message each way."""
    return channel.unary_unary(path)


def unary_stream(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    """A method with a stream of answers."""
    return channel.unary_stream(path)


def stream_unary(channel: grpc.aio.Channel, path: str) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
    """A method with a stream of requests."""
    return channel.stream_unary(path)


def stream_stream(channel: grpc.aio.Channel, path: str) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    """A method of streams both ways."""
    return channel.stream_stream(path)


async def until(fact: Callable[[], object]) -> None:
    """Wait until `fact` holds."""
    async with asyncio.timeout(HANG_S):
        while True:
            if fact():
                return
            await asyncio.sleep(0.001)
