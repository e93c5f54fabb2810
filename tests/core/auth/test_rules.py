"""The table of scopes has every call of the contract, and checks every name in every body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.auth.grant import Grant, Scope
from eddyline.core.auth.interceptor import authorize
from eddyline.core.auth.rules import RULES
from eddyline.core.codec.row_split import SplitRequest
from eddyline.core.errors import PermissionDenied
from tests.support.access import methods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

METHODS = methods()
NAMES = {"topic", "source", "bucket", "stream", "from_topic", "dead_letter_topic", "name"}
"""Fields that name a topic, a source or a bucket, whatever message they are in."""
NOT_ASKED_FOR = {
    "eddyline.v1.Cursor.topic",  # of a watch's start: the watched topic's, or empty
    "eddyline.v1.MetaEntry.name",  # of a header
    "eddyline.v1.Topic.source",  # output only
}
MINE, FOREIGN = "mine.a", "others.a"
WITHOUT_NAMES = {
    "/eddyline.v1.TopicService/ListTopics",
    "/eddyline.v1.SourceService/ListSources",
    "/eddyline.v1.ClusterService/GetTopology",
    "/eddyline.v1.ClusterService/GetStatus",
}
"""Lists, filtered where they are made, and what is no topic's."""
EVERYTHING = frozenset(Scope) - {Scope.ROLE}


def test_every_call_of_the_contract_has_a_rule() -> None:
    assert set(METHODS) - set(RULES) == set()


def test_every_rule_is_of_a_call() -> None:
    assert {path for path in RULES if path.startswith("/eddyline.")} - set(METHODS) == set()


def test_only_health_is_open_to_all() -> None:
    opened = {path for path, rule in RULES.items() if rule.is_open}
    assert opened == {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}


def test_every_call_needs_a_scope_that_some_key_has_not() -> None:
    unscoped = {path for path, rule in RULES.items() if rule.scopes >= EVERYTHING and "/eddyline." in path}
    assert unscoped == {
        "/eddyline.v1.ClusterService/GetTopology",
        "/eddyline.v1.ClusterService/GetStatus",
        "/eddyline.v1.TopicService/GetTopic",
    }


def named_bodies(message: Message, depth: int = 0) -> Iterator[tuple[str, Message]]:
    """The message once for each field in it that names something, with a foreign name there and our own in all others."""
    for field in message.DESCRIPTOR.fields:
        if field.name in NAMES and field.type == field.TYPE_STRING and field.full_name not in NOT_ASKED_FOR:
            made = type(message)()
            for other in message.DESCRIPTOR.fields:
                if other.name in NAMES and other.type == other.TYPE_STRING:
                    setattr(made, other.name, MINE)
            setattr(made, field.name, FOREIGN)
            yield field.full_name, made
        elif field.type == field.TYPE_MESSAGE and depth < 4:
            inner = type(message)()
            child = getattr(inner, field.name)
            kind = child.add() if field.is_repeated else child
            for where, changed in named_bodies(kind, depth + 1):
                made = type(message)()
                for other in message.DESCRIPTOR.fields:
                    if other.name in NAMES and other.type == other.TYPE_STRING:
                        setattr(made, other.name, MINE)
                place = getattr(made, field.name)
                (place.add() if field.is_repeated else place).MergeFrom(changed)
                yield where, made


def judged(path: str, request: Message, *scopes: Scope) -> PermissionDenied | None:
    rule = RULES[path]
    via = "role" if rule.for_roles else ""
    grant = Grant("tester", frozenset(scopes), ("mine.",), via=via)
    apart = path.startswith("/eddyline.v1.LogService/Append")
    try:
        authorize(rule, path, grant, SplitRequest(request) if apart else request)
    except PermissionDenied as error:
        return error
    return None


ON_BEHALF = [path for path in METHODS if not RULES[path].for_roles or RULES[path].behalf is not None]


@pytest.mark.parametrize("path", sorted(set(ON_BEHALF) - WITHOUT_NAMES))
def test_every_name_in_a_body_is_checked(path: str) -> None:
    bodies = list(named_bodies(METHODS[path].request()))
    assert bodies
    for where, body in bodies:
        error = judged(path, body, *EVERYTHING)
        assert error is not None, where
        assert error.metadata["name"] == FOREIGN, where


@pytest.mark.parametrize("path", sorted(ON_BEHALF))
def test_a_key_without_the_scope_is_refused(path: str) -> None:
    rule = RULES[path]
    needed = rule.behalf if rule.for_roles and rule.behalf is not None else rule.scopes
    for scope in EVERYTHING - needed:
        error = judged(path, METHODS[path].request(), scope)
        assert error is not None
        assert error.metadata["scopes"]


def test_a_role_s_own_calls_do_not_depend_on_its_caller() -> None:
    assert (
        judged("/eddyline.v1.ApplyService/GetSource", METHODS["/eddyline.v1.ApplyService/GetSource"].request()) is None
    )
