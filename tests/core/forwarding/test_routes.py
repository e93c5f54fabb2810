"""The table of routes has every call of the contract, and agrees with the names in its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.auth.rules import RULES
from eddyline.core.codec.row_split import SplitRequest
from eddyline.core.forwarding.routes import (
    APPEND_CALLS,
    ENTRY_CALLS,
    FOLD_SERVICE,
    LOG_SERVICE,
    READ_CALLS,
    ROUTES,
    TOPIC_CALLS,
    TOPIC_SERVICE,
    Route,
    methods_of,
    requested_source,
    requested_topic,
)
from eddyline.v1 import apply_pb2, log_pb2, topic_pb2
from tests.support.access import methods

if TYPE_CHECKING:
    from google.protobuf.message import Message

METHODS = methods()


def parsed(path: str, request: Message) -> object:
    return SplitRequest(request) if path in methods_of(LOG_SERVICE, APPEND_CALLS) else request


def naming(path: str) -> Message:
    """Return a request that names the topic `t` and the source `s` in every field that may."""
    request = METHODS[path].request()
    match request:
        case topic_pb2.CreateTopicRequest():
            request.topic.name = "t"
        case log_pb2.AppendStreamRequest():
            request.start.topic = "t"
        case apply_pb2.PutSourceRequest():
            request.definition.name, request.definition.topic = "s", "t"
        case apply_pb2.FollowTopicsRequest():
            request.add.topic = "t"
        case _:
            for field, value in (("topic", "t"), ("from_topic", "u"), ("source", "s")):
                if field in request.DESCRIPTOR.fields_by_name:
                    setattr(request, field, value)
    return request


def test_every_call_of_the_contract_has_a_route_and_every_route_a_call() -> None:
    assert set(ROUTES) == set(METHODS)
    assert set(ROUTES) <= set(RULES)


def test_lists_of_calls_that_roles_take_are_of_the_contract() -> None:
    taken = methods_of(TOPIC_SERVICE, TOPIC_CALLS) | methods_of(LOG_SERVICE, (*APPEND_CALLS, *READ_CALLS))
    assert taken | methods_of(FOLD_SERVICE, ENTRY_CALLS) <= set(METHODS)
    assert methods_of(TOPIC_SERVICE, TOPIC_CALLS) == {path for path in METHODS if "/eddyline.v1.TopicService/" in path}


@pytest.mark.parametrize("path", sorted(METHODS))
def test_every_request_of_a_topic_or_source_route_names_it(path: str) -> None:
    place, request = ROUTES[path], parsed(path, naming(path))
    assert requested_topic(path, request) == ("t" if place in (Route.TOPIC, Route.NEW_SOURCE, Route.EACH) else None)
    assert requested_source(path, request) == ("s" if place in (Route.SOURCE, Route.NEW_SOURCE) else None)


@pytest.mark.parametrize("path", sorted(METHODS))
def test_calls_that_name_a_topic_or_source_of_a_store_are_routed(path: str) -> None:
    service = path.split("/")[1].removeprefix("eddyline.v1.")
    if service not in ("TopicService", "LogService", "FoldService", "SegmentService", "ApplyService"):
        return
    fields = METHODS[path].request.DESCRIPTOR.fields_by_name
    names_one = bool({"topic", "source", "definition", "start"} & set(fields)) or path.endswith("FollowTopics")
    assert names_one is (ROUTES[path] not in (Route.HERE, Route.ALL))


def test_a_step_that_names_nothing_has_no_topic() -> None:
    append = SplitRequest(log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch()))
    assert requested_topic(f"/{LOG_SERVICE}/AppendStream", append) is None
    grant = apply_pb2.FollowTopicsRequest(credit_bytes=1)
    assert requested_topic("/eddyline.v1.ApplyService/FollowTopics", grant) is None
