"""A store of two that is sent what nobody would send answers, refuses or passes it on, and both serve on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.forwarding.routes import ROUTES, Route
from eddyline.v1 import topic_pb2
from tests.support.access import methods
from tests.support.fuzz import Caller, check_bytes, check_messages, on_a_thread
from tests.support.store.shard_pair import served_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sim

METHODS = {path: method for path, method in methods().items() if ROUTES[path] is not Route.HERE}
OK = grpc.StatusCode.OK
STATUS = "/eddyline.v1.ClusterService/GetStatus"


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, ...]]:
    folder = tmp_path_factory.mktemp("fuzzed")
    with on_a_thread(lambda: served_pair(folder)) as pair:
        callers = tuple(Caller(store.address) for store in pair)
        for name, kind in (("log", topic_pb2.TOPIC_KIND_LOG), ("kv", topic_pb2.TOPIC_KIND_KV)):
            topic = topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name=name, kind=kind))
            assert callers[0].code("/eddyline.v1.TopicService/CreateTopic", topic.SerializeToString()) is OK
        yield callers
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_random_requests_are_answered_or_refused(callers: tuple[Caller, ...], method: str) -> None:
    for caller in callers:
        check_messages(caller, method, METHODS[method].request, examples=10)
        check_bytes(caller, method, examples=5)
    assert {caller.code(STATUS, b"") for caller in callers} == {OK}
