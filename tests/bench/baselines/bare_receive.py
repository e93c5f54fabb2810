"""P5's baseline: nats-py alone gets every message of a bucket by callback and does nothing. Prints messages a second.

`python -m tests.bench.baselines.bare_receive NATS BUCKET COUNT`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import nats
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

if TYPE_CHECKING:
    from nats.aio.msg import Msg

HEARTBEAT_S = 5.0


async def receive(url: str, bucket: str, count: int) -> float:
    """Seconds per message turned round: messages a second, from asking to the last one."""
    client = await nats.connect(url)
    seen = 0
    over = asyncio.Event()

    async def take(_message: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            over.set()

    started = time.perf_counter()
    # No bound: the library drops what a bound would not hold, and doing nothing needs none. With flow control: the server
    # cuts off a client that it is 64 MB ahead of.
    await client.jetstream().subscribe(
        f"$KV.{bucket}.>",
        stream=f"KV_{bucket}",
        cb=take,
        manual_ack=True,
        config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE),
        flow_control=True,
        idle_heartbeat=HEARTBEAT_S,
        pending_msgs_limit=-1,
        pending_bytes_limit=-1,
    )
    await over.wait()
    seconds = time.perf_counter() - started
    await client.close()
    return count / seconds


if __name__ == "__main__":
    print(uvloop.run(receive(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
