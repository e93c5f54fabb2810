"""An ingest that gets malformed calls answers or refuses them, and keeps serving."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.ingest.role import SERVICES
from tests.support.access import methods
from tests.support.cluster.processes import store_server
from tests.support.fuzz import Caller, check_bytes, check_messages, on_a_thread
from tests.support.ingest.served import served_ingest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.ingest.served import ServedIngest
    from tests.support.nats.server import NatsServer

pytestmark = pytest.mark.sim

METHODS = methods(*SERVICES)
STATUS = "/eddyline.v1.ClusterService/GetStatus"


@asynccontextmanager
async def whole(url: str, folder: Path) -> AsyncIterator[ServedIngest]:
    async with store_server(folder) as store, served_ingest(url, store, "fuzzed") as served:
        yield served


@pytest.fixture(scope="module")
def caller(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with on_a_thread(lambda: whole(nats_server.url, folder)) as served:
        caller = Caller(served.address)
        yield caller
        caller.close()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_random_requests_are_answered_or_refused(caller: Caller, method: str) -> None:
    check_messages(caller, method, METHODS[method].request, examples=15)
    check_bytes(caller, method, examples=15)
    assert caller.code(STATUS, b"") is grpc.StatusCode.OK
