"""How fast a local fold applies, opens and sorts: `python -m tests.bench.local_fold [KEYS]`. Figures for the eye, no target.

Values of 100 bytes under keys of 27, in batches of 64 KiB as delivery cuts them, as records and as frames of a watch (what
a follower takes apart besides). Apply = to memory and to the file, without syncs, which are in the background.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.client.local_fold.follow import fold_changes
from eddyline.client.local_fold.frame import FoldPosition, FoldScope
from eddyline.client.local_fold.local_fold import open_fold, read_fold
from eddyline.client.local_fold.storage import FoldStorage
from eddyline.client.watch.plan import WatchPlan, WatchTopic
from eddyline.core.runtime.fs import RealFs
from eddyline.v1 import delivery_pb2, types_pb2
from tests.support.cluster.process_figures import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA_BYTES = 100
BATCH = 500


def frames(count: int, rng: random.Random) -> Iterator[bytes]:
    """Frames of a watch with every key once, in random order, serialized."""
    keys = [b"user/%016d/state" % number for number in range(count)]
    rng.shuffle(keys)
    data = rng.randbytes(DATA_BYTES)
    for at in range(0, count, BATCH):
        rows = [
            types_pb2.Record(seq=seq, ts_ms=1, op=types_pb2.OP_PUT, key=key, data=data, version=seq.to_bytes(8, "big"))
            for seq, key in enumerate(keys[at : at + BATCH], at + 1)
        ]
        cursor = types_pb2.Cursor(topic="t", epoch=1, seq=rows[-1].seq)
        frame = delivery_pb2.WatchTopicsResponse(topic="t", cursor=cursor, rows=types_pb2.RecordBatch(records=rows))
        yield frame.SerializeToString()


async def main(count: int) -> None:
    """Measure, and say."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.fold"
        keeper = FoldStorage(RealFs(), path, FoldScope("t"), memory_bytes_max=1 << 40)
        await keeper.begin_base(0)
        await keeper.finish_base(FoldPosition(1, 0), 0)
        made = list(frames(count, random.Random(1)))
        before = resident_bytes()
        await apply(keeper, made, "new keys")
        print(
            f"memory: {(resident_bytes() - before) / count:.0f} bytes a key, counted {keeper.live.memory_bytes / count:.0f}"
        )
        await apply(keeper, made, "the same keys again")
        say("compaction", await timed(keeper._compact()), count)
        await keeper.close()
        print(f"file: {os.stat(path).st_size / count:.0f} bytes a key")
        start = time.process_time()
        async with open_fold(path, "t", memory_bytes_max=1 << 40) as fold:
            say("open", time.process_time() - start, count)
            start = time.process_time()
            next(fold.range(limit=1))
            say("first range (sorts)", time.process_time() - start, count)
            start = time.process_time()
            found = sum(1 for _ in fold.range())
            say("range of all", time.process_time() - start, found)
            keys = [b"user/%016d/state" % number for number in range(0, count, 10)]
            start = time.process_time()
            for key in keys:
                fold.get(key)
            say("get", time.process_time() - start, len(keys))
        start = time.process_time()
        read_fold(path, memory_bytes_max=1 << 40)
        say("read offline", time.process_time() - start, count)


async def apply(keeper: FoldStorage, made: list[bytes], what: str) -> None:
    """Apply frames as a follower does, from their bytes."""
    plan = WatchPlan([WatchTopic("t", "tail")], heartbeat_ms=5_000)
    start, count, apart_s = time.process_time(), 0, 0.0
    for data in made:
        began = time.process_time()
        event = plan.accept(delivery_pb2.WatchTopicsResponse.FromString(data))
        changes = fold_changes(event.records)  # type: ignore[union-attr]
        apart_s += time.process_time() - began
        await keeper.commit(changes, FoldPosition(*event.position))  # type: ignore[union-attr]
        count += len(changes)
    taken_s = time.process_time() - start
    say(f"apply, {what}, with the frames' parsing", taken_s, count)
    say(f"apply, {what}, alone", taken_s - apart_s, count)


async def timed(work: object) -> float:
    """Seconds that it takes."""
    start = time.process_time()
    await work  # type: ignore[misc]
    return time.process_time() - start


def say(what: str, seconds: float, count: int) -> None:
    """A figure."""
    print(f"{what}: {seconds:.2f} s for {count}, {count / seconds:,.0f}/s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
