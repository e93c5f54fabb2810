"""The table of which scope each call needs, and which names its body has.

A call that is not in the table is refused to every caller. A caller needs one of the scopes of the call's rule, and prefixes
that cover every name in the body; `more` returns the scope that a body needs in addition. A role needs no scope. When a role
calls for a principal, the scopes and prefixes of that principal count. For calls that only roles may make, `behalf` is the
scope that the principal needs; without it the call is the role's own.
Lists are filtered where they are made, by `eddyline.core.auth.grant.caller`.
Health needs no key, since load balancers have none. Reflection needs any key; channelz, which shows addresses of clients,
needs `admin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from eddyline.core.auth.grant import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Request: TypeAlias = Any
"""A request of the call; the table knows its type."""

READ: Final = frozenset((Scope.READ,))
WRITE: Final = frozenset((Scope.WRITE,))
DELETE: Final = frozenset((Scope.DELETE,))
ADMIN: Final = frozenset((Scope.ADMIN,))
ANY: Final = frozenset(Scope)
SEE: Final = READ | ADMIN
"""To list names: a caller that makes and changes topics and sources must see them."""
ROLES: Final = frozenset((Scope.ROLE,))


def _no_names(_request: Request) -> Iterable[str]:
    return ()


def _always(_request: Request) -> bool:
    return True


def _no_more(_request: Request) -> Scope | None:
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirements of one call.

    `names` returns the names in a request, for each message of a stream of requests. `audited` returns True for requests
    that go to the audit log: those that delete, or change settings of others.
    """

    scopes: frozenset[Scope]
    names: Callable[[Request], Iterable[str]] = _no_names
    more: Callable[[Request], Scope | None] = _no_more
    behalf: frozenset[Scope] | None = None
    audited: Callable[[Request], bool] | None = None
    is_open: bool = False
    is_watch: bool = False

    @property
    def for_roles(self) -> bool:
        """Return True if only roles may make the call."""
        return self.scopes == ROLES


def _topic(request: Request) -> Iterable[str]:
    return (request.topic,)


def _source(request: Request) -> Iterable[str]:
    return (request.source,)


def _new_topic(request: Request) -> Iterable[str]:
    return (request.topic.name,)


def _append(request: Request) -> Iterable[str]:
    return (request.message.topic,)


def _append_step(request: Request) -> Iterable[str]:
    step = request.message
    return (step.start.topic,) if step.WhichOneof("step") == "start" else ()


def _append_creates(request: Request) -> Scope | None:
    return Scope.ADMIN if request.message.HasField("create") else None


def _append_step_creates(request: Request) -> Scope | None:
    step = request.message
    return Scope.ADMIN if step.WhichOneof("step") == "start" and step.start.HasField("create") else None


def _import(request: Request) -> Iterable[str]:
    return (request.topic, request.from_topic) if request.from_topic else (request.topic,)


def _watched(request: Request) -> Iterable[str]:
    return [topic.topic for topic in request.topics]


def _explained(request: Request) -> Iterable[str]:
    named = _watched(request.watch)
    return [*named, request.topic] if request.topic else named


def _definition(request: Request) -> Iterable[str]:
    definition = request.definition
    names = (definition.name, definition.topic, definition.bucket, definition.stream, definition.dead_letter_topic)
    return [name for index, name in enumerate(names) if name or index < 2]


def _change(request: Request) -> Iterable[str]:
    definition = request.definition
    names = (definition.name, definition.topic, definition.bucket, definition.stream, definition.dead_letter_topic)
    return [request.source, *(name for name in names if name)]


def _letters(request: Request) -> Iterable[str]:
    return [name for name in (request.source, request.dead_letter_topic) if name]


def _repairs(request: Request) -> Scope | None:
    return Scope.ADMIN if request.repair else None


def _entry(request: Request) -> Iterable[str]:
    return (request.bucket, request.wait.source) if request.wait.source else (request.bucket,)


_HEALTH: Final = "/grpc.health.v1.Health/"
_CHANNELZ: Final = "/grpc.channelz.v1.Channelz/"
_TOPICS: Final = "/eddyline.v1.TopicService/"
_LOG: Final = "/eddyline.v1.LogService/"
_FOLD: Final = "/eddyline.v1.FoldService/"
_SEGMENT: Final = "/eddyline.v1.SegmentService/"
_APPLY: Final = "/eddyline.v1.ApplyService/"
_SOURCES: Final = "/eddyline.v1.SourceService/"
_KV: Final = "/eddyline.v1.KvService/"
_DELIVERY: Final = "/eddyline.v1.DeliveryService/"
_CLUSTER: Final = "/eddyline.v1.ClusterService/"

RULES: Final[dict[str, Rule]] = {
    _HEALTH + "Check": Rule(ANY, is_open=True),
    _HEALTH + "Watch": Rule(ANY, is_open=True),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(ANY),
    **{
        _CHANNELZ + call: Rule(ADMIN)
        for call in (
            "GetTopChannels",
            "GetServers",
            "GetServer",
            "GetServerSockets",
            "GetChannel",
            "GetSubchannel",
            "GetSocket",
        )
    },
    _CLUSTER + "GetTopology": Rule(ANY),
    _CLUSTER + "GetStatus": Rule(ANY),
    _TOPICS + "CreateTopic": Rule(ADMIN, _new_topic, audited=_always),
    _TOPICS + "UpdateTopic": Rule(ADMIN, _topic, audited=_always),
    _TOPICS + "GetTopic": Rule(ANY, _topic),
    _TOPICS + "ListTopics": Rule(SEE),
    _TOPICS + "DeleteTopic": Rule(DELETE, _topic, audited=_always),
    _TOPICS + "EraseTopic": Rule(DELETE, _topic, audited=_always),
    _LOG + "AppendRecords": Rule(WRITE, _append, _append_creates),
    _LOG + "AppendStream": Rule(WRITE, _append_step, _append_step_creates),
    _LOG + "ReadRecords": Rule(READ, _topic),
    _LOG + "StreamRecords": Rule(READ, _topic),
    _LOG + "FindSeq": Rule(READ, _topic),
    _LOG + "DeleteRecords": Rule(DELETE, _topic, audited=_always),
    _FOLD + "GetEntry": Rule(READ, _topic),
    _FOLD + "BatchGetEntries": Rule(READ, _topic),
    _FOLD + "RangeEntries": Rule(READ, _topic),
    _FOLD + "KeyHistory": Rule(READ, _topic),
    _FOLD + "VerifyFold": Rule(READ, _topic),
    _FOLD + "SettleFold": Rule(ADMIN, _topic, audited=_always),
    _FOLD + "ExportFold": Rule(ADMIN, _topic, audited=_always),
    _FOLD + "ImportFold": Rule(ADMIN, _import, audited=_always),
    _FOLD + "ListArtifacts": Rule(SEE, _topic),
    _SEGMENT + "PlanSplits": Rule(READ, _topic),
    _SEGMENT + "ReadSplit": Rule(READ, _topic),
    _APPLY + "ApplyBatch": Rule(ROLES),
    _APPLY + "ApplyStream": Rule(ROLES),
    _APPLY + "PutSource": Rule(ROLES, _definition, behalf=ADMIN, audited=_always),
    _APPLY + "GetSource": Rule(ROLES),
    _APPLY + "ListSources": Rule(ROLES),
    _APPLY + "ControlSource": Rule(ROLES, _source, behalf=ADMIN, audited=_always),
    _APPLY + "UpdateSource": Rule(ROLES, _letters, behalf=ADMIN, audited=_always),
    _APPLY + "DeleteSource": Rule(ROLES, _source, behalf=ADMIN, audited=_always),
    _APPLY + "AcquireLease": Rule(ROLES),
    _APPLY + "RenewLease": Rule(ROLES),
    _APPLY + "ReleaseLease": Rule(ROLES),
    _APPLY + "FollowTopics": Rule(ROLES),
    _SOURCES + "CreateSource": Rule(ADMIN, _definition, audited=_always),
    _SOURCES + "UpdateSource": Rule(ADMIN, _change, audited=_always),
    _SOURCES + "GetSource": Rule(SEE, _source),
    _SOURCES + "ListSources": Rule(SEE),
    _SOURCES + "PauseSource": Rule(ADMIN, _source, audited=_always),
    _SOURCES + "ResumeSource": Rule(ADMIN, _source, audited=_always),
    _SOURCES + "ResyncSource": Rule(ADMIN, _source, audited=_always),
    _SOURCES + "DeleteSource": Rule(ADMIN, _source, audited=_always),
    _SOURCES + "CompareSource": Rule(READ, _source),
    _SOURCES + "VerifySource": Rule(READ, _source, _repairs, audited=lambda request: bool(request.repair)),
    _KV + "PutEntry": Rule(WRITE, _entry),
    _KV + "CreateEntry": Rule(WRITE, _entry),
    _KV + "UpdateEntry": Rule(WRITE, _entry),
    _KV + "DeleteEntry": Rule(DELETE, _entry, audited=_always),
    _KV + "PurgeEntry": Rule(DELETE, _entry, audited=_always),
    _DELIVERY + "WatchTopics": Rule(READ, _watched, is_watch=True),
    _DELIVERY + "ExplainWatch": Rule(READ, _explained),
}
