"""One record's walk: the calls of one ApplyBatch of two rows, from the servicer to its answer, on the simulated disk.

`python -m tests.house.walk` prints how many calls, files and rooms a reader meets, how often the walk changes file and how
often it returns to a file that it had left. `--path` prints the walk itself. `test_walk.py` holds the bounds.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.store.rpc.apply_service import ApplyServicer
from eddyline.store.rpc.shard_handle import ShardHandle
from eddyline.v1 import apply_pb2
from tests.house.test_tidy import ROOT
from tests.store.rpc.requests import columns
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

PRODUCT: Final = tuple(f"{ROOT}/{folder}/" for folder in ("libs", "services"))
GENERATED: Final = "/eddyline/v1/"


class Call(NamedTuple):
    """One call of a product function: its file below the package root, and its name."""

    file: str
    name: str

    @property
    def room(self) -> str:
        """The directory of the file."""
        return str(Path(self.file).parent)


class Walk(NamedTuple):
    """The calls of one request in their order."""

    calls: Sequence[Call]

    @property
    def files(self) -> list[str]:
        """Files in the order of the first visit."""
        return list(dict.fromkeys(call.file for call in self.calls))

    @property
    def rooms(self) -> list[str]:
        """Rooms in the order of the first visit."""
        return list(dict.fromkeys(call.room for call in self.calls))

    @property
    def stays(self) -> list[list[Call]]:
        """Runs of calls in one file."""
        stays: list[list[Call]] = []
        for call in self.calls:
            if stays and stays[-1][0].file == call.file:
                stays[-1].append(call)
            else:
                stays.append([call])
        return stays

    @property
    def return_count(self) -> int:
        """Changes to a file that the walk had left before."""
        return len(self.stays) - len(self.files)


def walk_apply_batch() -> Walk:
    """Record the calls of the second of two ApplyBatches with `sys.setprofile`: the first one has made what is made once."""
    with asyncio.Runner() as runner:
        return runner.run(_walk())


async def _walk() -> Walk:
    calls: list[Call] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PRODUCT) and GENERATED not in name:
            calls.append(Call(name.partition("/eddyline/")[2], frame.f_code.co_qualname))

    async with sim_store() as shard:
        handle = ShardHandle()
        handle.open(shard)
        await shard.create_topic("kv", Kind.KV, TopicConfig())
        await shard.put_source(SourceDefinition(name="source", topic="kv", bucket="bucket"))
        lease = await shard.acquire_lease("source", holder="holder", lease_ms=10_000)
        servicer = ApplyServicer(handle)
        await servicer.ApplyBatch(_request(lease.fence, b"", b"1"), _Context())
        sys.setprofile(record)
        try:
            await servicer.ApplyBatch(_request(lease.fence, b"1", b"2"), _Context())
        finally:
            sys.setprofile(None)
    return Walk(calls)


class _Context:
    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


def _request(fence: int, previous: bytes, new: bytes) -> apply_pb2.ApplyBatchRequest:
    batch = columns(key=(b"a", b"b"), data=(b"1", b"2"))
    return apply_pb2.ApplyBatchRequest(source="source", fence=fence, previous=previous, new=new, batch=batch)


def main(arguments: Sequence[str]) -> int:
    """Print the figures of the walk; with `--path` every stay in a file too."""
    walk = walk_apply_batch()
    if "--path" in arguments:
        for stay in walk.stays:
            sys.stdout.write(f"{stay[0].file:42} {', '.join(call.name for call in stay)}\n")
    for what, count in (
        ("calls", len(walk.calls)),
        ("files", len(walk.files)),
        ("rooms", len(walk.rooms)),
        ("file changes", len(walk.stays)),
        ("returns to a file already left", walk.return_count),
    ):
        sys.stdout.write(f"{what:32} {count:4}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
