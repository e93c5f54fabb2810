"""Delivery answers or refuses random requests, and continues to serve."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.delivery.role import SERVICES
from tests.support.access import methods
from tests.support.delivery.role import served_delivery
from tests.support.fuzz import Caller, check_bytes, check_messages, on_a_thread
from tests.support.store.simulated import kv_topic, log_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.delivery.role import ServedDelivery

pytestmark = pytest.mark.sim

METHODS = methods(*SERVICES)
STATUS = "/eddyline.v1.ClusterService/GetStatus"


@asynccontextmanager
async def with_topics() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as served:
        await log_topic(served.store, name="log")
        await kv_topic(served.store)
        yield served


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with on_a_thread(with_topics) as served:
        caller = Caller(served.address)
        yield caller
        caller.close()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_random_requests_are_answered_or_refused(caller: Caller, method: str) -> None:
    check_messages(caller, method, METHODS[method].request, examples=40)
    check_bytes(caller, method, examples=20)
    assert caller.code(STATUS, b"") is grpc.StatusCode.OK
