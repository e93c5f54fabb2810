"""A store that is sent what nobody would send answers or refuses, and serves on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.store.__main__ import SERVICES
from eddyline.v1 import log_pb2, topic_pb2, types_pb2
from tests.support.access import Keys, methods, secret_of
from tests.support.fuzz import Caller, check_bytes, check_messages, on_a_thread
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sim

METHODS = methods(*SERVICES)
OTHERS = ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Check")
STATUS = "/eddyline.v1.ClusterService/GetStatus"


EXAMPLES = 15


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("fuzzed")
    keys = Keys(folder)
    keys.add("fuzzer", "read", "write", "delete", "admin", "role")
    with on_a_thread(lambda: served_store(folder / "data", access=keys.access())) as store:
        caller = Caller(store.address, (("authorization", f"Bearer {secret_of('fuzzer')}"),))
        for name, kind in (("log", topic_pb2.TOPIC_KIND_LOG), ("kv", topic_pb2.TOPIC_KIND_KV)):
            topic = topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name=name, kind=kind))
            caller.code("/eddyline.v1.TopicService/CreateTopic", topic.SerializeToString())
            records = types_pb2.RecordBatch(records=[types_pb2.Record(key=b"k", data=b"v")])
            append = log_pb2.AppendRecordsRequest(topic=name, rows=records)
            caller.code("/eddyline.v1.LogService/AppendRecords", append.SerializeToString())
        yield caller
        caller.close()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_random_messages_are_answered_or_refused(caller: Caller, method: str) -> None:
    check_messages(caller, method, METHODS[method].request, examples=EXAMPLES)
    assert caller.code(STATUS, b"") is grpc.StatusCode.OK


@pytest.mark.parametrize("method", sorted((*METHODS, *OTHERS)))
def test_random_bytes_are_refused(caller: Caller, method: str) -> None:
    check_bytes(caller, method, examples=EXAMPLES)
    assert caller.code(STATUS, b"") is grpc.StatusCode.OK
