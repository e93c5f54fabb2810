"""An idle role has imported what it serves with, and none of the packages that only some calls or settings need."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.v1 import fold_pb2, fold_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.processes import free_address, nats_server, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

UNNEEDED: Final = (
    *("pyarrow", "pandas", "obstore"),
    *("opentelemetry", "prometheus_client", "cryptography", "nkeys", "nacl"),
    *("google.protobuf.descriptor_pb2", "grpc_reflection.v1alpha._base"),
    *("eddyline.client", "eddyline.cli", "eddyline.export", "eddyline.store.export", "eddyline.store.fsck.command"),
    *("eddyline.store.artifacts.object_store", "numpy.testing", "numpy.random", "argparse", "unittest", "pytest"),
)
"""Each takes 1 to 40 MiB of memory or 10 to 900 ms of processor time; a role has 80 MiB and 1 s (`make bench ROWS=P25`)."""
ONLY_INGEST: Final = ("nats",)
ONLY_STORE: Final = ("rocksdict",)
ARROW: Final = ["pyarrow", "pyarrow.compute"]
IMPORT_S_MAX: Final = 30
LINE_BYTES_MAX: Final = 1 << 20
CODE: Final = """
import json, os, sys, threading

def list_modules():
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(sorted(sys.modules)) + "\\n")
        sys.stdout.flush()

threading.Thread(target=list_modules, daemon=True).start()
from eddyline.{role}.__main__ import main
sys.exit(main(os.environ))
"""


class RunningRole:
    """A role as a process that lists its modules on request."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    async def unneeded(self, *more: str) -> list[str]:
        """Return which of `UNNEEDED` and `more` it has imported by now."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"\n")
        modules = set(json.loads(await self._process.stdout.readline()))
        assert {"grpc", "numpy", "uvloop"} <= modules
        return [name for name in (*UNNEEDED, *more) if name in modules]


@asynccontextmanager
async def running(role: str, **settings: str) -> AsyncIterator[RunningRole]:
    """A role once it is ready."""
    address = free_address()
    listen = {f"EDDYLINE_{role.upper()}_LISTEN": address, "EDDYLINE_COMMON_LOG_LEVEL": "WARNING"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CODE.replace("{role}", role)),
        env={**os.environ, **listen, **settings},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(f"{role} ready at ".encode())
        await serving(address)
        yield RunningRole(process, address)
    finally:
        process.terminate()
        await process.wait()


async def test_idle_roles_have_imported_no_package_that_they_do_not_need(tmp_path: Path) -> None:
    async with running("store", EDDYLINE_STORE_DATA_DIR=str(tmp_path / "store")) as store:
        assert await store.unneeded(*ONLY_INGEST) == []
        at_store = {"EDDYLINE_COMMON_STORE_ADDRESSES": store.address}
        async with running("delivery", **at_store) as delivery:
            assert await delivery.unneeded(*ONLY_INGEST, *ONLY_STORE) == []
        async with (
            nats_server(tmp_path) as nats_url,
            running("ingest", **at_store, EDDYLINE_INGEST_NATS_URL=nats_url) as ingest,
        ):
            assert await ingest.unneeded(*ONLY_STORE) == []


async def test_store_imports_arrow_after_its_first_topic_before_it_is_ready_with_topics_and_never_pandas(
    tmp_path: Path,
) -> None:
    data_dir = {"EDDYLINE_STORE_DATA_DIR": str(tmp_path / "store")}
    async with running("store", **data_dir) as store, grpc.aio.insecure_channel(store.address) as channel:
        assert await store.unneeded() == []
        topic = topic_pb2.Topic(name="a", kind=topic_pb2.TOPIC_KIND_KV)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        record = types_pb2.Record(op=types_pb2.OP_PUT, key=b"k", data=b"value")
        request = log_pb2.AppendRecordsRequest(topic="a", rows=types_pb2.RecordBatch(records=[record]))
        await log_pb2_grpc.LogServiceStub(channel).AppendRecords(request)
        async with asyncio.timeout(IMPORT_S_MAX):
            while await store.unneeded("pyarrow.compute") != ARROW:
                pass  # in the background; each look is a message there and back
    async with running("store", **data_dir) as store, grpc.aio.insecure_channel(store.address) as channel:
        assert await store.unneeded("pyarrow.compute") == ARROW
        call = fold_pb2_grpc.FoldServiceStub(channel).RangeEntries(fold_pb2.RangeEntriesRequest(topic="a"))
        assert [answer async for answer in call]
        assert await store.unneeded("pyarrow.compute") == ARROW
